"""BCR, cost and revenue over the hit rate, from capacities measured at each (`hits.json`), at given prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from pddbench.analyze import capacity, sensitivity
from pddbench.analyze.capacity import Ratio
from pddbench.analyze.money import CACHED_PRICE, OUTPUT_PRICE
from pddbench.analyze.sensitivity import Deployment
from pddbench.errors import InputError

if TYPE_CHECKING:
    from pddbench.runner.capacity_hits import HitRow, Hits

UNSEEDED = "arrival = 'constant': a seed changes nothing"


class HitPoint(msgspec.Struct, kw_only=True):
    """A deployment at a hit: sessions a unit of currency (`bcr`), that / the best of the first arm at the same hit
    (`against`), cost of a million tokens, what a chip earns in an hour in prices of a million un-hit input tokens.
    """

    hit: float
    arm: str
    of: str
    best: bool
    bcr: Ratio
    against: Ratio | None
    mtok: Ratio | None
    revenue_chip_hour: Ratio | None


class LeftOut(msgspec.Struct, kw_only=True):
    """A deployment that cannot be the best of its arm at a hit: it has no capacity (so no figures), or no interval."""

    hit: float
    arm: str
    why: str


class OverHits(msgspec.Struct, kw_only=True):
    """`even_hit`: by arm, hits at which its best deployment is even with the first arm's best (interpolated);
    without arms that are compared at no hit.

    `valley_hit`: by arm, the hit at which a chip earns least; `break_even_hit`: from where it earns as much as at the
    lowest hit again; null: not within the hits. `seeded`: false where no seed changes the arrivals, so that the best of
    an arm's deployments was not measured anew and may be too high by luck.
    """

    first: str
    measured: str
    seeded: bool
    prices: dict[str, float]
    line: float
    points: list[HitPoint]
    even_hit: dict[str, list[float]]
    valley_hit: dict[str, float]
    break_even_hit: dict[str, float | None]
    left_out: list[LeftOut] = []


def over_hits(found: Hits, prices: Mapping[str, float], line: float) -> OverHits:
    """Everything over the hit rate at these prices; capacities stay as measured."""
    rows = [row for row in found.rows if row.estimate.rate is not None]
    first = {row.hit: row for row in rows if row.of == found.first and _is_best(row)}
    points = [_point(row, first.get(row.hit), prices, line) for row in rows]
    arms = dict.fromkeys(point.of for point in points)
    best = {of: sorted((p for p in points if p.of == of and p.best), key=lambda one: one.hit) for of in arms}
    valleys = {of: _valley(line_) for of, line_ in best.items()}
    return OverHits(
        first=found.first, measured=found.measured, seeded=found.seeded, prices=dict(prices), line=line, points=points,
        even_hit={of: _even(line_) for of, line_ in best.items() if of != found.first and _compared(line_)},
        valley_hit={of: valley for of, (valley, _) in valleys.items() if valley is not None},
        break_even_hit={of: even for of, (_, even) in valleys.items()},
        left_out=[
            LeftOut(hit=row.hit, arm=row.arm, why=row.estimate.why or "its interval is withheld")
            for row in found.rows if row.estimate.rate is None or not _has_interval(row)
        ],
    )  # fmt: skip


def _has_interval(row: HitRow) -> bool:
    return row.estimate.low is not None or row.estimate.high is not None


def _is_best(row: HitRow) -> bool:
    """Whether the best of its arm is told: a figure without any interval may be anything."""
    return row.best and _has_interval(row)


def _point(row: HitRow, first: HitRow | None, prices: Mapping[str, float], line: float) -> HitPoint:
    cost = _cost(row, prices, line)
    knee = Ratio(point=row.estimate.rate, low=row.estimate.low, high=row.estimate.high)
    against = None
    if first is not None and first is not row:
        against = capacity.ratio(row.estimate, first.estimate, _cost(first, prices, line) / cost)
    prompt, cached, output = (row.input_tokens_a_session, row.cached_tokens_a_session, row.output_tokens_a_session)
    mtok = revenue = None
    if prompt is not None and cached is not None and output is not None and prompt + output > 0:
        mtok = capacity.inverse(knee, cost / 3600 / (prompt + output) * 1e6)
        worth = prompt - cached + CACHED_PRICE * cached + OUTPUT_PRICE * output
        chips = sum(float(role["count"]) for role in row.roles.values())
        revenue = capacity.times(knee, worth * 3600 / 1e6 / chips)
    return HitPoint(hit=row.hit, arm=row.arm, of=row.of, best=_is_best(row), bcr=capacity.times(knee, 3600 / cost),
                    against=against, mtok=mtok, revenue_chip_hour=revenue)  # fmt: skip


def _cost(row: HitRow, prices: Mapping[str, float], line: float) -> float:
    one = Deployment(name=row.arm, estimate=row.estimate, roles=row.roles, uses_line=row.uses_line)
    missing = set(sensitivity.chips(row.roles)) - set(prices)
    if missing:
        raise InputError(f"no price for chip {', '.join(sorted(missing))}: give --price {sorted(missing)[0]}=2.0")
    return sensitivity.cost(one, prices, line)


def _compared(points: list[HitPoint]) -> bool:
    return any(p.against is not None and p.against.point is not None for p in points)


def _even(points: list[HitPoint]) -> list[float]:
    """Hits at which the ratio to the first arm crosses 1, linear between two."""
    known = [(p.hit, p.against.point) for p in points if p.against is not None and p.against.point is not None]
    return [h0 + (h1 - h0) * (1 - r0) / (r1 - r0) for (h0, r0), (h1, r1) in pairwise(known) if (r0 - 1) * (r1 - 1) < 0]


def _valley(points: list[HitPoint]) -> tuple[float | None, float | None]:
    """The hit of least revenue, and where it is as high as at the lowest hit again (None: not within)."""
    earned = [(p.hit, p.revenue_chip_hour.point) for p in points if p.revenue_chip_hour is not None]
    values = [(hit, value) for hit, value in earned if value is not None]
    if not values:
        return None, None
    valley = min(values, key=lambda one: one[1])[0]
    start = values[0][1]
    if valley == values[0][0]:
        return valley, None
    later = [(hit, value) for hit, value in values if hit >= valley]
    for (h0, v0), (h1, v1) in pairwise(later):
        if v0 < start <= v1:
            return valley, h0 + (h1 - h0) * (start - v0) / (v1 - v0)
    return valley, None


def show(found: Hits, folder: Path, prices: Mapping[str, float], line: float, *, as_json: bool) -> None:
    """Print the answer over hits."""
    answer = over_hits(found, prices, line)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        return
    for text in lines(answer, found.currency):
        click.echo(text)


def lines(answer: OverHits, currency: str) -> Iterator[str]:
    """A row a deployment and hit, then where arms are even and where revenue has its valley."""
    anew = ", measured anew where it had rivals" if answer.seeded else ""
    yield (
        f"over the hit rate ({answer.measured}; * best of its arm{anew}): BCR in sessions/{currency}, against "
        f"the best {answer.first} at the same hit, {currency} a million tokens, a chip's income an hour"
    )
    for point in sorted(answer.points, key=lambda one: (one.hit, not one.best, one.arm)):
        yield (
            f"  {100 * point.hit:>5.1f}%  {('*' if point.best else ' ') + point.arm:<20} {_figure(point.bcr):>24}  "
            f"×{_figure(point.against):<22} {_figure(point.mtok):>26}  {_figure(point.revenue_chip_hour):>22}"
        )
    for one in answer.left_out:
        yield f"  left out of the best at {100 * one.hit:.1f}%: {one.arm} ({one.why})"
    if not any(point.best for point in answer.points):
        yield "  no arm has an interval at any hit: none is best, and where arms are even is not told"
    elif not answer.seeded:
        yield f"  {UNSEEDED}, so the best (*) were not measured a second time: of several the highest may be so by luck"
    for of, hits in answer.even_hit.items():
        where = ", ".join(f"{100 * hit:.1f}%" for hit in hits) or "at none of these hits"
        yield f"  {of} even with {answer.first}: {where}"
    for of, valley in answer.valley_hit.items():
        even = answer.break_even_hit[of]
        again = "not again within them" if even is None else f"again as much as at the lowest from {100 * even:.1f}% on"
        yield f"  a chip of {of} earns least at {100 * valley:.1f}%, {again} (cached tokens at {CACHED_PRICE:g})"


def _figure(one: Ratio | None) -> str:
    if one is None or one.point is None:
        return "–"
    ends = ("–" if end is None else f"{end:.3g}" for end in (one.low, one.high))
    return f"{one.point:.3g} [{', '.join(ends)}]"
