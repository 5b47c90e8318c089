"""The OpenAI surface of an emulated deployment: request bodies in, chunks and replies out."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.deploy.emulator.messages import Finish
from pddbench.deploy.emulator.reply import Piece
from pddbench.deploy.emulator.tokens import text_of, words_to_ids

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.int64]

MAX_TOKENS = 1_000_000
CHAT_HEAD_TOKENS, CHAT_TAIL_TOKENS = 7, 3  # a chat template's constant part: around each message, and before the reply
_DEFAULT_TOKENS = {False: 16, True: 256}  # /v1/completions as OpenAI documents it; chat: ours


class BadRequest(Exception):
    """A body that cannot be served: one sentence."""


class _Options(msgspec.Struct):
    include_usage: bool = False


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None


class _Body(msgspec.Struct):
    model: str | None = None
    stream: bool | None = False
    stream_options: _Options | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    echo: bool | None = False


class _Completion(_Body, kw_only=True):
    prompt: msgspec.Raw  # a list of 64K ids is read by numpy, three times faster than into Python's integers


class _Chat(_Body, kw_only=True):
    messages: list[_Message]


_completion_decoder, _chat_decoder = msgspec.json.Decoder(_Completion), msgspec.json.Decoder(_Chat)
_prompt_decoder: msgspec.json.Decoder[str | list[int]] = msgspec.json.Decoder(str | list[int])
_PLAIN = b"0123456789, \t\r\n"  # what a list of token ids is made of, its brackets apart


@dataclass(slots=True)
class Request:
    """A request as the router needs it."""

    ids: Ids
    max_tokens: int
    stream: bool
    include_usage: bool
    chat: bool


def parse(raw: bytes, chat: bool) -> Request:
    """Read a body. Raises `BadRequest`."""
    try:
        body: _Completion | _Chat = _chat_decoder.decode(raw) if chat else _completion_decoder.decode(raw)
        ids = _chat_ids(body.messages) if isinstance(body, _Chat) else _prompt_ids(body.prompt)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body cannot be read: {error}") from error
    if body.n not in (None, 1) or body.echo:
        raise BadRequest("only n = 1 without echo is emulated")
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    limit = _DEFAULT_TOKENS[chat] if limit is None else limit
    if not 1 <= limit <= MAX_TOKENS:
        raise BadRequest(f"max_tokens must be between 1 and {MAX_TOKENS}, not {limit}")
    usage = body.stream_options is not None and body.stream_options.include_usage
    return Request(ids, limit, bool(body.stream), usage, chat)


def _prompt_ids(raw: msgspec.Raw) -> Ids:
    import numpy as np

    text = bytes(raw)
    ids: Ids
    if text[:1] == b"[" and text.translate(None, _PLAIN) == b"[]":
        ids = np.fromstring(text[1:-1], dtype=np.int64, sep=",")
    else:
        try:
            ids = _as_ids(_prompt_decoder.decode(raw))
        except msgspec.ValidationError as error:
            raise BadRequest("prompt must be one text or one list of token ids") from error
    if not len(ids):
        raise BadRequest("the prompt is empty")
    if ids.min() < 0 or ids.max() >= 1 << 31:
        raise BadRequest("token ids must be between 0 and 2147483647")
    return ids


def _as_ids(prompt: str | list[int]) -> Ids:
    """Ids of a text, or a list that holds more than plain numbers, as an array."""
    import numpy as np

    ids = words_to_ids(prompt) if isinstance(prompt, str) else [min(max(token, -1), 1 << 31) for token in prompt]
    return np.array(ids, dtype=np.int64)


def _chat_ids(messages: Sequence[_Message]) -> Ids:
    if not messages:
        raise BadRequest("messages is empty")
    ids: list[int] = []
    for message in messages:
        ids += _template(message.role, CHAT_HEAD_TOKENS)
        ids += words_to_ids(_content(message))
    import numpy as np

    return np.array(ids + _template("reply", CHAT_TAIL_TOKENS), dtype=np.int64)


def _content(message: _Message) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    if any(not isinstance(part.get("text"), str) for part in message.content):
        raise BadRequest("only text parts of a message's content are emulated")
    return " ".join(part["text"] for part in message.content)


def _template(name: str, n: int) -> list[int]:
    return [zlib.crc32(f"<{name}:{place}>".encode()) & 0x7FFFFFFF for place in range(n)]


def error_body(message: str, kind: str = "invalid_request_error", code: str | None = None) -> bytes:
    """An error as OpenAI shows it."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": code}})


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def summary(finish: Finish) -> dict[str, Any]:
    """The closing part of the `pdd` extension."""
    return {"pipeline": finish.pipeline, "eager": finish.eager, "handoff": finish.handoff, "kv": finish.kv}


class Chunks:
    """Formats the SSE events of one answer. The constant part is made once; a token costs one format."""

    def __init__(self, request: Request, reply_id: str, model: str, created: int) -> None:
        self._chat = request.chat
        kind = "chat.completion.chunk" if request.chat else "text_completion"
        head = {"id": reply_id, "object": kind, "created": created, "model": model}
        self._head = msgspec.json.encode(head).decode()[:-1]
        self._open = '"delta":{"content":"' if request.chat else '"text":"'
        self._close = '"},' if request.chat else '",'

    def opening(self) -> bytes:
        """What goes out at once, so that the headers do: the role chunk, or a comment."""
        if not self._chat:
            return b": open\n\n"
        delta = '{"role":"assistant","content":""}'
        return f'data: {self._head},"choices":[{{"index":0,"delta":{delta},"finish_reason":null}}]}}\n\n'.encode()

    def tokens(self, pieces: Sequence[Piece], finish: Finish | None = None, close: bool = False) -> bytes:
        """Some tokens of one stage. `close`: the last ones; with `finish`, its summary rides in the same chunk."""
        stage, index, token = pieces[-1]
        text = f" w{token:x}" if len(pieces) == 1 else text_of([piece[2] for piece in pieces])
        reason = '"length"' if close else "null"
        more = "" if finish is None else "," + msgspec.json.encode(summary(finish)).decode()[1:-1]
        return (
            f'data: {self._head},"choices":[{{"index":0,{self._open}{text}{self._close}"finish_reason":{reason}}}],'
            f'"pdd":{{"stage":"{stage}","index":{index}{more}}}}}\n\n'
        ).encode()

    def usage(self, request: Request, finish: Finish) -> bytes:
        """The usage chunk, with the summary of the `pdd` extension."""
        counts = msgspec.json.encode(usage(len(request.ids), request.max_tokens, finish.cached_tokens)).decode()
        more = msgspec.json.encode(summary(finish)).decode()
        return f'data: {self._head},"choices":[],"usage":{counts},"pdd":{more}}}\n\n'.encode()

    def error(self, message: str) -> bytes:
        """An error inside a stream."""
        return b"data: " + error_body(message, "server_error") + b"\n\n"


DONE = b"data: [DONE]\n\n"


def whole(request: Request, reply_id: str, model: str, created: int, text: str, finish: Finish) -> bytes:
    """The reply to a request that did not ask for a stream."""
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length"}
    choice |= {"message": {"role": "assistant", "content": text}} if request.chat else {"text": text}
    return msgspec.json.encode(
        {
            "id": reply_id,
            "object": "chat.completion" if request.chat else "text_completion",
            "created": created,
            "model": model,
            "choices": [choice],
            "usage": usage(len(request.ids), request.max_tokens, finish.cached_tokens),
            "pdd": summary(finish),
        }
    )
