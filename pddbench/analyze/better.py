"""Is B better than A? An effect, its interval, the smallest difference this run could see, what pairing bought."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from pddbench.analyze.intervals import Figure, as_float, draws_interval, number
from pddbench.analyze.quantiles import Floats, Weights, session_weights
from pddbench.analyze.samples import DRAWS, SEED

if TYPE_CHECKING:
    from pddbench.analyze.paired import Pair

KEYS = ("ttft_sched.p50", "ttft_sched.p90", "ttft_sched.p99", "second_sched.p90", "e2e_sched.p50", "e2e_sched.p90",
        "session_completion.p50", "slo_attainment.share")  # fmt: skip
_Z = 1.959964
_POWER_Z = 0.841621  # of 80%: a difference of this size would be seen in four runs of five


class Better(msgspec.Struct, kw_only=True):
    """One figure of arm B against arm A, sessions resampled jointly.

    `effect`: B - A. `ratio`: B / A. `visible`: the smallest difference that a run like this one sees four times in
    five; null where there is no interval. `pairing`: width of the interval had the arms not seen the same requests,
    over that with pairing; squared, it is how many times the sessions an unpaired run would have needed.
    """

    verdict: Literal["better", "worse", "no difference seen", "withheld"]
    effect: Figure
    ratio: Figure
    visible: float | None = None
    pairing: float | None = None


def better(pair: Pair, key: str) -> Better:
    """Whether arm b of the pair is better than arm a in `METRIC.STAT`."""
    name, stat = key.split(".", 1)
    effect = pair.difference(name, stat)
    ratio = Figure(unit="", rows=effect.rows, sessions=effect.sessions, withheld=effect.withheld)
    if effect.withheld:
        return Better(verdict="withheld", effect=effect, ratio=ratio)
    a, b = pair.a.draws(name, stat), pair.b.draws(name, stat)
    with np.errstate(divide="ignore", invalid="ignore"):  # inf - inf and inf / inf are not numbers, and count as such
        point = np.float64(pair.b.point(name, stat)) / pair.a.point(name, stat)
        low, high = draws_interval(b / a, float(point))
        width = _width(b - a)
    ratio.point, ratio.low, ratio.high = number(float(point)), number(low), number(high)
    return Better(
        verdict=_verdict(effect, higher_is_better=name == "slo_attainment"),
        effect=effect,
        ratio=ratio,
        visible=None if width is None else (_Z + _POWER_Z) * width / (2 * _Z),
        pairing=_pairing(pair, name, stat, a, width),
    )


def _width(draws: Floats) -> float | None:
    low, high = draws_interval(draws)
    if low is None or high is None or not math.isfinite(high - low):
        return None
    return high - low


def _pairing(pair: Pair, name: str, stat: str, a: Floats, width: float | None) -> float | None:
    """The unpaired width over the paired one: arm b resampled with weights of its own."""
    if not width:
        return None
    own = pair.b.draws(name, stat, _own_weights(len(pair.b.sessions)))
    with np.errstate(invalid="ignore"):
        apart = _width(own - a)
    return None if apart is None else apart / width


@lru_cache(maxsize=1)
def _own_weights(sessions: int) -> Weights:
    return session_weights(sessions, DRAWS, SEED + 1)


def _verdict(effect: Figure, *, higher_is_better: bool) -> Literal["better", "worse", "no difference seen"]:
    low, high = as_float(effect.low), as_float(effect.high)
    if not (low > 0 or high < 0):
        return "no difference seen"
    return "better" if (low > 0) == higher_is_better else "worse"
