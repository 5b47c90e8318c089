"""The OpenAI surface of a miniature deployment: bodies in, chunks with the `pdd` extension out. Greedy only."""

from __future__ import annotations

from typing import Any

import msgspec

MAX_TOKENS = 1_000_000
_DEFAULT_TOKENS = {False: 16, True: 256}
DONE = b"data: [DONE]\n\n"


class BadRequest(Exception):
    """A body that cannot be served: one sentence."""


class _Options(msgspec.Struct):
    include_usage: bool = False


class Body(msgspec.Struct, kw_only=True):
    """What is read of a request; fields of sampling that would change the tokens are refused, others ignored."""

    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    stream: bool | None = False
    stream_options: _Options | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    echo: bool | None = False
    temperature: float | None = None
    ignore_eos: bool | None = False
    stop: str | list[str] | None = None
    chat: bool = False

    @property
    def tokens(self) -> int:
        """How many tokens are wanted."""
        limit = self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens
        return _DEFAULT_TOKENS[self.chat] if limit is None else limit

    @property
    def usage_wanted(self) -> bool:
        """Whether a closing usage chunk was asked for."""
        return self.stream_options is not None and self.stream_options.include_usage


_decoder = msgspec.json.Decoder(Body)


def parse(raw: bytes, chat: bool) -> Body:
    """Read a body. Raises `BadRequest`."""
    try:
        body = _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body cannot be read: {error}") from error
    body.chat = chat
    if (body.messages if chat else body.prompt) in (None, "", []):
        raise BadRequest("messages is missing or empty" if chat else "prompt is missing or empty")
    if body.n not in (None, 1) or body.echo:
        raise BadRequest("only n = 1 without echo is served here")
    if body.temperature:
        raise BadRequest("decoding is greedy here, or a hand-off could not be exact: leave temperature out, or 0")
    if body.stop:
        raise BadRequest("stop words are not served here: leave stop out")
    if not 1 <= body.tokens <= MAX_TOKENS:
        raise BadRequest(f"max_tokens must be between 1 and {MAX_TOKENS}, not {body.tokens}")
    return body


def error_body(message: str, kind: str = "invalid_request_error") -> bytes:
    """An error as OpenAI shows it."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": None, "code": None}})


def _usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


class Reply:
    """Formats one answer: its events, or the whole of it."""

    def __init__(self, body: Body, rid: int, model: str, created: int) -> None:
        self._chat = body.chat
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if body.chat else 'cmpl'}-{rid}",
            "object": "chat.completion.chunk" if body.chat else "text_completion",
            "created": created,
            "model": model,
        }

    def _event(self, **more: Any) -> bytes:
        return b"data: " + msgspec.json.encode(self._head | more) + b"\n\n"

    def _choice(self, text: str, reason: str | None = None, role: str | None = None) -> list[dict[str, Any]]:
        said = {"delta": ({"role": role} if role else {}) | {"content": text}} if self._chat else {"text": text}
        return [{"index": 0, **said, "finish_reason": reason}]

    def opening(self) -> bytes:
        """What goes out at once, so that the headers do: the role chunk, or a comment."""
        return self._event(choices=self._choice("", role="assistant")) if self._chat else b": open\n\n"

    def token(self, stage: str, index: int, text: str) -> bytes:
        """One token of a stage."""
        return self._event(choices=self._choice(text), pdd={"stage": stage, "index": index})

    def closing(self, stopped: bool, facts: dict[str, Any], usage: tuple[int, int, int] | None) -> bytes:
        """The finish reason with the closing figures, the usage (prompt, completion, cached tokens) if asked for."""
        end = self._event(choices=self._choice("", "stop" if stopped else "length"), pdd=facts)
        return end + (self._event(choices=[], usage=_usage(*usage)) if usage is not None else b"") + DONE

    def error(self, message: str) -> bytes:
        """An error inside a stream."""
        return b"data: " + error_body(message, "server_error") + b"\n\n"

    def whole(self, text: str, stopped: bool, facts: dict[str, Any], usage: tuple[int, int, int]) -> bytes:
        """The reply to a request that did not ask for a stream."""
        said = {"message": {"role": "assistant", "content": text}} if self._chat else {"text": text}
        choice = {"index": 0, **said, "finish_reason": "stop" if stopped else "length"}
        kind = {"object": self._head["object"].removesuffix(".chunk")}
        return msgspec.json.encode(self._head | kind | {"choices": [choice], "usage": _usage(*usage), "pdd": facts})
