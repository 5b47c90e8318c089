"""From a trace to the specification that would make one like it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pddbench.errors import InputError
from pddbench.trace.hits import planned_hits
from pddbench.trace.model import Row, Trace
from pddbench.trace.quota.spec import (
    DEFAULT_EDGES,
    Arrival,
    Eviction,
    Law,
    LowKinds,
    QuotaSpec,
    Singular,
    Subagents,
    SystemPrompts,
    check_spec,
)
from pddbench.trace.quota.structure import LOW_BELOW

Floats = npt.NDArray[np.float64]
SINGULAR_INPUT, SINGULAR_OUTPUT, SINGULAR_HIT = 131_072, 499, 0.5
CONTINUES = 0.5  # at least, of an earlier prompt, where a trace names no sessions
_SHARES = np.array([0, 0.01, 0.02, 0.05, *np.arange(0.1, 0.91, 0.05), 0.95, 0.98, 0.99, 0.995, 1.0])


@dataclass
class Observed:
    """A trace's rows with their hits on the `prompt` basis, and which of them are what."""

    rows: list[Row]
    hits: npt.NDArray[np.int64]
    shares: Floats
    sessions: dict[str, list[int]]
    before: list[int]  # the turn before each one, -1 for roots
    gaps_s: list[float | None]
    singular: set[int]
    side: set[int]  # slots of sub-agents

    @property
    def others(self) -> list[int]:
        """Rows that are not singular."""
        return [i for i in range(len(self.rows)) if i not in self.singular]


def fit(trace: Trace, edges: Sequence[float] = DEFAULT_EDGES) -> QuotaSpec:
    """The specification whose histogram, means, laws, sessions and times are those of the trace.

    Shares and means are exact; laws are quantiles. What a trace does not tell (service times) stays at the default. It
    is checked as any specification is; whether its laws go together shows when it is generated.
    """
    seen = observe(trace.rows, trace.header.block_tokens or 1)
    inputs, outputs = (
        np.array([getattr(row, name) for row in trace.rows]) for name in ("input_tokens", "output_tokens")
    )
    counts = np.histogram(seen.shares, np.asarray(edges))[0]
    lows = [i for i in seen.others if seen.shares[i] < LOW_BELOW and seen.before[i] >= 0]
    system = _system(seen)
    return check_spec(
        QuotaSpec(
            name="fitted",
            note=f"fitted to {len(trace.rows)} requests of {trace.header.source or trace.header.source_format}",
            sources=tuple(filter(None, [trace.header.source_sha256 and f"SHA-256 {trace.header.source_sha256}"])),
            edges=tuple(edges),
            shares=_to_one(counts / len(trace.rows)),
            mean_hit=float(seen.shares.mean()),
            input=_law(inputs[seen.others], float(inputs.mean())),
            output=_law(np.maximum(outputs, 1), float(np.maximum(outputs, 1).mean())),
            singular=_singular(seen, inputs),
            system=system,
            turns=_law(np.array([len(s) for s in session_lines(seen)] or [1])),
            low_lag1=low_hit_lag1(seen),
            low_kinds=_low_kinds(seen, lows, system.tokens.mean or 0.0),
            user_share=_user_share(seen),
            tool_gap=_gaps(seen, "tool"),
            user_gap=_gaps(seen, "user"),
            eviction=_eviction(seen, lows, system.tokens.mean or 0.0),
            subagents=_subagents(seen),
            arrival=_arrival(seen),
            min_fresh_tokens=1,
        )
    )


def observe(rows: list[Row], block_tokens: int = 1) -> Observed:
    """Hits, sessions (found, where the trace names none) and singular requests of a trace."""
    if not rows:
        raise InputError("a trace without requests cannot be fitted")
    hits = planned_hits(rows)
    shares = hits / np.maximum(np.array([row.input_tokens for row in rows]), 1)
    index = {row.request_id: i for i, row in enumerate(rows)}
    before = [index[row.parents[0]] if row.parents else -1 for row in rows]
    gaps = [row.gap_s for row in rows]
    if max(before) < 0:
        before, gaps = _continued(rows, hits, index, block_tokens)
    line: list[str] = []
    sessions: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        line.append(line[before[i]] if before[i] >= 0 else row.session_id)
        sessions.setdefault(line[i], []).append(i)
    alone = [i for members in sessions.values() if len(members) == 1 for i in members]
    singular = {i for i in alone if _is_singular(rows[i], float(shares[i]))}
    side = {i for i, row in enumerate(rows) if row.kind == "subagent"}
    return Observed(rows, hits, shares, sessions, before, gaps, singular, side)


def _continued(
    rows: list[Row], hits: npt.NDArray[np.int64], index: dict[str, int], block_tokens: int
) -> tuple[list[int], list[float | None]]:
    """Sessions of a trace that names none: a prompt that holds all whole blocks of an earlier one is its next turn.

    Each prompt has one next turn at most. Gaps are from start to start, as no ends are known.
    """
    taken: set[int] = set()
    before: list[int] = [-1] * len(rows)
    gaps: list[float | None] = [None] * len(rows)
    for i, row in enumerate(rows):
        donor = index[row.prefix_of] if row.prefix_of is not None else -1
        whole = rows[donor].input_tokens // block_tokens * block_tokens
        if donor < 0 or donor in taken or hits[i] < max(whole, CONTINUES * rows[donor].input_tokens):
            continue
        taken.add(donor)
        before[i] = donor
        start, earlier = row.start_s, rows[donor].start_s
        gaps[i] = start - earlier if start is not None and earlier is not None else None
    return before, gaps


def _is_singular(row: Row, share: float) -> bool:
    return row.input_tokens >= SINGULAR_INPUT and row.output_tokens <= SINGULAR_OUTPUT and share < SINGULAR_HIT


def session_lines(seen: Observed) -> list[list[int]]:
    """Sessions that are not singular, sub-agents included (the generator counts them as turns)."""
    return [members for members in seen.sessions.values() if members[0] not in seen.singular]


def _to_one(shares: Floats) -> tuple[float, ...]:
    """Rounded to 9 digits, with the largest share taking what rounding left."""
    rounded = [round(float(share), 9) for share in shares]
    rounded[int(np.argmax(shares))] += 1 - sum(rounded)
    return tuple(rounded)


def _law(values: npt.NDArray[np.int64] | Floats, mean: float | None = None) -> Law:
    """The quantiles of what was observed; `mean` where the law is of more than these values."""
    values = np.maximum(np.asarray(values, dtype=np.float64), 1e-3)
    points = tuple((round(float(p), 4), round(float(np.quantile(values, p)), 3)) for p in _SHARES)
    low, high = points[0][1], points[-1][1]
    if low == high:
        return Law(kind="fixed", mean=low, min=low, max=high)
    own = float(values.mean()) if mean is None else mean
    return Law(kind="quantiles", mean=round(min(max(own, low), high), 3), min=low, max=high, points=points)


def _singular(seen: Observed, inputs: npt.NDArray[np.int64]) -> Singular:
    if not seen.singular:
        return Singular()
    law = _law(inputs[sorted(seen.singular)])
    return Singular(share=round(len(seen.singular) / len(seen.rows), 9), input=law, max_output=SINGULAR_OUTPUT)


def _system(seen: Observed) -> SystemPrompts:
    """What several roots share with earlier ones; roots that hit nothing have a system prompt of their own."""
    roots = [i for i in seen.others if seen.before[i] < 0]
    shared = [int(seen.hits[i]) for i in roots if seen.hits[i] > 0]
    if not shared:
        return SystemPrompts(count=0, cold_share=1.0)
    often = {n for n, times in Counter(shared).items() if times >= max(2, 0.01 * len(roots))}
    common = [n for n in shared if n in often] or [int(np.median(shared))]
    cold = max(0, len(roots) - len(shared) - len(set(common))) / len(roots)
    return SystemPrompts(count=min(len(set(common)), 64), tokens=_law(np.array(common)), cold_share=round(cold, 6))


def low_hit_lag1(seen: Observed) -> float:
    """Correlation of low hits with the turn before, over the main lines of all sessions, roots left out."""
    pairs = []
    for members in session_lines(seen):
        low = [float(seen.shares[i] < LOW_BELOW) for i in members if i not in seen.side][1:]
        pairs += list(pairwise(low))
    first, second = np.array(pairs or [(0.0, 0.0)]).T
    if len(pairs) < 2 or not first.std() or not second.std():
        return 0.0
    return round(float(np.clip(np.corrcoef(first, second)[0, 1], 0.0, 0.95)), 4)


def _low_kinds(seen: Observed, lows: list[int], system: float) -> LowKinds:
    """By how much of the parent's prompt a low turn hits: all of it, about the system prompt, or something else."""
    if not lows:
        return LowKinds()
    counts = {"tool": 0, "edit": 0, "compaction": 0}
    for i in lows:
        before = seen.rows[seen.before[i]].input_tokens
        hit = int(seen.hits[i])
        counts["tool" if hit >= 0.9 * before else "compaction" if hit <= 1.1 * system else "edit"] += 1
    return LowKinds(**{kind: round(n / len(lows), 4) for kind, n in counts.items()})


def _eviction(seen: Observed, lows: list[int], system: float) -> Eviction:
    """How many of the turns that hit at most about the system prompt came after a break longer than the default."""
    ttl_s = Eviction().ttl_s
    gaps = [gap for i in lows if seen.hits[i] <= 1.1 * system and (gap := seen.gaps_s[i]) is not None]
    return Eviction(ttl_s=ttl_s, share=round(sum(gap > ttl_s for gap in gaps) / len(gaps), 4) if gaps else 0.0)


def _user_share(seen: Observed) -> float:
    kinds = [seen.rows[i].kind for i in seen.others if seen.before[i] >= 0]
    return round(kinds.count("user") / len(kinds), 6) if kinds else 0.0


def _gaps(seen: Observed, kind: str) -> Law:
    """Gaps before turns of this kind (`tool`: all others); the default where none is known."""
    wanted = [i for i in seen.others if seen.before[i] >= 0 and (seen.rows[i].kind == "user") == (kind == "user")]
    known = [max(gap, 0.001) for i in wanted if (gap := seen.gaps_s[i]) is not None]
    default = QuotaSpec().user_gap if kind == "user" else QuotaSpec().tool_gap
    return _law(np.array(known)) if known else default


def _subagents(seen: Observed) -> Subagents:
    lengths = [n for members in session_lines(seen) if (n := sum(i in seen.side for i in members))]
    if not lengths:
        return Subagents()
    share = len(lengths) / max(1, len(session_lines(seen)))
    return Subagents(share=round(share, 6), min_turns=min(lengths), max_turns=max(lengths))


def _arrival(seen: Observed) -> Arrival:
    """Rate and burstiness of session starts; the shape is that of a gamma law with the same variation of gaps."""
    starts = sorted(s for m in session_lines(seen) if (s := seen.rows[m[0]].start_s) is not None)
    gaps = np.diff(np.array(starts))
    if len(gaps) < 2 or gaps.sum() <= 0:
        return Arrival()
    variation = float(gaps.std() / gaps.mean())
    shape = 1 / variation**2 if variation > 0 else 1e4
    return Arrival(session_rate=float(1 / gaps.mean()), shape=round(float(np.clip(shape, 0.01, 1e4)), 4))
