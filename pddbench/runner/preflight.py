"""One small request before any load: is it there, does it stream, what does its template add, whose clock is it."""

from __future__ import annotations

import asyncio
import http.client
import secrets
import time
from typing import Any

from pddbench.errors import WorldError
from pddbench.replay.exchange import Exchange, Target, Transport
from pddbench.replay.stream import Facts, StreamResult, interpret
from pddbench.runner.prepare import ArmSetup
from pddbench.text import printable, redact_url
from pddbench.workload.plan import Plan, PlannedRequest
from pddbench.workload.prompts import BodyWriter, PromptBook

_PROBE_TOKENS = 32
_PROBE_OUTPUT_TOKENS = 2
_TRIES = 5  # a model whose length is not pinned may end before its first token


def target_of(setup: ArmSetup, url: str, **more: Any) -> Target:
    """Where and how an arm's requests go."""
    arm, keep_alive_s = setup.arm, setup.profile.keep_alive_s
    return Target(url=url, headers=arm.headers, api_key_env=arm.api_key_env, keep_alive_s=keep_alive_s, **more)


def writer_of(setup: ArmSetup, plan: Plan, salt: str) -> BodyWriter:
    """The bodies of `plan` for an arm under a salt."""
    words = setup.words
    return BodyWriter(
        PromptBook(plan, salt, setup.arm.token_id_range if setup.token_ids else (0, len(words))),
        plan,
        model=setup.arm.model or "emulated",
        chat=setup.chat,
        token_ids=setup.token_ids,
        fields=setup.fields,
        limit_field=setup.profile.chat_limit if setup.chat else "max_tokens",
        min_tokens=setup.profile.min_tokens and bool(setup.pin),
        words=words,
        overhead_tokens=setup.overhead_tokens,
    )


async def preflight(setup: ArmSetup, url: str) -> dict[str, Any]:
    """Probe an arm and learn its template's overhead. Raises `WorldError` in one sentence unless it streams well."""
    from pddbench.replay.transport import make_transport

    emulator = await emulator_facts(url) if setup.spec is None else None
    client = make_transport(target_of(setup, url, stall_timeout_s=60.0, request_limit_s=120.0))
    try:
        for _ in range(_TRIES):
            result = await _ask(client, writer_of(setup, _probe_plan(), f"preflight/{secrets.token_hex(8)}")(0))
            if setup.pin or result.first_token_ns is not None or result.finish_reason != "stop":
                break
    finally:
        await client.close()
    if result.outcome != "ok":
        raise WorldError(f"arm {setup.name!r}: preflight to {redact_url(url)} failed: {result.error or result.outcome}")
    if result.first_token_ns is None:
        raise WorldError(f"arm {setup.name!r}: preflight to {redact_url(url)} brought a stream without any token")
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


async def _ask(client: Transport, body: bytes) -> StreamResult:
    exchange = Exchange(0, time.monotonic_ns())
    await client.perform(exchange, body, "preflight")
    assert exchange.ending is not None
    facts = Facts(
        exchange.ending,
        exchange.status,
        exchange.content_type,
        exchange.location,
        exchange.headers_ns,
        exchange.error,
    )
    return interpret(exchange.reads, facts)


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
