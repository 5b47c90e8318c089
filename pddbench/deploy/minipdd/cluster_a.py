"""Cluster A: P computes a prompt, its KV goes to the decoder beside it and over the link, RLD hands ids over to MD."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pddbench.deploy.minipdd.contexts import Context, Contexts, Ids
from pddbench.deploy.minipdd.line import Line
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
    pack_ids,
)
from pddbench.deploy.minipdd.spec import MiniSpec

MAX_ROUNDS = 16  # of catching up: an RLD faster than MD computes would never be caught


@dataclass
class Job:
    """A request on its way: `emit` is called with (stage, index, token, text) in order of the index."""

    rid: int
    ids: list[int]
    tokens: int
    ignore_eos: bool
    emit: Callable[[str, int, int, str], None]
    out: list[int] = field(default_factory=list)
    stopped: bool = False  # by the model's own end of text
    cached_tokens: int = 0
    pipeline: str = ""
    eager: int = 0
    handoff: dict[str, Any] | None = None
    kv: dict[str, Any] | None = None
    inbox: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)

    def take(self, stage: str, token: int, text: str) -> None:
        """The next token of the answer."""
        self.out.append(token)
        self.emit(stage, len(self.out) - 1, token, text)

    @property
    def facts(self) -> dict[str, Any]:
        """The closing part of the `pdd` extension."""
        return {"pipeline": self.pipeline, "eager": self.eager, "handoff": self.handoff, "kv": self.kv}


class ClusterA:
    """P, and D (baseline) or RLD (pdd), and the line to B unless it is a baseline."""

    def __init__(self, spec: MiniSpec, engines: dict[str, Llama], folder: Path, line: Line | None) -> None:
        self._spec, self._engines, self._folder, self._line = spec, engines, folder, line
        self.contexts = Contexts(folder, spec.cache_bytes)
        self._jobs: dict[int, Job] = {}

    def on_message(self, message: Message) -> None:
        """A message from B, to the request it is about; of one that has gone it says nothing any more."""
        job = self._jobs.get(getattr(message, "rid", -1))
        if job is not None:
            job.inbox.put_nowait(message)

    async def run(self, job: Job) -> None:
        """Answer a request. Raises `EngineError`; cancelled, it lets go of everything."""
        self._jobs[job.rid] = job
        try:
            async with self._prefilled(job) as context:
                if self._spec.kind == "baseline":
                    job.pipeline = "P-D"
                    await self._decode_here(job, context, "D", "d")
                elif self._spec.kind == "naive" or self._soon(context):
                    job.pipeline = "P-MD"
                    await self._decode_there(job, context)
                else:
                    job.pipeline = "P-RLD-MD"
                    await self._relay(job, context)
        finally:
            del self._jobs[job.rid]

    @asynccontextmanager
    async def _prefilled(self, job: Job) -> AsyncIterator[Context]:
        """The prompt's KV as a file, from the best prefix P has kept."""
        prefill, ids = self._engines["P"], np.array(job.ids, dtype=np.int32)
        async with prefill.slot() as slot:
            donor, _ = self.contexts.best(ids)
            if donor is not None:
                with self.contexts.pinned(donor):
                    await prefill.restore(slot, donor.name)
            job.cached_tokens = (await prefill.prefill(job.ids, slot)).cached_tokens
            # a client that leaves now must not leave a file behind that nobody knows
            context = await asyncio.shield(asyncio.ensure_future(self._kept(ids, slot)))
        with self.contexts.pinned(context):
            yield context

    async def _kept(self, ids: Ids, slot: int) -> Context:
        """What is in a slot of P, as a file of its prefix cache."""
        name = self.contexts.new_name()
        return self.contexts.add(name, ids, await self._engines["P"].save(slot, name))

    def _soon(self, context: Context) -> bool:
        """Whether the KV is predicted to be at MD so soon that RLD is not needed."""
        assert self._line is not None
        return self._line.predict_s(context.n_bytes) <= self._spec.threshold_s

    async def _decode_here(self, job: Job, context: Context, role: str, stage: str) -> None:
        """Decode in this cluster: the KV crosses the fabric (a file that both servers see)."""
        engine, facts = self._engines[role], Generation()
        async with engine.slot() as slot:
            await engine.restore(slot, context.name)
            async for piece in engine.generate(facts, job.ids, job.tokens, slot, ignore_eos=job.ignore_eos):
                job.take(stage, piece.token, piece.text)
        job.stopped = facts.stopped

    @asynccontextmanager
    async def _sending(self, job: Job, context: Context, decode: bool) -> AsyncIterator[asyncio.Task[None]]:
        """The KV on its way to B; B is told to forget the request unless `Done` has come."""
        assert self._line is not None
        kv = Kv(job.rid, context.n_bytes, pack_ids(job.ids), decode, job.tokens, job.ignore_eos)
        job.kv = {"bytes": context.n_bytes, "wire_bytes": None, "ns": None}
        sending = asyncio.ensure_future(self._line.send_kv(kv, self._folder / context.name))
        complete = False
        try:
            yield sending
            complete = job.handoff is not None or decode
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
            sent = self._line.sent_bytes(job.rid)
            if job.kv["ns"] is None:  # broken off: the line carried no more than that
                job.kv["bytes"] = min(sent, context.n_bytes)
            if not complete:
                self._line.send(Drop(job.rid))

    async def _decode_there(self, job: Job, context: Context) -> None:
        """Decode in B, when the KV is there."""
        stage = "d" if self._spec.kind == "naive" else "md"
        started_ns = time.monotonic_ns()
        async with self._sending(job, context, decode=True) as sending:
            self._arrived(job, await self._from_b(job, sending, Ready), started_ns)
            await self._rest(job, stage)

    async def _relay(self, job: Job, context: Context) -> None:
        """RLD streams while the KV is under way; then B takes over from the ids."""
        started_ns = time.monotonic_ns()
        relay = asyncio.ensure_future(self._decode_here(job, context, "RLD", "rld"))
        try:
            async with self._sending(job, context, decode=False) as sending:
                ready = await self._from_b(job, sending, Ready, relay)
                if ready is not None:
                    self._arrived(job, ready, started_ns)
                    await self._hand_over(job, sending, relay)
                else:
                    await relay  # the answer ended before the KV was there
                    job.eager = len(job.out)
        finally:
            relay.cancel()
            await asyncio.gather(relay, return_exceptions=True)

    def _arrived(self, job: Job, ready: Ready | None, started_ns: int) -> None:
        assert ready is not None and job.kv is not None and self._line is not None
        if ready.restored_tokens != len(job.ids):
            raise EngineError(f"MD restored {ready.restored_tokens} tokens of a prompt of {len(job.ids)}")
        job.kv = {"bytes": job.kv["bytes"], "wire_bytes": job.kv["bytes"], "ns": ready.arrived_ns - started_ns}

    async def _hand_over(self, job: Job, sending: asyncio.Task[None], relay: asyncio.Task[None]) -> None:
        """One message of ids, or rounds of catching up before it; RLD stops with the last one."""
        assert self._line is not None
        few, sent, rounds, n_bytes, computed = self._spec.catch_up_tokens, 0, 0, 0, 0
        mode = self._spec.handoff
        if mode == "auto":
            mode = "one_shot" if len(job.out) <= few else "catch_up"
        while mode == "catch_up" and rounds < MAX_ROUNDS and (not rounds or len(job.out) - sent > few):
            n_bytes += self._line.send(Extend(job.rid, pack_ids(job.out[sent:])))
            sent, rounds = len(job.out), rounds + 1
            extended = await self._from_b(job, sending, Extended, relay)
            if extended is None:
                break
            computed += extended.computed_tokens
        if relay.done():
            await relay  # it was faster: nothing is left to hand over
            job.eager = len(job.out)
            return
        relay.cancel()
        n_bytes += self._line.send(HandOff(job.rid, pack_ids(job.out[sent:])))
        job.eager = len(job.out)
        job.handoff = {"mode": mode, "token": job.eager, "rounds": rounds + 1, "bytes": n_bytes}
        job.handoff["recomputed_tokens"] = computed + await self._rest(job, "md")

    async def _from_b(
        self, job: Job, sending: asyncio.Task[None], kind: type[Any], relay: asyncio.Task[None] | None = None
    ) -> Any:
        """The next message, which must be of `kind`; None when RLD has finished before it came."""
        getting = asyncio.ensure_future(job.inbox.get())
        watched: set[asyncio.Future[Any]] = {getting} | ({relay} if relay is not None else set())
        if not sending.done():
            watched.add(sending)
        try:
            while not getting.done():
                await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
                if relay is not None and relay.done():
                    return None
                if sending.done():
                    _no_failure(sending)
                    watched.discard(sending)
            return _expected(getting.result(), kind)
        finally:
            getting.cancel()

    async def _rest(self, job: Job, stage: str) -> int:
        """The tokens that B makes, in order, none lost and none twice; returns what its server recomputed for them."""
        while True:
            message = _expected(await job.inbox.get(), (Token, Done))
            if isinstance(message, Done):
                job.stopped = message.stopped
                return message.computed_tokens
            if message.index != len(job.out):
                raise EngineError(f"token {message.index} came where {len(job.out)} was due")
            job.take(stage, message.token, message.text)


def _expected(message: Message, kind: Any) -> Any:
    if isinstance(message, Failed):
        raise EngineError(message.reason)
    if not isinstance(message, kind):
        raise EngineError(f"cluster B sent {type(message).__name__} out of turn")
    return message


def _no_failure(sending: asyncio.Task[None]) -> None:
    error = sending.exception()
    if error is not None:
        raise EngineError(f"the KV could not be sent over the link: {error}") from error
