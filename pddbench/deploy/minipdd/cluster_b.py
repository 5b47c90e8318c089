"""Cluster B: KV arrives as a slot file and goes into a slot of MD, ids are handed over, and MD goes on from them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from pddbench.deploy.minipdd.line import Delayed
from pddbench.deploy.minipdd.llama import EngineError, Generation, Llama
from pddbench.deploy.minipdd.messages import (
    Done,
    Drop,
    Extend,
    Extended,
    Failed,
    HandOff,
    Kv,
    Message,
    Ready,
    Token,
    read_message,
    unpack_ids,
)

_READ_BYTES = 1 << 18


class _Request:
    """A request whose KV has arrived: the ids so far, and what A says about it."""

    def __init__(self, kv: Kv) -> None:
        self.kv = kv
        self.prompt = unpack_ids(kv.ids)
        self.eager: list[int] = []
        self.inbox: asyncio.Queue[Extend | HandOff] = asyncio.Queue()


class ClusterB:
    """Takes connections of A: one for messages, one for each KV transfer."""

    def __init__(self, engine: Llama, folder: Path) -> None:
        self._engine, self._folder = engine, folder
        self._out: Delayed | None = None
        self._requests: dict[int, _Request] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._dropped: set[int] = set()  # dropped while their KV was still under way

    def attach(self, out: Delayed) -> None:
        """Where answers go."""
        self._out = out

    def _send(self, message: Message) -> None:
        assert self._out is not None
        self._out.send(message)

    async def read_control(self, reader: asyncio.StreamReader) -> None:
        """Take messages until A has gone."""
        while (message := await read_message(reader)) is not None:
            if isinstance(message, Extend | HandOff) and message.rid in self._requests:
                self._requests[message.rid].inbox.put_nowait(message)
            elif isinstance(message, Drop):
                self._drop(message.rid)

    def _drop(self, rid: int) -> None:
        task = self._tasks.get(rid)
        if task is None:
            self._dropped.add(rid)
        else:
            task.cancel()

    async def read_kv(self, kv: Kv, reader: asyncio.StreamReader) -> None:
        """Take a slot file off its connection; a broken one is forgotten."""
        path = self._folder / f"r{kv.rid}.kv"
        left = kv.n_bytes
        with path.open("wb") as file:
            while left and (part := await reader.read(min(left, _READ_BYTES))):
                file.write(part)
                left -= len(part)
        if left or kv.rid in self._dropped:
            self._dropped.discard(kv.rid)
            path.unlink()
            return
        arrived_ns = time.monotonic_ns()
        self._requests[kv.rid] = _Request(kv)
        task = self._tasks[kv.rid] = asyncio.ensure_future(self._serve(self._requests[kv.rid], path, arrived_ns))
        task.add_done_callback(lambda _: self._forget(kv.rid, path))

    def _forget(self, rid: int, path: Path) -> None:
        del self._tasks[rid], self._requests[rid]
        path.unlink(missing_ok=True)

    async def _serve(self, request: _Request, path: Path, arrived_ns: int) -> None:
        rid = request.kv.rid
        try:
            async with self._engine.slot() as slot:
                restored = await self._engine.restore(slot, path.name)
                self._send(Ready(rid, arrived_ns, restored))
                if not request.kv.decode:
                    await self._take_over(request, slot)
                await self._decode(request, slot)
        except EngineError as error:
            self._send(Failed(rid, str(error)))

    async def _take_over(self, request: _Request, slot: int) -> None:
        """Recompute the KV of handed-over ids round by round, until the last ones are here."""
        while True:
            message = await request.inbox.get()
            request.eager += unpack_ids(message.ids)
            if isinstance(message, HandOff):
                return
            found = await self._engine.prefill(request.prompt + request.eager, slot)
            self._send(Extended(request.kv.rid, found.computed_tokens))

    async def _decode(self, request: _Request, slot: int) -> None:
        """Go on from exactly these ids; the server recomputes what the slot does not hold."""
        rid, facts, index = request.kv.rid, Generation(), len(request.eager)
        pieces = self._engine.generate(
            facts, request.prompt + request.eager, request.kv.tokens - index, slot, ignore_eos=request.kv.ignore_eos
        )
        async for piece in pieces:
            self._send(Token(rid, index, piece.token, piece.text))
            index += 1
        self._send(Done(rid, facts.stopped, facts.computed_tokens))
