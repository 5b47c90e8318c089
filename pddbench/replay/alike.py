"""Events of a stream that differ in one piece of text only: their texts, without decoding each.

Most servers write every token's event alike but for the token. From one such event, decoded, what stands before and
after its text is known, and a probe with another text shows that nothing but the text can be between the two. Of all
events that begin and end so, what is between is a JSON string, and nothing else needs to be looked at.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from pddbench.replay.chunks import Choice, Chunk

LEAST = 8  # events; fewer are decoded one by one
_LOOKED_AT = 3  # events at the start of a stream, one of which should be like those after it
_PROBE = "\uf8ffpddbench\uf8ff"
_CONTROL = re.compile(rb"[\x00-\x1f]")
_text_of = msgspec.json.Decoder(str).decode
_decode = msgspec.json.Decoder(Chunk).decode


class Alike(NamedTuple):
    """The texts of the events in the middle of a stream, and the events before and after them."""

    before: list[bytes]
    texts: list[str]
    after: list[bytes]


def alike(events: list[bytes]) -> Alike | None:
    """What is alike in a stream; None where that is little, or nothing."""
    if len(events) < LEAST:
        return None
    for first, event in enumerate(events[:_LOOKED_AT]):
        frame = _frame(event)
        if frame is None:
            continue
        before, after = frame
        end = len(events)
        while end > first and not (events[end - 1].startswith(before) and events[end - 1].endswith(after)):
            end -= 1
        same = events[first:end]
        written = [one[len(before) : len(one) - len(after)] for one in same]
        if len(same) < LEAST or before + (after + before).join(written) + after != b"".join(same):
            return None
        texts = _decoded(written)
        return None if texts is None else Alike(events[:first], texts, events[end:])
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


def _decoded(written: list[bytes]) -> list[str] | None:
    """JSON strings, without their quotes, as text; None where one of them is none."""
    together = b"".join(written)
    if _CONTROL.search(together):
        return None
    try:
        if b'"' in together or b"\\" in together:
            return [_text_of(b'"%b"' % one) for one in written]
        return b"\n".join(written).decode().split("\n")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
