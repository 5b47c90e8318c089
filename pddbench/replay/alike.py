"""Events of a stream that differ in one piece of text only: their texts, without decoding each.

Most servers write every token's event alike but for the token. From one such event, decoded, what stands before and
after its text is known; put together, the end of one event and the beginning of the next are a separator that splits
all of them at once. What is between two separators is a JSON string: a part of the event in which nothing but the text
can be, as a probe with another text has shown.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from pddbench.replay.chunks import Choice, Chunk
from pddbench.replay.sse import BETWEEN, FIELD, PlainStream

LEAST = 8  # events; fewer are decoded one by one
_LOOKED_AT = 3  # events at the start of a stream, one of which should be like those after it
_PROBE = "\uf8ffpddbench\uf8ff"
_CONTROL = re.compile(rb"[\x00-\x1f]")
_text_of = msgspec.json.Decoder(str).decode
_decode = msgspec.json.Decoder(Chunk).decode


class Alike(NamedTuple):
    """The texts of events `first`, `first + 1`, … of a stream, and the events before and after them."""

    before: list[bytes]
    first: int
    texts: list[str]
    after: list[bytes]


def alike(stream: PlainStream) -> Alike | None:
    """What is alike in a stream; None where that is little, or nothing."""
    if stream.size < LEAST:
        return None
    begin = stream.whole[len(FIELD) :].split(BETWEEN, _LOOKED_AT)[:_LOOKED_AT]
    at = len(FIELD)
    for first, event in enumerate(begin):
        frame = _frame(event)
        if frame is not None:
            found = _texts(stream.whole[at + len(frame[0]) :], *frame)
            return None if found is None else Alike(begin[:first], first, *found)
        at += len(event) + len(BETWEEN)
    return None


def _frame(event: bytes) -> tuple[bytes, bytes] | None:
    """What stands before and after the text of an event that bears text and nothing else."""
    text = _text(event)
    if not text:
        return None
    written = msgspec.json.encode(text)
    at = event.find(written)
    while at >= 0:
        before, after = event[: at + 1], event[at + len(written) - 1 :]
        if _text(before + _PROBE.encode() + after) == _PROBE:
            return before, after
        at = event.find(written, at + 1)
    return None


def _text(event: bytes) -> str | None:
    try:
        chunk = _decode(event)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return None if chunk.error or chunk.object == "error" else only_text(chunk)


def only_text(chunk: Chunk) -> str | None:
    """The text of a chunk that is that of the first choice and nothing else; None for any other."""
    choices = chunk.choices
    if choices is None or len(choices) != 1 or chunk.pdd is not None or chunk.usage is not None:
        return None
    choice = choices[0]
    if choice.index != 0 or choice.finish_reason is not None or type(choice.token_ids) is list:
        return None
    return choice.text if choice.delta is None else _only_content(choice)


def _only_content(choice: Choice) -> str | None:
    """The content of a chat delta that has nothing else; None for any other."""
    delta = choice.delta
    if (
        delta is None
        or choice.text is not None
        or type(delta.content) is not str
        or delta.reasoning_content is not None
        or delta.reasoning is not None
        or delta.refusal is not None
        or delta.tool_calls is not None
        or delta.function_call is not None
    ):
        return None
    return delta.content


def _texts(rest: bytes, before: bytes, after: bytes) -> tuple[list[str], list[bytes]] | None:
    """The texts at the start of `rest`, which begins with the first of them, and the events after the last."""
    written = rest.split(after + BETWEEN + before)
    last = written.pop()
    text, end, behind = last.partition(after + b"\n\n")
    if end and b"\n" not in text:
        written.append(text)
    else:
        behind = FIELD + before + last  # begins as the others do, and goes on in another way
    if len(written) < LEAST:
        return None
    texts = _decoded(written)
    if texts is None or (behind and not behind.startswith(FIELD)):
        return None
    return texts, behind[len(FIELD) : -2].split(BETWEEN) if behind else []


def _decoded(written: list[bytes]) -> list[str] | None:
    """JSON strings, without their quotes, as text; None where one of them is none."""
    together = b"".join(written)
    if _CONTROL.search(together):  # so none reaches over the end of an event, either
        return None
    try:
        if b'"' in together or b"\\" in together:
            return [_text_of(b'"%b"' % one) for one in written]
        return b"\n".join(written).decode().split("\n")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
