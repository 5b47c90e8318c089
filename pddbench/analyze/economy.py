"""Arithmetic of cost and throughput: benefit-cost ratio, the line a claim implies, and a balance of two clusters.

Everything here is exact given its inputs; nothing is measured. The balance is a fluid bound: every instance always
busy, no queue, no tail, so it says where a gain is possible and never that a deployment has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

RLD_TOKENS = 0.062  # share of output tokens that RLD makes (claim C9): decode work that stays on the first chip


def bcr_gain(throughput_ratio: float, cost_ratio: float) -> float:
    """Benefit-cost ratio against the reference: (throughput ratio) / (cost ratio). 1.376 is "+37.6%"."""
    return throughput_ratio / cost_ratio


def cost_per_request_change(gain: float) -> float:
    """Relative change of the cost of a request that a BCR gain means: 1/gain - 1. 1.376 is -27.3%."""
    return 1 / gain - 1


def implied_line(reference: float, cost_ratio: float, parts: Sequence[tuple[float, float]]) -> float:
    """Price of the line that makes the cost ratio come out, in the price of one reference chip.

    `reference`: chips of the reference deployment; `parts`: (count, relative price) of the other's chips.
    """
    return cost_ratio * reference - sum(count * price for count, price in parts)


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """Chips of a split deployment: `near` of kind A (prefill and relay), `far` of kind B (main decode)."""

    reference: float = 88.0
    near: float = 43.0
    far: float = 32.0
    rld_tokens: float = RLD_TOKENS


def throughput_ratio(rho: float, beta: float, split: Split) -> float:
    """Requests a second of the split deployment / of the reference one, each in its best balance.

    `rho`: seconds of prefill a request / seconds of decode a request, both on A. `beta`: decode of a B / of an A at
    the objective. The reference shares its chips freely between both; in the split one A does all prefill and the
    relay's share of the decode, B the rest. With d = 1 (decode seconds on A a request):
    reference / (rho + 1) against min(near / (rho + s), far x beta / (1 - s)).
    """
    share = split.rld_tokens
    reference = split.reference / (rho + 1)
    near = split.near / (rho + share)
    far = split.far * beta / (1 - share)
    return min(near, far) / reference


def rho_limit(gain: float, split: Split) -> float:
    """Largest rho at which the near cluster still reaches `gain`; inf when it always does, NaN when never."""
    slope = split.near / (gain * split.reference)
    if slope >= 1:
        return math.inf
    limit = (slope - split.rld_tokens) / (1 - slope)
    return limit if limit >= 0 else math.nan


def beta_needed(gain: float, rho: float, split: Split) -> float:
    """Least beta at which the far cluster reaches `gain` at this rho."""
    return gain * split.reference * (1 - split.rld_tokens) / (split.far * (1 + rho))
