"""The router: a live OpenAI endpoint before the clusters. It reads and hashes a prompt once and relays the answer."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from pddbench.deploy.emulator import openai
from pddbench.deploy.emulator.blocks import PathBook, block_hashes
from pddbench.deploy.emulator.live import Live
from pddbench.deploy.emulator.liveclock import LiveClock
from pddbench.deploy.emulator.messages import (
    AskRoles,
    AskStats,
    Cancel,
    Change,
    Failed,
    Finish,
    Message,
    Roles,
    RolesTold,
    Stats,
    Submit,
    Tokens,
)
from pddbench.deploy.emulator.node import MOST_EVENTS, ProcessSpec, connect, figures
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.wire import Wire

BODY_LIMIT_BYTES = 64 << 20
_STATS_TIMEOUT_S = 5.0
_ROLES_TIMEOUT_S = 30.0
_LONGEST_ID = 1000
_MOST_CHANGED = 1000
_MOST_POSTED = 10_000  # changes that are remembered
_BEACON_S = 0.010  # wall: the router has no timers of its own, so it watches one
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    role: str
    count: int


class RouterProcess:
    """The router process: HTTP towards clients, one connection to each cluster."""

    def __init__(self, spec: ProcessSpec, loop: asyncio.AbstractEventLoop) -> None:
        self._spec, self._loop = spec, loop
        self._deployment: EmulatorSpec = spec.deployment
        self.clock = LiveClock(loop, self._deployment.speed, spec.epoch_ns)
        self._wires: dict[str, Wire] = {}
        self._live: dict[int, Live] = {}
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._request_ids = [""]  # by rid, which begins at 1, as far as events are kept
        self._posted: list[tuple[float, str, int]] = []
        self._rids = self._questions = 0
        self._started = int(time.time())
        self._counts: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()
        self._pipelines: Counter[str] = Counter()
        self._parse_s = 0.0
        self._book = PathBook()

    async def start(self) -> int:
        """Connect to the clusters and serve HTTP; returns the port."""
        for name, address in self._spec.peers.items():
            who = f"cluster {name.upper()}"
            self._wires[name] = await connect(self._loop, address, "router", self._on_message, who)
        app = web.Application(client_max_size=BODY_LIMIT_BYTES, middlewares=[_json_errors])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/stats", self._stats)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/roles", self._roles)
        app.router.add_post("/roles", self._change)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, read_bufsize=1 << 20)
        await runner.setup()
        site = web.SockSite(runner, socket.socket(fileno=self._spec.listener), backlog=1024)
        await site.start()
        port_served: int = runner.addresses[0][1]
        return port_served

    def watch(self) -> None:
        """Begin to watch how late this process runs."""
        self._beacon(self.clock.now())

    def _beacon(self, due_s: float) -> None:
        due_s = max(due_s, self.clock.now()) + _BEACON_S * self._deployment.speed
        self.clock.call_at(due_s, self._beacon, due_s)

    def _on_message(self, _: Wire, message: Message) -> None:
        if isinstance(message, Tokens):
            self._on_tokens(message)
        elif isinstance(message, Finish):
            live = self._live.get(message.rid)
            if live is not None:
                live.reply.finish = message
                live.close_if_complete()
        elif isinstance(message, Failed):
            live = self._live.get(message.rid)
            if live is not None:
                live.fail(message.reason)
        elif isinstance(message, Stats):
            self._asked.pop(message.number).set_result(message.figures)
        elif isinstance(message, Roles):
            self._asked.pop(message.number).set_result(message.events)

    def _on_tokens(self, message: Tokens) -> None:
        self._tokens[message.stage] += len(message.rows)
        for rid, index, token in message.rows:
            live = self._live.get(rid)
            if live is not None:
                try:
                    live.token(message.stage, index, token)
                except ValueError as error:
                    live.fail(str(error))

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=False)

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=True)

    async def _answer(self, http: web.Request, chat: bool) -> web.StreamResponse:
        """One request, from its body to its last byte; a client that leaves takes its work along."""
        raw = await http.read()
        started = time.perf_counter()
        try:
            request = openai.parse(raw, chat)
        except openai.BadRequest as error:
            return _error(400, str(error))
        self._rids += 1
        rid, created = self._rids, int(time.time())
        if self._spec.roles and rid < MOST_EVENTS:
            self._request_ids.append(http.headers.get("X-Request-Id", "")[:_LONGEST_ID])
        hashes, seed = block_hashes(request.ids, self._deployment.block_tokens)
        path = self._book.path(hashes)
        submit = Submit(rid, seed, len(request.ids), request.max_tokens, path, path[0][0] if path else 0)
        reply_id = f"{'chatcmpl' if chat else 'cmpl'}-{rid}"
        chunks = openai.Chunks(request, reply_id, self._deployment.served_model, created)
        done: asyncio.Future[None] = self._loop.create_future()
        live = self._live[rid] = Live(request, chunks, self._deployment.tokens_per_chunk, lambda: _set(done))
        self._parse_s += time.perf_counter() - started
        self._wires["a"].send(submit)
        outcome = "cancelled"
        try:
            if request.stream:
                response = await self._stream(http, live, chunks, done)
            else:
                response = await self._whole(live, reply_id, created, done)
            outcome = "error" if live.error else "ok"
            return response
        finally:
            self._end(rid, live, outcome)

    def _end(self, rid: int, live: Live, outcome: str) -> None:
        del self._live[rid]
        self._counts[outcome] += 1
        if live.reply.finish is not None:
            self._pipelines[live.reply.finish.pipeline] += 1
        if outcome != "ok":
            self._wires["a"].send(Cancel(rid))

    async def _stream(
        self, http: web.Request, live: Live, chunks: openai.Chunks, done: asyncio.Future[None]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        response.enable_chunked_encoding()
        await response.prepare(http)
        await response.write(chunks.opening())  # the headers leave with it
        if http.transport is not None:
            live.attach(_chunked_writer(http.transport))
        await done
        await response.write_eof()
        return response

    async def _whole(self, live: Live, reply_id: str, created: int, done: asyncio.Future[None]) -> web.Response:
        await done
        finish = live.reply.finish
        if live.error or finish is None:
            return _error(500, live.error, "server_error")
        body = openai.whole(live.request, reply_id, self._deployment.served_model, created, live.all_tokens, finish)
        return web.Response(body=body, content_type="application/json")

    async def _models(self, _: web.Request) -> web.Response:
        spec = self._deployment
        pdd = {
            "emulated": spec.arm,
            "speed": spec.speed,
            "block_tokens": spec.block_tokens,
            "kv_scale": spec.kv_scale,
            "wan": spec.wan_backend,
        }
        entry = {
            "id": spec.served_model,
            "object": "model",
            "created": self._started,
            "owned_by": "pddbench",
            "pdd": pdd,
        }
        return _json({"object": "list", "data": [entry]})

    async def _health(self, _: web.Request) -> web.Response:
        return _json({"status": "ok", "emulated": self._deployment.arm})

    async def _stats(self, _: web.Request) -> web.Response:
        return _json(await self._all_figures())

    async def _metrics(self, _: web.Request) -> web.Response:
        from pddbench.deploy.emulator.metrics import prometheus

        text = prometheus(await self._all_figures(), self._counts, self._tokens, self._pipelines, len(self._live))
        return web.Response(text=text, content_type="text/plain")

    async def _all_figures(self) -> dict[str, dict[str, float]]:
        """What router, A and B report of themselves."""
        own = figures(self.clock) | {"requests": float(self._rids), "in_flight": float(len(self._live))}
        own |= {"parse_s": self._parse_s} | {f"requests_{name}": float(n) for name, n in self._counts.items()}
        own |= {f"tokens_{stage}": float(n) for stage, n in self._tokens.items()}
        out = {"router": own}
        for name, wire in self._wires.items():
            out[name] = await self._ask(wire, AskStats, _STATS_TIMEOUT_S)
        return out

    async def _ask(self, wire: Wire, question: type[AskStats | AskRoles], timeout_s: float) -> Any:
        self._questions += 1
        future = self._asked[self._questions] = self._loop.create_future()
        wire.send(question(self._questions))
        return await asyncio.wait_for(future, timeout_s)

    async def _change(self, http: web.Request) -> web.Response:
        """`{"role": "MD", "count": -1}`: an instance of a role is lost (or added) now."""
        try:
            change = msgspec.json.decode(await http.read(), type=_Change)
        except msgspec.DecodeError as error:
            return _error(400, f"{error}: give a role and a count, as in {{'role': 'MD', 'count': -1}}")
        roles = self._deployment.roles
        if change.role not in roles or not 1 <= abs(change.count) <= _MOST_CHANGED:
            return _error(
                400, f"role must be one of {', '.join(roles)}, count from -{_MOST_CHANGED} to {_MOST_CHANGED}"
            )
        for wire in self._wires.values():
            wire.send(Change(change.role, change.count))
        if len(self._posted) < _MOST_POSTED:
            self._posted.append((self.clock.now(), change.role, change.count))
        return _json({"role": change.role, "count": change.count})

    async def _roles(self, _: web.Request) -> web.Response:
        """For the launcher, after a run."""
        parts = [await self._ask(wire, AskRoles, _ROLES_TIMEOUT_S) for wire in self._wires.values()]
        told = RolesTold(parts, self._request_ids, self._spec.epoch_ns, self._posted, self.clock.now())
        return web.Response(body=msgspec.msgpack.encode(told), content_type="application/msgpack")


def _set(done: asyncio.Future[None]) -> None:
    if not done.done():  # the client may have left meanwhile
        done.set_result(None)


def _chunked_writer(transport: asyncio.Transport) -> Callable[[bytes], None]:
    """Events straight to the transport: chunked framing by hand, no task a token."""

    def write(event: bytes) -> None:
        if not transport.is_closing():
            transport.write(b"%x\r\n%b\r\n" % (len(event), event))

    return write


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _error(status: int, message: str, kind: str = "invalid_request_error") -> web.Response:
    return web.Response(status=status, body=openai.error_body(message, kind), content_type="application/json")


@web.middleware
async def _json_errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Errors of the HTTP layer, as OpenAI shows them."""
    try:
        return await handler(request)
    except web.HTTPRequestEntityTooLarge:
        return _error(413, f"the body is larger than {BODY_LIMIT_BYTES >> 20} MiB")
    except web.HTTPNotFound:
        return _error(404, "there is no such path here: see /v1/models, /v1/completions and /v1/chat/completions")
    except web.HTTPMethodNotAllowed as error:
        return _error(405, f"this path takes {', '.join(sorted(error.allowed_methods))}")
