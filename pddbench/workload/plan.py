"""The plan: the exact list of requests that a trace and a workload come to. Pure: no clock, no network, seeded."""

from __future__ import annotations

import msgspec


class PlannedRequest(msgspec.Struct, frozen=True):
    """One request to send. Times are nanoseconds of experiment time from t0; indices point into `Plan.requests`.

    `start_ns` is the scheduled start of a root (of every request with `timing = "trace"`), `gap_ns` the wait after
    the last parent's end. `cached_tokens_planned` is the hit of an infinite prefix cache on the `prompt` basis,
    capped at `input_tokens - 1`, not yet floored to any engine's block.
    """

    index: int
    request_id: str
    session_id: str
    turn: int
    kind: str
    phase: str  # warmup | measure
    parents: tuple[int, ...]
    start_ns: int | None
    gap_ns: int
    prefix_of: int  # -1: none
    prefix_tokens: int
    input_tokens: int
    output_tokens: int
    cached_tokens_planned: int
    plan_sha256: str


class Plan(msgspec.Struct):
    """All requests in trace order (donors and parents first), and what was done to the trace to get them."""

    requests: list[PlannedRequest]
    timing: str
    sha256: str
    counts: dict[str, int] = msgspec.field(default_factory=dict)  # clamped_outputs, negative_gaps, unknown_gaps, …
    notes: list[str] = msgspec.field(default_factory=list)
