"""A trace at another hit rate: prompts and replies as long as before, but sharing more or less of them."""

from __future__ import annotations

import msgspec

from pddbench.errors import InputError
from pddbench.trace.model import Row, Trace

_CLOSE = 1e-3


def planned_hit(trace: Trace) -> float:
    """Token-weighted share of the prompts that lies in `prefix_tokens`."""
    total = sum(row.input_tokens for row in trace.rows)
    return sum(row.prefix_tokens for row in trace.rows) / total if total else 0.0


def with_hit(trace: Trace, hit: float) -> Trace:
    """The trace with a token-weighted planned hit of `hit`, 0 to below 1; `InputError` when it cannot hit so much.

    Lower: every shared prefix is cut by one factor. Higher: every un-hit part of a prompt that shares is cut by one
    factor, as far as its donor is long enough; first prompts of a context stay cold.
    """  # fmt: skip
    if not 0 <= hit < 1:
        raise InputError(f"--hits {hit:g}: shares from 0 to below 1 (90% is 0.9)")
    now = planned_hit(trace)
    if hit <= now:
        factor = hit / now if now else 0.0
        return _with(trace, [int(row.prefix_tokens * factor) for row in trace.rows])
    longest = {row.request_id: row.input_tokens + row.output_tokens for row in trace.rows}
    low, high = 0.0, 1.0  # of the un-hit part that stays
    most = planned_hit(_with(trace, _kept(trace, longest, 0.0)))
    if most < hit - _CLOSE:
        raise InputError(
            f"--hits {hit:g}: prompts of this trace can share {100 * most:.1f}% at most (first prompts are cold, and "
            "no prompt can share more than its donor has): ask for less, or take a trace with longer sessions"
        )
    for _ in range(40):
        middle = (low + high) / 2
        reached = planned_hit(_with(trace, _kept(trace, longest, middle))) >= hit
        low, high = (middle, high) if reached else (low, middle)
    return _with(trace, _kept(trace, longest, low))


def _kept(trace: Trace, longest: dict[str, int], stays: float) -> list[int]:
    return [_shared(row, longest, stays) for row in trace.rows]


def _shared(row: Row, longest: dict[str, int], stays: float) -> int:
    if row.prefix_of is None or not row.prefix_tokens:
        return row.prefix_tokens
    wanted = row.input_tokens - round((row.input_tokens - row.prefix_tokens) * stays)
    return max(row.prefix_tokens, min(wanted, row.input_tokens - 1, longest[row.prefix_of]))


def _with(trace: Trace, shared: list[int]) -> Trace:
    rows = [
        msgspec.structs.replace(row, prefix_of=row.prefix_of if kept else None, prefix_tokens=kept)
        for row, kept in zip(trace.rows, shared, strict=True)
    ]
    return Trace(trace.header, rows)
