"""Hit rate against cache size and against time to live, for all sizes at once, in one pass over a trace.

A cache that evicts what was used longest ago, the end of a prompt before its beginning (a child never outlives its
parent), holds at capacity C exactly the C tokens used last: larger caches contain smaller ones, and each prompt has one
number, its *stack distance*, above which a token of it hits. A prompt falls into few pieces, each last used by one
request: piece [a, b), last used by request j, hits at capacity C with min(b - a, C - D) tokens, where D counts the
distinct tokens used since j. What is left of j's own use is always the end of its prompt, so one number a request is
enough: D is a sum over a Fenwick tree. Tokens are counted singly; an engine's blocks round hits down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from pddbench.errors import InputError
from pddbench.trace.contexts import Segment, contexts, cut
from pddbench.trace.hits import donor_indices
from pddbench.trace.model import Row

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Curve(msgspec.Struct, frozen=True):
    """Hits at each point: `at` is a capacity in tokens or a time to live in seconds.

    `token_weighted_hit` is hit tokens / input tokens, `mean_hit` the mean of the requests' shares.
    """

    at: list[float]
    token_weighted_hit: list[float]
    mean_hit: list[float]


class CacheCurves(msgspec.Struct, frozen=True):
    """Both curves of a trace. `time_to_live` is None where a row has no recorded start."""

    requests: int
    input_tokens: int
    distinct_tokens: int  # a cache of this size forgets nothing
    order: str  # "start" or "trace": in which order the requests came
    basis: str
    capacity: Curve
    time_to_live: Curve | None


class Pieces(msgspec.Struct, frozen=True):
    """The reused pieces of all prompts, shape (m,): which request, tokens, stack distance, age in seconds."""

    request: Ints
    tokens: Ints
    distance: Ints
    age_s: Floats


def cache_curves(
    rows: Sequence[Row],
    capacities: Sequence[int] | None = None,
    ttls_s: Sequence[float] | None = None,
    basis: Literal["prompt", "prompt+output"] = "prompt",
) -> CacheCurves:
    """The curves at the given points, or at points that cover the trace.

    Requests come in order of their recorded starts where all have one, else in trace order. A piece's age counts from
    the start of its last use.
    """
    starts = [row.start_s for row in rows]
    timed = all(start is not None for start in starts)
    order = sorted(range(len(rows)), key=lambda i: starts[i] or 0.0) if timed else list(range(len(rows)))
    pieces, distinct = reused_pieces(rows, order, basis)
    inputs = np.array([row.input_tokens for row in rows], dtype=np.int64)
    sizes = list(capacities) if capacities is not None else _powers(1 << 14, max(distinct, 1 << 14))
    ages = list(ttls_s) if ttls_s is not None else [1, 3, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200, 21600, 86400]
    return CacheCurves(
        requests=len(rows),
        input_tokens=int(inputs.sum()),
        distinct_tokens=distinct,
        order="start" if timed else "trace",
        basis=basis,
        capacity=_curve(pieces, inputs, sizes, lambda c: np.clip(c - pieces.distance, 0, pieces.tokens)),
        time_to_live=_curve(pieces, inputs, ages, lambda t: np.where(pieces.age_s <= t, pieces.tokens, 0))
        if timed
        else None,
    )


def _powers(low: int, high: int) -> list[int]:
    """Powers of 2 from `low` on; the last is at least `high`."""
    out = [low]
    while out[-1] < high:
        out.append(2 * out[-1])
    return out


def _curve(pieces: Pieces, inputs: Ints, at: Sequence[float], hits_at: Callable[[float], Ints]) -> Curve:
    weights = 1.0 / np.maximum(inputs, 1)[pieces.request]
    hits = [hits_at(point) for point in at]
    total = max(int(inputs.sum()), 1)
    return Curve(
        [float(point) for point in at],
        [round(float(h.sum()) / total, 6) for h in hits],
        [round(float((h * weights).sum()) / max(len(inputs), 1), 6) for h in hits],
    )


def reused_pieces(rows: Sequence[Row], order: Sequence[int], basis: str) -> tuple[Pieces, int]:
    """The pieces of all prompts that an earlier request (in `order`) has used, and the number of distinct tokens."""
    if basis not in ("prompt", "prompt+output"):
        raise InputError(f"unknown hit basis {basis!r}: prompt or prompt+output")
    paths = list(contexts(rows, donor_indices(rows)))
    uses = _Uses(len(rows))
    found: list[tuple[int, int, int, float]] = []
    for time, i in enumerate(order):
        row = rows[i]
        for tokens, user in uses.of(cut(paths[i], row.input_tokens)):
            age = (row.start_s or 0.0) - (rows[order[user]].start_s or 0.0)
            found.append((i, tokens, uses.tokens_since(user), age))
        kept = row.input_tokens + (row.output_tokens if basis == "prompt+output" else 0)
        uses.use(cut(paths[i], kept), kept, time)
    columns = list(zip(*found, strict=True)) if found else [(), (), (), ()]
    request, tokens_, distance = (np.array(column, dtype=np.int64) for column in columns[:3])
    return Pieces(request, tokens_, distance, np.array(columns[3], dtype=np.float64)), uses.total


class _Uses:
    """Who used each token last. Times are 0, 1, 2, …

    By owner (the row in which a token was fresh) the last uses are a staircase: ends that rise as uses get older.
    """

    def __init__(self, n: int) -> None:
        self._stairs: dict[int, list[tuple[int, int]]] = {}  # owner: (end, time), the oldest and longest first
        self._tree = [0] * (n + 1)
        self.total = 0

    def of(self, path: Sequence[Segment]) -> list[tuple[int, int]]:
        """The path's used tokens as (tokens, time of last use), from its start on; what follows was never used."""
        pieces: list[tuple[int, int]] = []
        for owner, start, end in path:
            at = start
            for step, time in reversed(self._stairs.get(owner, ())):
                if step > at:
                    _extend(pieces, min(step, end) - at, time)
                    at = min(step, end)
                if at == end:
                    break
            if at < end:
                break
        return pieces

    def tokens_since(self, time: int) -> int:
        """Distinct tokens whose last use is after `time`."""
        return self.total - self._sum(time + 1)

    def use(self, path: Sequence[Segment], tokens: int, time: int) -> None:
        """All tokens of the path are used at `time`, later than any use before."""
        for count, user in self.of(path):
            self._add(user, -count)
        for owner, _, end in path:
            stairs = self._stairs.setdefault(owner, [])
            while stairs and stairs[-1][0] <= end:
                stairs.pop()
            stairs.append((end, time))
        self._add(time, tokens)

    def _add(self, time: int, tokens: int) -> None:
        self.total += tokens
        at = time + 1
        while at < len(self._tree):
            self._tree[at] += tokens
            at += at & -at

    def _sum(self, times: int) -> int:
        """Of the first `times` times."""
        total = 0
        while times:
            total += self._tree[times]
            times -= times & -times
        return total


def _extend(pieces: list[tuple[int, int]], tokens: int, time: int) -> None:
    if pieces and pieces[-1][1] == time:
        tokens += pieces.pop()[0]
    pieces.append((tokens, time))
