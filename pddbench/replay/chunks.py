"""The JSON of OpenAI-compatible stream chunks: what is read of it, and nothing about time."""

from __future__ import annotations

from typing import Any

import msgspec

from pddbench.text import printable


class Delta(msgspec.Struct):
    """What a chat chunk adds. Values whose type differs between servers stay untyped."""

    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: Any = None
    function_call: Any = None


class Choice(msgspec.Struct):
    """One choice of a chunk: `text` of completions or `delta` of chat; `token_ids` are those of this chunk."""

    index: int = 0
    text: str | None = None
    token_ids: Any = None
    delta: Delta | None = None
    finish_reason: Any = None


class Chunk(msgspec.Struct):
    """One event of a stream. `pdd` is the open extension (stage and index of the chunk, facts of the request)."""

    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None
    object: Any = None
    message: Any = None
    pdd: Any = None


_DECODER = msgspec.json.Decoder(Chunk)


def decode(data: bytes) -> Chunk:
    """A chunk from an event's data. Raises `ValueError` with a sentence when it is not one."""
    try:
        return _DECODER.decode(data)
    except msgspec.ValidationError as error:
        raise ValueError(f"an event is JSON but not a completion chunk ({error}): {shown(data)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:  # the standard replaces invalid UTF-8, so a server's bad byte is not fatal
        return _DECODER.decode(data.decode("utf-8", "replace"))
    except (msgspec.MsgspecError, UnicodeError):
        raise ValueError(f"an event is not JSON: {shown(data)}") from None


def shown(data: bytes, limit: int = 120) -> str:
    """The beginning of some bytes from a server, made printable."""
    return printable(data[: 4 * limit].decode("utf-8", "replace"), limit)


def _text(value: Any) -> str:
    """Text of a content field: a string, or the texts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return ""


def _call_text(call: Any) -> str:
    """What a tool-call delta carries: name and arguments."""
    if not isinstance(call, dict):
        return ""
    function = call.get("function", call)
    if not isinstance(function, dict):
        return ""
    return _text(function.get("name")) + _text(function.get("arguments"))


def token_text(choice: Choice) -> str:
    """The text of all tokens a choice of a chunk carries; empty for role-only and empty chunks."""
    if choice.delta is None:
        return choice.text or ""
    delta = choice.delta
    text = (choice.text or "") + _text(delta.reasoning_content or delta.reasoning)
    text += _text(delta.content) + _text(delta.refusal)
    if isinstance(delta.tool_calls, list):
        text += "".join(map(_call_text, delta.tool_calls))
    return text + _call_text(delta.function_call)


def content_text(choice: Choice) -> str:
    """The part of a chunk's text that belongs into a conversation: what was said, not the reasoning before it."""
    return (choice.text or "") + (_text(choice.delta.content) if choice.delta is not None else "")


def error_message(value: Any) -> str:
    """The sentence inside an error object of a server, printable."""
    if isinstance(value, dict):
        inner = value.get("error", value)
        if isinstance(inner, dict):
            inner = inner.get("message") or inner.get("detail") or inner.get("type") or inner.get("code") or inner
        value = inner
    return printable(value if isinstance(value, str) else msgspec.json.encode(value).decode("utf-8", "replace"))


def body_message(body: bytes) -> str:
    """The message of a body that is not a stream: its JSON error, else its beginning, printable; may be empty."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return shown(body, 200)
    if isinstance(value, dict):
        for key in ("error", "detail", "message"):
            if value.get(key):
                return error_message(value[key])
    return shown(body, 200)
