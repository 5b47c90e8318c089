"""What a run will do, in words: printed before the start and by `--dry-run`."""

from __future__ import annotations

import os
from typing import Any

from pddbench.runner.prepare import ArmSetup, Measured, Prepared
from pddbench.text import redact_url


def planned(prepared: Prepared) -> dict[str, Any]:
    """The figures of a plan, JSON-able: counts, tokens, duration, hit histogram, WAN bytes by arm."""
    from pddbench.trace.stats import BUCKET_EDGES

    measured = Measured.of(prepared.plan)
    n, inputs = len(measured.input_tokens), int(measured.input_tokens.sum())
    tokens_in, tokens_out = prepared.tokens()
    return {
        "requests": n,
        "sessions": measured.sessions,
        "warmups": len(prepared.plan.requests) - n,
        "runs": [list(run) for run in prepared.order],
        "input_tokens": inputs,
        "output_tokens": int(measured.output_tokens.sum()),
        "mean_hit_planned": float(measured.hit_rates.sum()) / n,
        "token_weighted_hit_planned": int(measured.cached_tokens_planned.sum()) / inputs,
        "hit_bucket_edges": list(BUCKET_EDGES),
        "hit_buckets_planned": measured.hit_histogram(BUCKET_EDGES),
        "duration_wall_s_at_least": prepared.duration_s(),
        "speed": prepared.speed,
        "workers": prepared.workers,
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
        return setup.mini.planned_kv_bytes(Measured.of(prepared.plan).input_tokens.tolist())
    if spec is None:
        return None
    if spec.arm == "baseline":
        return 0.0
    block, measured = setup.block_tokens or 1, Measured.of(prepared.plan)
    hits = measured.cached_tokens_planned // block * block if spec.drc else 0
    fresh = int((measured.input_tokens - hits).sum())
    return float(spec.model.kv_base_bytes * len(measured.input_tokens) + spec.model.kv_token_bytes * fresh)


def lines(prepared: Prepared) -> list[str]:
    """The plan for a person: what is sent where, how much, for how long, at what cost."""
    facts = planned(prepared)
    edges, buckets = facts["hit_bucket_edges"], facts["hit_buckets_planned"]
    speed = f" at emulator speed {prepared.speed:g}" if prepared.speed != 1 else ""
    most = "at most " if prepared.plan.window is not None else ""  # what is left after the window is not sent
    out = [
        f"{prepared.experiment.name}: {most}{facts['requests']:,} requests in {facts['sessions']:,} sessions, "
        f"{facts['input_tokens']:,} input and {facts['output_tokens']:,} output tokens a run, "
        f"{len(prepared.order)} runs ({' '.join(f'{arm}.{repeat}' for arm, repeat in prepared.order)})",
        f"planned hits (infinite cache, {prepared.plan.basis} basis): mean {facts['mean_hit_planned']:.3f} a request, "
        f"{facts['token_weighted_hit_planned']:.3f} token-weighted; requests by hit rate: "
        + " ".join(
            f"[{low * 100:g},{high * 100:g}) {n}" for low, high, n in zip(edges, edges[1:], buckets, strict=False)
        ),
        f"at least {facts['duration_wall_s_at_least']:.0f} s{speed}, plus service times",
    ]
    for setup in prepared.arms:
        out.append(f"  {setup.name}: {_where(setup)}" + _wan_words(facts["wan_bytes_planned"][setup.name]))
    if prepared.wan.get("events"):
        out.append(f"the link changes at seconds after the start of each run: {', '.join(prepared.wan['events'])}")
    if facts["cost"] is not None:
        out.append(f"planned cost of tokens: {most}{facts['cost']:.2f} {prepared.experiment.cost.currency}")
    if facts["counts"]:
        out.append("counted: " + ", ".join(f"{name} {n}" for name, n in sorted(facts["counts"].items())))
    out += [f"note: {note}" for note in [*facts["notes"], *worker_notes(prepared)]]
    return out + ([f"note: {doubt}"] if (doubt := instrument_doubt(prepared)) else [])


def worker_notes(prepared: Prepared) -> list[str]:
    """What there is to say about several client processes."""
    asked, workers = prepared.experiment.workload.workers, prepared.workers
    cores = len(os.sched_getaffinity(0))
    notes = []
    if workers > 1:
        notes.append(f"{workers} client processes, each with its own sessions; max_start_rate and max_concurrency "
                     "are split evenly")  # fmt: skip
    if workers < asked:
        notes.append(f"{asked} workers were asked for: there are only {workers} sessions to share out")
    if workers > cores:
        notes.append(f"{workers} workers on {cores} cores will wait for one another")
    return notes


def instrument_doubt(prepared: Prepared) -> str | None:
    """What this host's calibration has against the load of one run; None when nothing."""
    from pddbench.calibrate.store import warning

    measured = Measured.of(prepared.plan)
    tokens = int(measured.output_tokens.sum())
    return warning(
        tokens, len(measured.output_tokens), prepared.duration_s() / max(1, len(prepared.order)), prepared.workers
    )


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
