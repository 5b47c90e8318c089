"""Which request gets which planned hit: a bucket, and a rank inside of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pddbench.errors import InputError
from pddbench.trace.quota.histogram import Positions, positions_for_mean
from pddbench.trace.quota.lengths import Draw, Floats, quantiles, sample
from pddbench.trace.quota.spec import QuotaSpec
from pddbench.trace.quota.structure import LOW_BELOW, Ints, Role, Structure, low_turns

_SINGULAR_REACH = 0.95  # of the first bucket's upper edge: a singular request hits less than this


@dataclass
class Assigned:
    """Planned hits as columns, shape (n,); `fixed` slots (cold roots, singular ones) have their lengths already."""

    bucket: Ints
    rank: Floats
    fixed: npt.NDArray[np.bool_]
    fixed_input: Ints  # of singular slots, else 0
    fixed_hit: Ints
    low: npt.NDArray[np.bool_]
    cap: Floats  # a hit is not above this, so that the reply before it fits
    positions: Positions

    def hits(self, edges: Sequence[float]) -> Floats:
        """The planned share of each slot that is not fixed (of the others: 0)."""
        return np.where(self.fixed, 0.0, np.minimum(self.cap, self.positions.hits(self.bucket, self.rank, edges)))


def assign(structure: Structure, counts: Sequence[int], spec: QuotaSpec, draw: Draw) -> Assigned:
    """Hand the hits of `counts` out to the slots; `InputError` if they cannot have this mean or this structure."""
    inputs, hits = _singular_lengths(structure, spec, draw)
    singular = structure.role == Role.SINGULAR
    fixed = structure.cold | singular
    _check_first_bucket(int(structure.cold.sum()), int(singular.sum()), counts, spec)
    shares = float((hits[singular] / np.maximum(inputs[singular], 1)).sum())
    positions = positions_for_mean(spec.mean_hit, counts, spec.edges, int(fixed.sum()), shares)
    pool_bucket = np.repeat(np.arange(len(counts)), [counts[0] - int(fixed.sum()), *counts[1:]])
    pool_rank = np.concatenate([draw.strata(n) for n in np.bincount(pool_bucket, minlength=len(counts)).tolist()])
    bucket, rank = np.zeros(len(fixed), dtype=np.int64), np.full(len(fixed), 0.5)
    place = _places(structure, positions.hits(pool_bucket, pool_rank, spec.edges), pool_bucket, spec, draw)
    bucket[~fixed], rank[~fixed] = pool_bucket[place], pool_rank[place]
    low = ~fixed & _low_buckets(spec)[bucket]
    return Assigned(bucket, rank, fixed, inputs, hits, low, np.full(len(fixed), np.inf), positions)


def _low_buckets(spec: QuotaSpec) -> npt.NDArray[np.bool_]:
    ends = np.asarray(spec.edges[1:])
    low: npt.NDArray[np.bool_] = ends <= LOW_BELOW + 1e-9
    low[0] = True
    return low


def _singular_lengths(structure: Structure, spec: QuotaSpec, draw: Draw) -> tuple[Ints, Ints]:
    """Input and hit tokens of the singular slots (0 elsewhere): their system prompt, if that is not too much."""
    n, block = len(structure.role), spec.block_tokens
    inputs, hits = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    singular = structure.role == Role.SINGULAR
    drawn = sample(spec.singular.input, int(singular.sum()), draw)
    inputs[singular] = np.maximum(block, np.round(drawn / block).astype(np.int64) * block)
    most = np.floor(_SINGULAR_REACH * spec.edges[1] * inputs / block).astype(np.int64) * block
    hits[singular] = np.minimum(structure.system_tokens, most)[singular]
    return inputs, hits


def _check_first_bucket(cold: int, singular: int, counts: Sequence[int], spec: QuotaSpec) -> None:
    if cold + singular <= counts[0]:
        return
    raise InputError(
        f"the first bucket [0, {spec.edges[1]:g}) gets {counts[0]:,} of {sum(counts):,} requests, but {singular:,} "
        f"singular ones and {cold:,} that start a system prompt or a session of their own must be in it: raise its "
        "share, or lower singular.share, system.count, system.cold_share or the number of sessions"
    )


def _places(structure: Structure, hits: Floats, bucket: Ints, spec: QuotaSpec, draw: Draw) -> Ints:
    """By slot that is not fixed, in order: the number of its hit in the pool."""
    roles = structure.role[(structure.role == Role.ROOT) | (structure.role == Role.TURN)]
    tokens = structure.system_tokens[(structure.role == Role.ROOT) | (structure.role == Role.TURN)]
    is_root = roles == Role.ROOT
    is_low = _low_buckets(spec)[bucket]
    taken = _for_roots(tokens[is_root], hits, is_low, spec, draw)
    left = np.ones(len(hits), dtype=np.bool_)
    left[taken] = False
    place = np.empty(len(roles), dtype=np.int64)
    place[is_root] = taken
    low, high = np.flatnonzero(left & is_low), np.flatnonzero(left & ~is_low)
    falls_low = low_turns(int((~is_root).sum()), len(low), spec.low_lag1, draw)
    turns = np.empty(len(falls_low), dtype=np.int64)
    turns[falls_low], turns[~falls_low] = low[draw.permutation(len(low))], high[draw.permutation(len(high))]
    place[~is_root] = turns
    return place


def _for_roots(tokens: Ints, hits: Floats, is_low: npt.NDArray[np.bool_], spec: QuotaSpec, draw: Draw) -> Ints:
    """For each shared root the hit that brings its length, system prompt / hit, nearest to one drawn from the law.

    Low hits go first; when there are none left, the lowest of the others (a short prompt after the system prompt).
    """
    lengths = quantiles(spec.input, draw.strata(len(tokens)))
    order = np.argsort(hits, kind="stable")
    pool = [int(i) for i in order if is_low[i]]
    rest = [int(i) for i in order if not is_low[i]]
    values = [float(hits[i]) for i in pool]
    taken = []
    for wanted in (tokens / lengths).tolist():
        if not pool:
            taken.append(rest.pop(0))
            continue
        at = min(bisect_left(values, wanted), len(values) - 1)
        if at and wanted - values[at - 1] < values[at] - wanted:
            at -= 1
        values.pop(at)
        taken.append(pool.pop(at))
    return np.array(taken, dtype=np.int64)


def swap_upwards(assigned: Assigned, turns: Sequence[int], contexts: Sequence[int], draw: Draw) -> int:
    """Give each of `turns` the hit of a turn of a lower bucket on a longer context; how many found one.

    `contexts`: by slot, tokens of the prompt that it appends to, 0 where it does not. Low turns are left alone.
    """
    context, swapped = np.asarray(contexts, dtype=np.int64), 0
    high = np.flatnonzero((context > 0) & ~assigned.low & ~assigned.fixed)
    order = high[np.argsort(context[high], kind="stable")]
    for turn in turns:
        longer = order[np.searchsorted(context[order], context[turn] * 1.2) :]
        lower = longer[assigned.bucket[longer] < assigned.bucket[turn]]
        if len(lower):
            other = int(lower[draw.below(len(lower))])
            for column in (assigned.bucket, assigned.rank):
                column[turn], column[other] = column[other], column[turn]
            assigned.cap[[turn, other]] = np.inf
            swapped += 1
    return swapped
