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

_FIRST_REACH = 0.95  # of the first bucket's upper edge: singular requests and roots of given length hit less


@dataclass
class Assigned:
    """Planned hits as columns, shape (n,).

    `fixed` slots have their hit already: none (cold ones), or what their lengths give (singular ones, most roots).
    """

    bucket: Ints
    rank: Floats
    fixed: npt.NDArray[np.bool_]
    singular: npt.NDArray[np.bool_]
    fixed_input: Ints  # of fixed slots that are not cold, else 0
    fixed_hit: Ints
    low: npt.NDArray[np.bool_]
    cap: Floats  # a hit is not above this, so that the reply before it fits
    positions: Positions

    def hits(self, edges: Sequence[float]) -> Floats:
        """The planned share of each slot that is not fixed (of the others: 0)."""
        return np.where(self.fixed, 0.0, np.minimum(self.cap, self.positions.hits(self.bucket, self.rank, edges)))


def assign(structure: Structure, counts: Sequence[int], spec: QuotaSpec, draw: Draw) -> Assigned:
    """Hand the hits of `counts` out to the slots; `InputError` if they cannot have this mean or this structure.

    A root on a shared system prompt hits what its length, drawn from the law, makes of it. If the other hits cannot
    make up for that, roots take hits of the histogram too, and their lengths follow.
    """
    inputs, hits = _singular_lengths(structure, spec, draw)
    with_roots = _root_lengths(structure, inputs, hits, spec, draw)
    try:
        return _assign(structure, counts, spec, with_roots, draw)
    except InputError:
        return _assign(structure, counts, spec, (inputs, hits), draw)


def _assign(
    structure: Structure, counts: Sequence[int], spec: QuotaSpec, lengths: tuple[Ints, Ints], draw: Draw
) -> Assigned:
    inputs, hits = lengths
    singular = structure.role == Role.SINGULAR
    fixed = structure.cold | (inputs > 0)
    _check_first_bucket(int(fixed.sum()), int(singular.sum()), counts, spec)
    shares = float((hits[inputs > 0] / inputs[inputs > 0]).sum())
    positions = positions_for_mean(spec.mean_hit, counts, spec.edges, int(fixed.sum()), shares)
    pool_bucket = np.repeat(np.arange(len(counts)), [counts[0] - int(fixed.sum()), *counts[1:]])
    pool_rank = np.concatenate([draw.strata(n) for n in np.bincount(pool_bucket, minlength=len(counts)).tolist()])
    bucket, rank = np.zeros(len(fixed), dtype=np.int64), np.full(len(fixed), 0.5)
    pool_hits = positions.hits(pool_bucket, pool_rank, spec.edges)
    place = _places(structure, fixed, pool_hits, _low_buckets(spec)[pool_bucket], spec, draw)
    bucket[~fixed], rank[~fixed] = pool_bucket[place], pool_rank[place]
    low = ~fixed & _low_buckets(spec)[bucket]
    return Assigned(bucket, rank, fixed, singular, inputs, hits, low, np.full(len(fixed), np.inf), positions)


def _root_lengths(structure: Structure, inputs: Ints, hits: Ints, spec: QuotaSpec, draw: Draw) -> tuple[Ints, Ints]:
    """`inputs` and `hits` with those of the roots for which the system prompt is a share inside the first bucket."""
    inputs, hits, block = inputs.copy(), hits.copy(), spec.block_tokens
    roots = np.flatnonzero(structure.role == Role.ROOT)
    lengths = np.round(quantiles(spec.input, draw.strata(len(roots))) / block).astype(np.int64) * block
    tokens = structure.system_tokens[roots]
    fits = (tokens < _FIRST_REACH * spec.edges[1] * lengths) & (lengths >= tokens + spec.min_fresh_tokens)
    inputs[roots[fits]], hits[roots[fits]] = lengths[fits], tokens[fits]
    return inputs, hits


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
    most = np.floor(_FIRST_REACH * spec.edges[1] * inputs / block).astype(np.int64) * block
    hits[singular] = np.minimum(structure.system_tokens, most)[singular]
    return inputs, hits


def _check_first_bucket(fixed: int, singular: int, counts: Sequence[int], spec: QuotaSpec) -> None:
    if fixed <= counts[0]:
        return
    raise InputError(
        f"the first bucket [0, {spec.edges[1]:g}) gets {counts[0]:,} of {sum(counts):,} requests, but {singular:,} "
        f"singular ones and {fixed - singular:,} that start a system prompt or a session of their own must be in it: "
        "raise its share, or lower singular.share, system.count, system.cold_share or the number of sessions"
    )


def _places(
    structure: Structure,
    fixed: npt.NDArray[np.bool_],
    hits: Floats,
    is_low: npt.NDArray[np.bool_],
    spec: QuotaSpec,
    draw: Draw,
) -> Ints:
    """By slot that is not fixed, in order: the number of its hit in the pool."""
    roles, tokens = structure.role[~fixed], structure.system_tokens[~fixed]
    is_root = roles == Role.ROOT
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
