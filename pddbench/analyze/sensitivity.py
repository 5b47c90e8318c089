"""How far a benefit-cost ratio depends on prices: a grid, the prices at which two arms are even, equal cost.

Capacities are those measured (`capacity.json`); prices are varied, capacities stay, so every cell is exact and has the
interval of the capacities behind it. What changes the capacities themselves (hit rate, count of relays) cannot be read
off one search: `balance` gives the fluid bound, `pddbench capacity --splits` and runs at other hits measure it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pddbench.analyze import capacity
from pddbench.analyze.capacity import Estimate, Ratio
from pddbench.analyze.economy import RLD_TOKENS

Roles = Mapping[str, Mapping[str, Any]]


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """An arm's measured capacity and what it is made of."""

    name: str
    estimate: Estimate
    roles: dict[str, dict[str, Any]]
    uses_line: bool


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """BCR of an arm / of the reference at a price ratio (second chip / first) and a price of the line (first chips)."""

    price_ratio: float
    line: float
    bcr_ratio: Ratio


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """An arm against the reference.

    `even_price_ratio`: where both are even at the line's own price, `even_line`: at the chips' own prices; null: at
    no price above 0.
    """

    arm: str
    against: str
    cells: list[Cell]
    even_price_ratio: float | None
    even_line: float | None
    equal_cost_rate: Ratio


def chips(roles: Roles) -> dict[str, float]:
    """Chips of each kind."""
    out: dict[str, float] = {}
    for role in roles.values():
        out[str(role["chip"])] = out.get(str(role["chip"]), 0.0) + float(role["count"])
    return out


def cost(deployment: Deployment, prices: Mapping[str, float], line: float) -> float:
    """Cost an hour at these prices."""
    total = sum(count * prices[chip] for chip, count in chips(deployment.roles).items())
    return total + (line if deployment.uses_line else 0.0)


def grid(
    of: Deployment, to: Deployment, prices: Mapping[str, float], line: float,
    ratios: Sequence[float] = (0.8, 1.0, 1.2, 1.3, 1.5, 2.0), lines: Sequence[float] = (0.0, 0.35, 1.0, 2.0, 5.0),
) -> Grid:  # fmt: skip
    """`of` against `to` over price ratios of the second kind of chip to the first, and prices of the line.

    The first kind is the reference arm's first; ratios and lines are in its price.
    """
    kinds = [*dict.fromkeys([*chips(to.roles), *chips(of.roles)])]
    base = prices[kinds[0]]

    def at(ratio: float | None, line_price: float) -> tuple[float, float]:
        own = {kind: prices[kind] if ratio is None or i == 0 else base * ratio for i, kind in enumerate(kinds)}
        return cost(of, own, line_price), cost(to, own, line_price)

    cells = []
    for ratio in ratios if len(kinds) > 1 else (1.0,):
        for price in lines:
            mine, other = at(ratio, price * base)
            cells.append(
                Cell(price_ratio=ratio, line=price, bcr_ratio=capacity.ratio(of.estimate, to.estimate, other / mine))
            )
    mine, other = at(None, line)
    return Grid(
        arm=of.name,
        against=to.name,
        cells=cells,
        even_price_ratio=_even(lambda x: at(x, line), of, to) if len(kinds) > 1 else None,
        even_line=_even(lambda x: at(None, x * base), of, to),
        equal_cost_rate=_scaled(to.estimate, mine / other),
    )


def _even(costs: Any, of: Deployment, to: Deployment) -> float | None:
    """The price at which both have the same BCR: costs are linear in it, so two points give it."""
    gain = float(of.estimate.rate or 0.0) / float(to.estimate.rate or 1.0)

    def excess(x: float) -> float:
        mine, other = costs(x)
        return float(gain * other - mine)

    at_zero, slope = excess(0.0), excess(1.0) - excess(0.0)
    if slope == 0:
        return None
    even = -at_zero / slope
    return even if even > 0 else None


def _scaled(found: Estimate, factor: float) -> Ratio:
    """A capacity times a factor: what the same design would do with that much more money, in whole multiples of it."""
    return capacity.times(Ratio(point=found.rate, low=found.low, high=found.high), factor)


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """Fluid bound of throughput of a split / of its reference at a hit and a count of relays."""

    hit: float
    relays: int
    throughput_ratio: float


def balance(
    prefill_s: Mapping[float, float], decode_s: float, beta: float, *, near: int, far: int, reference: int,
    relays: Sequence[int], rld_tokens: float = RLD_TOKENS,
) -> list[Balance]:  # fmt: skip
    """The bound over hits (`prefill_s`: hit -> seconds a request) and counts of relays among the `near` chips.

    `decode_s`: seconds of one A a request's decode takes; `beta`: decode of a B / of an A. Relays do `rld_tokens` of
    the decode and no prefill, the other near chips prefill, the far ones do the rest; the slowest decides. The
    reference shares its chips freely between both.
    """
    out = []
    for hit, prefill in prefill_s.items():
        for count in relays:
            parts = (
                (near - count) / prefill,
                count / (rld_tokens * decode_s),
                far * beta / ((1 - rld_tokens) * decode_s),
            )
            out.append(Balance(hit=hit, relays=count, throughput_ratio=min(parts) * (prefill + decode_s) / reference))
    return out
