"""What a run will do, in words: printed before the start and by `--dry-run`."""

from __future__ import annotations

from typing import Any

from pddbench.runner.prepare import ArmSetup, Prepared, hit_histogram
from pddbench.text import redact_url


def planned(prepared: Prepared) -> dict[str, Any]:
    """The figures of a plan, JSON-able: counts, tokens, duration, hit histogram, WAN bytes by arm."""
    from pddbench.trace.stats import BUCKET_EDGES

    measured = prepared.plan.measured
    hits = sum(request.cached_tokens_planned for request in measured)
    inputs = sum(request.input_tokens for request in measured)
    tokens_in, tokens_out = prepared.tokens()
    return {
        "requests": len(measured),
        "sessions": len({request.session_id for request in measured}),
        "warmups": len(prepared.plan.requests) - len(measured),
        "runs": [list(run) for run in prepared.order],
        "input_tokens": inputs,
        "output_tokens": sum(request.output_tokens for request in measured),
        "mean_hit_planned": sum(r.cached_tokens_planned / r.input_tokens for r in measured) / len(measured),
        "token_weighted_hit_planned": hits / inputs,
        "hit_bucket_edges": list(BUCKET_EDGES),
        "hit_buckets_planned": hit_histogram(prepared.plan, BUCKET_EDGES),
        "duration_wall_s_at_least": prepared.duration_s(),
        "speed": prepared.speed,
        "tokens_all_repeats_per_arm": {"input": tokens_in, "output": tokens_out},
        "cost": prepared.cost(),
        "wan": prepared.wan,
        "wan_bytes_planned": {setup.name: wan_bytes(setup, prepared) for setup in prepared.arms},
        "counts": prepared.plan.counts,
        "notes": prepared.plan.notes + prepared.trace.header.assumptions,
    }


def wan_bytes(setup: ArmSetup, prepared: Prepared) -> float | None:
    """KV bytes an arm started here would send over the WAN in one repeat (infinite caches); None where not known."""
    spec = setup.spec
    if setup.mini is not None:
        return setup.mini.planned_kv_bytes([request.input_tokens for request in prepared.plan.measured])
    if spec is None:
        return None
    if spec.arm == "baseline":
        return 0.0
    block = setup.block_tokens or 1
    total = 0.0
    for request in prepared.plan.measured:
        hit = request.cached_tokens_planned // block * block if spec.drc else 0
        total += spec.model.kv_base_bytes + spec.model.kv_token_bytes * (request.input_tokens - hit)
    return total


def lines(prepared: Prepared) -> list[str]:
    """The plan for a person: what is sent where, how much, for how long, at what cost."""
    facts = planned(prepared)
    edges, buckets = facts["hit_bucket_edges"], facts["hit_buckets_planned"]
    speed = f" at emulator speed {prepared.speed:g}" if prepared.speed != 1 else ""
    out = [
        f"{prepared.experiment.name}: {facts['requests']:,} requests in {facts['sessions']:,} sessions, "
        f"{facts['input_tokens']:,} input and {facts['output_tokens']:,} output tokens a run, "
        f"{len(prepared.order)} runs ({' '.join(f'{arm}.{repeat}' for arm, repeat in prepared.order)})",
        f"planned hits (infinite cache, prompt basis): mean {facts['mean_hit_planned']:.3f} a request, "
        f"{facts['token_weighted_hit_planned']:.3f} token-weighted; requests by hit rate: "
        + " ".join(
            f"[{low * 100:g},{high * 100:g}) {n}" for low, high, n in zip(edges, edges[1:], buckets, strict=False)
        ),
        f"at least {facts['duration_wall_s_at_least']:.0f} s{speed}, plus service times",
    ]
    for setup in prepared.arms:
        out.append(f"  {setup.name}: {_where(setup)}" + _wan_words(facts["wan_bytes_planned"][setup.name]))
    if facts["cost"] is not None:
        out.append(f"planned cost of tokens: {facts['cost']:.2f} {prepared.experiment.cost.currency}")
    if facts["counts"]:
        out.append("counted: " + ", ".join(f"{name} {n}" for name, n in sorted(facts["counts"].items())))
    out += [f"note: {note}" for note in facts["notes"]]
    return out + ([f"note: {doubt}"] if (doubt := instrument_doubt(prepared)) else [])


def instrument_doubt(prepared: Prepared) -> str | None:
    """What this host's calibration has against the load of one run; None when nothing."""
    from pddbench.calibrate.store import warning

    measured = prepared.plan.measured
    tokens = sum(request.output_tokens for request in measured)
    return warning(tokens, len(measured), prepared.duration_s() / max(1, len(prepared.order)))


def _where(setup: ArmSetup) -> str:
    if setup.mini is not None:
        return f"{setup.arm.deployment} of real llama.cpp servers, one a role (model {setup.arm.model})"
    if setup.spec is None:
        return f"{redact_url(str(setup.url))} (model {setup.arm.model}, profile {setup.profile.name})"
    roles = ", ".join(f"{role} {spec.count}×{spec.chip.name}" for role, spec in setup.spec.roles.items())
    return f"emulated {setup.spec.arm} ({roles})"


def _wan_words(n_bytes: float | None) -> str:
    if not n_bytes:
        return ""
    size = f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.1f} MB"
    return f", {size} of KV over the WAN a run"
