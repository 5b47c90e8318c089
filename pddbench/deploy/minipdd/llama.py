"""A client of one llama.cpp server: greedy generation on a chosen slot, and slots as files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from pddbench.text import printable

_READ_BUFFER_BYTES = 4 << 20
_FINAL_FIELDS = ["stop", "stop_type", "timings", "tokens_predicted", "tokens"]  # not the prompt's whole text again


class EngineError(Exception):
    """A server refused or broke off: one sentence."""


class Refused(EngineError):
    """The server will not do what was asked: ids out of range, a prompt beyond its context."""


class _Event(msgspec.Struct):
    """One event of a stream of /completion."""

    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int = 0
    timings: dict[str, float] = {}
    error: Any = None


class Piece(msgspec.Struct, frozen=True):
    """A token and its text."""

    token: int
    text: str


class Generation:
    """One call of /completion: iterate over its pieces; the figures are there at its end.

    `computed_tokens` and `cached_tokens` are the server's own `timings.prompt_n` and `timings.cache_n`.
    """

    def __init__(self) -> None:
        self.stopped = False
        self.computed_tokens = self.cached_tokens = 0

    def _end(self, event: _Event) -> None:
        self.stopped = event.stop_type in ("eos", "word")
        self.computed_tokens = int(event.timings.get("prompt_n", 0))
        self.cached_tokens = int(event.timings.get("cache_n", 0))


_decoder = msgspec.json.Decoder(_Event)


class Llama:
    """A server by its URL; a context manager. `slots` of it are handed out one caller each."""

    def __init__(self, role: str, url: str, slots: int) -> None:
        self.role, self._url = role, url
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(slots):
            self._free.put_nowait(slot)
        # it drops a connection that is used again right after a stream: each request gets its own
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10),
            read_bufsize=_READ_BUFFER_BYTES,
        )

    async def close(self) -> None:
        """Close what is open."""
        await self._session.close()

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[int]:
        """A free slot, waited for."""
        number = await self._free.get()
        try:
            yield number
        finally:
            self._free.put_nowait(number)

    async def generate(
        self, facts: Generation, ids: list[int], tokens: int, slot: int, *, ignore_eos: bool = True, cache: bool = True
    ) -> AsyncIterator[Piece]:
        """Greedy tokens after `ids`; with `tokens` 0 the prompt is computed only. `facts` is filled at the end.

        Raises `EngineError`, also when ids are missing: the server holds back bytes that are no character yet, and
        their ids with them, so an answer could not be handed over.
        """
        body = {
            "prompt": ids, "n_predict": tokens, "temperature": 0, "top_k": 1, "stream": True, "return_tokens": True,
            "cache_prompt": cache, "id_slot": slot, "ignore_eos": ignore_eos, "response_fields": _FINAL_FIELDS,
        }  # fmt: skip
        seen = 0
        async with self._post("/completion", body) as reply:
            async for line in reply.content:
                if not line.startswith(b"data:"):
                    continue
                event = _decoder.decode(line[5:])
                if event.error is not None:
                    raise EngineError(f"{self.role}: {_message(event.error)}")
                if tokens:
                    seen += len(event.tokens)
                    if seen != event.tokens_predicted and not event.stop:
                        raise EngineError(
                            f"{self.role}: llama.cpp held back {event.tokens_predicted - seen} token ids "
                            "(bytes that are no character yet): this model cannot be handed over"
                        )
                    if event.tokens:
                        yield Piece(event.tokens[-1], event.content)
                if event.stop:
                    facts._end(event)
                    return
        raise EngineError(f"{self.role}: llama.cpp ended its stream before the answer was complete")

    async def prefill(self, ids: list[int], slot: int) -> Generation:
        """Compute the KV of `ids` in a slot, as far as it is not there."""
        facts = Generation()
        async for _ in self.generate(facts, ids, 0, slot):
            pass
        return facts

    async def save(self, slot: int, name: str) -> int:
        """Write a slot to a file of the server's folder: its size in bytes."""
        return int((await self._slot(slot, "save", name))["n_written"])

    async def restore(self, slot: int, name: str) -> int:
        """Read a slot from a file: how many tokens it holds."""
        return int((await self._slot(slot, "restore", name))["n_restored"])

    async def _slot(self, slot: int, action: str, name: str) -> dict[str, Any]:
        async with self._post(f"/slots/{slot}?action={action}", {"filename": name}) as reply:
            found: dict[str, Any] = msgspec.json.decode(await reply.read())
            return found

    async def tokenize(self, text: str) -> list[int]:
        """Ids of a text, special tokens in it read as such."""
        async with self._post("/tokenize", {"content": text, "add_special": True, "parse_special": True}) as reply:
            ids: list[int] = msgspec.json.decode(await reply.read())["tokens"]
            return ids

    async def apply_template(self, messages: list[dict[str, Any]]) -> str:
        """A chat as the model's own template writes it."""
        async with self._post("/apply-template", {"messages": messages}) as reply:
            text: str = msgspec.json.decode(await reply.read())["prompt"]
            return text

    async def counters(self) -> str:
        """Its /metrics page."""
        async with self._session.get(f"{self._url}/metrics") as reply:
            return await reply.text()

    @asynccontextmanager
    async def _post(self, path: str, body: dict[str, Any]) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.post(
                self._url + path, data=msgspec.json.encode(body), headers={"Content-Type": "application/json"}
            ) as reply:
                if reply.status != 200:
                    error = msgspec.json.decode(await reply.read()).get("error", {})
                    kind = Refused if reply.status == 400 else EngineError
                    raise kind(f"{self.role}: {_message(error)}")
                yield reply
        except aiohttp.ClientError as error:
            raise EngineError(f"{self.role}: llama.cpp's server does not answer: {error}") from error


def _message(error: Any) -> str:
    text = error.get("message") if isinstance(error, dict) else error
    return printable(str(text))
