"""One small request before any load: is it there, does it stream, what does its template add, whose clock is it."""

from __future__ import annotations

import asyncio
import http.client
import secrets
import time
from typing import Any

import msgspec

from pddbench.errors import WorldError
from pddbench.replay.exchange import Exchange, Target
from pddbench.replay.stream import Facts, StreamResult, interpret
from pddbench.runner.prepare import ArmSetup
from pddbench.runner.writer import writer_of
from pddbench.text import printable, redact_url
from pddbench.workload.history import Replies, Reply
from pddbench.workload.plan import Plan, PlannedRequest

_PROBE_TOKENS = 32
_PROBE_OUTPUT_TOKENS = 2
_TRIES = 5  # a model whose length is not pinned may end before its first token


def target_of(setup: ArmSetup, url: str, **more: Any) -> Target:
    """Where and how an arm's requests go."""
    arm, keep_alive_s = setup.arm, setup.profile.keep_alive_s
    return Target(url=url, headers=arm.headers, api_key_env=arm.api_key_env, keep_alive_s=keep_alive_s, **more)


async def preflight(setup: ArmSetup, url: str) -> dict[str, Any]:
    """Probe an arm and learn its template's overhead. Raises `WorldError` in one sentence unless it streams well."""
    emulator = await emulator_facts(url) if setup.spec is None else None
    target = target_of(setup, url, stall_timeout_s=60.0, request_limit_s=120.0)
    salt = f"preflight/{secrets.token_hex(8)}"
    for _ in range(_TRIES):
        result = await _ask(target, writer_of(setup, _probe_plan(), f"{salt}/{secrets.token_hex(4)}")(0))
        if setup.pin or result.first_token_ns is not None or result.finish_reason != "stop":
            break
    if setup.live and setup.chat and result.outcome == "ok":
        setup.overhead_tokens = max(0, (result.prompt_tokens or _PROBE_TOKENS) - _PROBE_TOKENS)
        await _learn_turn_overhead(setup, target, salt)
    if result.outcome != "ok":
        raise WorldError(f"arm {setup.name!r}: preflight to {redact_url(url)} failed: {result.error or result.outcome}")
    if result.first_token_ns is None:
        raise WorldError(f"arm {setup.name!r}: preflight to {redact_url(url)} brought a stream without any token")
    if setup.live and setup.token_ids and result.token_ids is None:
        raise WorldError(
            f"arm {setup.name!r}: the endpoint did not send the ids of its reply along, which history = 'live' needs "
            "with token ids: use prompt = 'text', or history = 'recorded'"
        )
    overhead = None if result.prompt_tokens is None else result.prompt_tokens - _PROBE_TOKENS
    if not setup.token_ids:
        setup.overhead_tokens = max(0, overhead or 0)
    if emulator is not None and setup.block_tokens is None:
        setup.block_tokens = emulator.get("block_tokens")
    said = await _block_tokens(setup, url)
    if said is not None and setup.arm.block_tokens is None:
        setup.block_tokens = said  # the server knows better than its profile's default
    return {
        "prompt_tokens_asked": _PROBE_TOKENS,
        "prompt_tokens_counted": result.prompt_tokens,
        "overhead_tokens": overhead,
        "usage": result.completion_tokens is not None,
        "cached_tokens": result.cached_tokens is not None,
        "pdd_extension": result.pipeline is not None,
        "emulator": emulator,
        "block_tokens_said": said,
    }


async def _learn_turn_overhead(setup: ArmSetup, target: Target, salt: str) -> None:
    """What the template adds for one more pair of messages: a second probe, a conversation in words of known length."""
    first, second = _probe_plan(), _probe_plan()
    plan = Plan([first.requests[0], _next_probe(second.requests[0])], "think", "", history="live")
    replies = Replies(plan)
    said = " ".join(setup.words[:_PROBE_OUTPUT_TOKENS])
    replies.put(0, Reply(_PROBE_OUTPUT_TOKENS, None, [said]))
    result = await _ask(target, writer_of(setup, plan, f"{salt}/turn", replies)(1))
    if result.outcome == "ok" and result.prompt_tokens is not None:
        setup.turn_overhead_tokens = max(0, result.prompt_tokens - plan.requests[1].input_tokens)


def _next_probe(probe: PlannedRequest) -> PlannedRequest:
    """A turn after the first probe: its prompt, its reply and as many new tokens."""
    before = _PROBE_TOKENS + _PROBE_OUTPUT_TOKENS
    return msgspec.structs.replace(
        probe, index=1, request_id="preflight-2", parents=(0,), prefix_of=0, prefix_tokens=before,
        input_tokens=before + _PROBE_TOKENS,
    )  # fmt: skip


async def _block_tokens(setup: ArmSetup, url: str) -> int | None:
    """What a real endpoint's /metrics page says of its prefix-cache block; None when it says nothing."""
    from pddbench.deploy import prometheus, scrape
    from pddbench.deploy.counters import block_tokens

    page = scrape.metrics_url(setup.arm.metrics_url, url) if setup.url is not None else None
    if page is None:
        return None
    try:
        text = (await asyncio.to_thread(scrape.fetch, page)).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException, ValueError):
        return None  # the run's own scraping says why
    return block_tokens(dict(prometheus.parse(text)))


async def _ask(target: Target, body: bytes) -> StreamResult:
    """A probe on a connection of its own: some servers drop one that is used again at once."""
    from pddbench.replay.transport import make_transport

    client, exchange = make_transport(target), Exchange(0, time.monotonic_ns())
    try:
        await client.perform(exchange, body, "preflight")
    finally:
        await client.close()
    assert exchange.ending is not None
    facts = Facts(
        exchange.ending,
        exchange.status,
        exchange.content_type,
        exchange.location,
        exchange.headers_ns,
        exchange.error,
    )
    return interpret(exchange.all_reads(), facts)


def _probe_plan() -> Plan:
    """A plan of one short request that shares nothing."""
    probe = PlannedRequest(
        index=0,
        request_id="preflight",
        session_id="preflight",
        turn=0,
        kind="preflight",
        phase="measure",
        parents=(),
        start_ns=0,
        gap_ns=0,
        prefix_of=-1,
        prefix_tokens=0,
        input_tokens=_PROBE_TOKENS,
        output_tokens=_PROBE_OUTPUT_TOKENS,
        cached_tokens_planned=0,
        plan_sha256="",
    )
    return Plan([probe], "think", "")


async def emulator_facts(url: str) -> dict[str, Any] | None:
    """What a pddbench emulator says of itself at /v1/models (speed, block…); None for anything else.

    Asked without credentials: an emulator needs none, and no other server is meant.
    """
    import aiohttp
    import msgspec

    models = url.partition("/v1/")[0] + "/v1/models"
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session,
            session.get(models, allow_redirects=False) as response,
        ):
            body = await response.content.read(64 << 10)
        facts = msgspec.json.decode(body)["data"][0]["pdd"]
        return {
            "emulated": printable(str(facts["emulated"]), 40),
            "speed": float(facts["speed"]),
            "kv_scale": float(facts["kv_scale"]),
            "block_tokens": int(facts["block_tokens"]),
            "wan": printable(str(facts["wan"]), 40),
        }
    except (aiohttp.ClientError, OSError, TimeoutError, msgspec.DecodeError, LookupError, TypeError, ValueError):
        return None
