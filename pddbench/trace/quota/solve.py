"""Repeat prompts and replies until the means are met: mean hit, mean input, and a reply that fits everywhere.

Three things are adjusted between passes, none of which moves a request to another bucket: where in their buckets hits
lie, the lengths of the prompts that are free to choose (roots of their own, edited contexts), and the hits that leave
too little room for a reply.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from pddbench.errors import InputError
from pddbench.trace.quota.assign import Assigned, swap_upwards
from pddbench.trace.quota.histogram import REACH
from pddbench.trace.quota.lengths import Draw, Floats, longest, quantiles, sample
from pddbench.trace.quota.outputs import Matched, infeasible, match, slacks
from pddbench.trace.quota.prompts import Builder, Prompts
from pddbench.trace.quota.spec import Law, QuotaSpec
from pddbench.trace.quota.structure import Role, Structure

INPUT_TOLERANCE = (0.005, 0.015)  # relative, of the mean input: wanted, and accepted after half of the passes
HIT_TOLERANCE = 0.0002  # absolute, of the mean hit
_PASSES = 80
_SHAPING_PASSES = 10  # the first ones bring the whole law of lengths near, the others only its mean
_SWAPPING_PASSES = 25
_GRID = (np.arange(33) + 0.5) / 33


class Unsettled(InputError):
    """The passes did not meet the means: another arrangement of the same requests may."""


@dataclass
class Solved:
    """The requests of a structure: prompts, and replies by slot."""

    prompts: Prompts
    outputs: list[int]


@dataclass
class Resets:
    """The law of the lengths that are free to choose, as logarithms at `_GRID`.

    Kept from one part of a trace to the next, so that later parts need fewer passes.
    """

    logs: Floats | None = None


def solve(spec: QuotaSpec, structure: Structure, assigned: Assigned, resets: Resets, draw: Draw) -> Solved:
    """Lengths for every slot; `InputError` says what cannot be reached."""
    law = _law_of_the_rest(spec, assigned)
    wanted = np.log(np.maximum(quantiles(law, _GRID), 1.0))
    resets.logs = wanted.copy() if resets.logs is None else resets.logs
    columns = tuple(c.tolist() for c in (assigned.bucket, assigned.fixed_input, assigned.fixed_hit))
    builder = Builder.drawn(spec, structure, columns, assigned.low.tolist(), draw)
    rank = _reset_ranks(structure, assigned, draw)
    replies = _replies(spec, len(rank), draw)
    previous, failures = structure.previous.tolist(), 0
    error_input, error_hit, gain = 0.0, 0.0, 1.0
    for number in range(_PASSES):
        made = builder.build(assigned.hits(spec.edges), np.exp(np.interp(rank, _GRID, resets.logs)))
        inputs = np.array(made.inputs, dtype=np.float64)
        limits = slacks(made, previous, builder.bucket, spec)
        matched = match(limits, replies, spec, draw)
        for turn, share in matched.lowered.items():
            assigned.cap[turn] = share
        settled = not (matched.lowered or matched.failing or made.misfits)
        if matched.failing or made.misfits:
            failures += 1
            if not _make_room(matched, made, assigned, builder, draw) or failures > _SWAPPING_PASSES:
                raise Unsettled(builder.too_short(made) if made.misfits else infeasible(limits, replies))
        before = error_input
        error_input = float(inputs.mean()) / _mean_input(spec, law, assigned) - 1
        error_hit = float((np.array(made.hits) / inputs).mean()) - spec.mean_hit
        if settled and abs(error_input) < INPUT_TOLERANCE[2 * number >= _PASSES] and abs(error_hit) < HIT_TOLERANCE:
            return Solved(made, matched.outputs)
        if number == _SHAPING_PASSES:
            builder.keep_kinds(made)
        _shift_hits(assigned, -error_hit, spec)
        found = (
            np.log(np.quantile(inputs[structure.role != Role.SINGULAR], _GRID)) if number < _SHAPING_PASSES else None
        )
        gain *= 0.7 if found is None and error_input * before < 0 else 1.0  # it went past the mean: smaller steps
        resets.logs = _shifted(resets.logs, wanted, found, gain * error_input, spec)
    raise _out_of_reach(spec, error_input, error_hit)


def _law_of_the_rest(spec: QuotaSpec, assigned: Assigned) -> Law:
    """The law of input lengths with the mean that is left for the requests that are not singular."""
    singular = assigned.singular
    n, law = len(singular), spec.input
    if law.mean is None or not singular.any() or singular.all():
        return law
    mean = (law.mean * n - float(assigned.fixed_input[singular].sum())) / (n - int(singular.sum()))
    if not law.min < mean < law.max:
        raise InputError(
            f"a mean input of {law.mean:,.0f} leaves {mean:,.0f} for the requests that are not singular, but input.min "
            f"is {law.min:,.0f}: lower singular.share or singular.input, or raise input.mean"
        )
    return msgspec.structs.replace(law, mean=mean)


def _mean_input(spec: QuotaSpec, law: Law, assigned: Assigned) -> float:
    """The mean input of all requests: as given, or that of the law where only its quantiles are given."""
    if spec.input.mean is not None:
        return spec.input.mean
    singular = assigned.singular
    rest = float(quantiles(law, (np.arange(4096) + 0.5) / 4096).mean())
    return (rest * float((~singular).sum()) + float(assigned.fixed_input[singular].sum())) / len(singular)


def _replies(spec: QuotaSpec, n: int, draw: Draw) -> list[int]:
    return [max(0, round(tokens)) for tokens in sample(spec.output, n, draw).tolist()]


def _reset_ranks(structure: Structure, assigned: Assigned, draw: Draw) -> Floats:
    """A rank in the law of resets for each slot, spread evenly over those that are likely to use it."""
    free = structure.cold | assigned.low
    rank = draw.strata(len(free))
    rank[free] = draw.strata(int(free.sum()))
    return rank


def _make_room(matched: Matched, made: Prompts, assigned: Assigned, builder: Builder, draw: Draw) -> bool:
    """Move hits that no reply or no whole number of tokens allows to longer contexts; whether any could be moved."""
    contexts = [hit if appends else 0 for hit, appends in zip(made.hits, made.appends, strict=True)]
    turns = {slack.turn for slack in matched.failing if slack.context} | {s for s in made.misfits if contexts[s]}
    moved = swap_upwards(assigned, sorted(turns), contexts, draw)
    builder.bucket[:] = assigned.bucket.tolist()
    return moved > 0


def _shift_hits(assigned: Assigned, by: float, spec: QuotaSpec) -> None:
    """Move the mean hit of all requests by `by`: by the free hits of the first bucket, then by the others."""
    n = len(assigned.bucket)
    first, edges = (assigned.bucket == 0) & ~assigned.fixed, np.asarray(spec.edges)
    total = by * n
    width = int(first.sum()) * (edges[1] - edges[0])
    if width > 0:
        old = assigned.positions.first
        assigned.positions.first = float(np.clip(old + total / width, *REACH))
        total -= (assigned.positions.first - old) * width
    others = float(np.diff(edges)[assigned.bucket[assigned.bucket > 0]].sum())
    if others > 0 and abs(total) > 1e-12:
        assigned.positions.others = float(np.clip(assigned.positions.others + total / others, *REACH))


def _shifted(logs: Floats, wanted: Floats, found: Floats | None, error_input: float, spec: QuotaSpec) -> Floats:
    """The law of resets for the next pass: nearer to the wanted quantiles, or only to the wanted mean."""
    step = 0.5 * (wanted - found) if found is not None else np.full(len(logs), -np.log1p(error_input))
    limits = np.log(max(spec.input.min, 1.0)), np.log(longest(spec.input))
    shifted: Floats = np.maximum.accumulate(np.clip(logs + step, *limits))
    return shifted


def _out_of_reach(spec: QuotaSpec, error_input: float, error_hit: float) -> Unsettled:
    if abs(error_input) >= INPUT_TOLERANCE[1]:
        side = "above" if error_input > 0 else "below"
        return Unsettled(
            f"the mean input stays {abs(error_input):.1%} {side} the wanted one: with these hits turns grow from, or "
            "fall back to, lengths that the input law does not allow; change input.mean, input.sigma, input.max, "
            "system.tokens or turns"
        )
    return Unsettled(
        f"the mean hit stays at {spec.mean_hit + error_hit:.4f} instead of {spec.mean_hit:g}: replies leave no room in "
        "the highest buckets; lower output.mean or raise input.mean"
    )
