"""The front: one live OpenAI endpoint before cluster A, in its process."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from pddbench.deploy.minipdd import openai
from pddbench.deploy.minipdd.cluster_a import ClusterA, Job
from pddbench.deploy.minipdd.exactness import Exactness
from pddbench.deploy.minipdd.llama import EngineError, Llama, Refused
from pddbench.deploy.minipdd.spec import MiniSpec

BODY_LIMIT_BYTES = 64 << 20
_CHECK_STEP_S = 2.0
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Front:
    """HTTP in front of a `ClusterA`; `prefill` also tokenizes."""

    def __init__(self, spec: MiniSpec, cluster: ClusterA, prefill: Llama, token: str) -> None:
        self._spec, self._cluster, self._prefill, self._token = spec, cluster, prefill, token
        self._started = int(time.time())
        self._rids = 0
        self._counts: Counter[str] = Counter()
        self._exactness = Exactness()
        self._single: Llama | None = None

    def application(self) -> web.Application:
        """The HTTP application."""
        app = web.Application(client_max_size=BODY_LIMIT_BYTES, middlewares=[_json_errors])
        app.router.add_post("/v1/completions", self._completions)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/stats", self._stats)
        app.router.add_post("/exactness", self._check)
        return app

    async def _completions(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=False)

    async def _chat(self, http: web.Request) -> web.StreamResponse:
        return await self._answer(http, chat=True)

    async def _answer(self, http: web.Request, chat: bool) -> web.StreamResponse:
        """One request, from its body to its last byte; a client that leaves takes its work along."""
        try:
            body = openai.parse(await http.read(), chat)
            ids = await self._ids(body)
            self._check_size(ids, body.tokens)
        except (openai.BadRequest, EngineError) as error:
            return _error(400, str(error))
        self._rids += 1
        reply = openai.Reply(body, self._rids, self._spec.served_model, int(time.time()))
        job = Job(self._rids, ids, body.tokens, bool(body.ignore_eos), emit=lambda *_: None)
        outcome = "cancelled"
        try:
            response = await (self._stream(http, job, body, reply) if body.stream else self._whole(job, reply))
            outcome = "ok" if job.pipeline and not http.get("failed") and response.status == 200 else "error"
            return response
        finally:
            self._count(job, outcome)

    async def _ids(self, body: openai.Body) -> list[int]:
        """Token ids of a prompt, by the engine's own template and tokenizer."""
        if body.chat:
            assert body.messages is not None
            return await self._prefill.tokenize(await self._prefill.apply_template(body.messages))
        if isinstance(body.prompt, str):
            return await self._prefill.tokenize(body.prompt)
        assert body.prompt is not None
        return body.prompt

    def _check_size(self, ids: list[int], tokens: int) -> None:
        if not ids or min(ids) < 0 or max(ids) >= 1 << 31:
            raise openai.BadRequest("prompt must hold token ids of the model's vocabulary")
        limit = self._spec.context_tokens
        if len(ids) + tokens > limit:
            raise openai.BadRequest(
                f"{len(ids)} prompt tokens and {tokens} new ones exceed the servers' context of {limit} tokens: "
                "raise context_tokens"
            )

    def _count(self, job: Job, outcome: str) -> None:
        self._counts[f"requests_{outcome}"] += 1
        if outcome != "ok":
            return
        self._exactness.keep(job)
        self._counts[f"pipeline_{job.pipeline.lower().replace('-', '_')}"] += 1
        self._counts["eager_tokens"] += job.eager
        if job.handoff is not None:
            self._counts[f"handoffs_{job.handoff['mode']}"] += 1
            self._counts["handoff_bytes"] += job.handoff["bytes"]
            self._counts["recomputed_tokens"] += job.handoff["recomputed_tokens"]
        if job.kv is not None and job.kv["ns"] is not None:
            self._counts["kv_wan_bytes"] += job.kv["bytes"]

    async def _stream(self, http: web.Request, job: Job, body: openai.Body, reply: openai.Reply) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        response.enable_chunked_encoding()
        await response.prepare(http)
        await response.write(reply.opening())
        transport = http.transport
        assert transport is not None

        def emit(stage: str, index: int, _: int, text: str) -> None:
            if not transport.is_closing():
                event = reply.token(stage, index, text)
                transport.write(b"%x\r\n%b\r\n" % (len(event), event))

        job.emit = emit
        try:
            await self._cluster.run(job)
            usage = self._usage(job) if body.usage_wanted else None
            await response.write(reply.closing(job.stopped, job.facts, usage))
        except EngineError as error:
            http["failed"] = True
            await response.write(reply.error(str(error)))
        await response.write_eof()
        return response

    async def _whole(self, job: Job, reply: openai.Reply) -> web.Response:
        texts: list[str] = []
        job.emit = lambda _stage, _index, _token, text: texts.append(text)
        try:
            await self._cluster.run(job)
        except Refused as error:
            return _error(400, str(error))
        except EngineError as error:
            return _error(500, str(error), "server_error")
        return _json(reply.whole("".join(texts), job.stopped, job.facts, self._usage(job)))

    @staticmethod
    def _usage(job: Job) -> tuple[int, int, int]:
        return len(job.ids), len(job.out), job.cached_tokens

    async def _models(self, _: web.Request) -> web.Response:
        entry = {
            "id": self._spec.served_model, "object": "model", "created": self._started, "owned_by": "pddbench",
            "engine": "llamacpp", "deployment": self._spec.kind,
        }  # fmt: skip
        return _json(msgspec.json.encode({"object": "list", "data": [entry]}))

    async def _health(self, _: web.Request) -> web.Response:
        return _json(msgspec.json.encode({"status": "ok", "engine": "llamacpp", "deployment": self._spec.kind}))

    async def _stats(self, _: web.Request) -> web.Response:
        contexts = self._cluster.contexts
        own = {"cache_bytes": contexts.n_bytes, "cache_evicted": contexts.evicted}
        return _json(msgspec.json.encode({"front": {**self._counts, **own}}))

    async def _check(self, http: web.Request) -> web.Response:
        """Compare some of what waits with a single process, whose URL the launcher gives: nobody else may."""
        try:
            asked = msgspec.json.decode(await http.read(), type=dict[str, str])
        except msgspec.MsgspecError:
            asked = {}
        if not self._token or not secrets.compare_digest(asked.get("token", "").encode(), self._token.encode()):
            return _error(403, "only the process that started this deployment may have its replies compared")
        if self._single is None:
            self._single = Llama("the single process", asked["single"], 1)
        try:
            found = await self._exactness.check(self._single, _CHECK_STEP_S)
        except EngineError as error:
            return _error(500, str(error), "server_error")
        return _json(msgspec.json.encode(found))


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


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
