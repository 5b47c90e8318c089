"""Hit rate against efficiency and revenue: dips of tail chunks, and the valley of a bathtub.

Chunked prefill takes `chunk` tokens a step. A prompt whose un-hit part is a little more than k chunks needs a further
step for a few tokens; when all prompts are alike and a tail cannot share its step, efficiency dips there: just below
the hits 1 - k x chunk / length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from pddbench.analyze.quantiles import Floats

DEPTH = 0.01  # a dip is deeper than that share of the trend
_WINDOW = 0.1  # of hit rate, to either side, that makes the trend
NEAR = 0.03  # of hit rate, by which a dip may miss the place of its tail chunk


class Dip(msgspec.Struct, frozen=True):
    """A local minimum of efficiency: where (hit, a share), how deep (a share of the trend).

    `tail_chunk` is k when it lies where a tail after k whole chunks begins; null: something else. `low`, `high`: 95%
    interval of the depth over rounds, null without rounds.
    """

    hit: float
    depth: float
    tail_chunk: int | None
    low: float | None = None
    high: float | None = None


def efficiency(hit: Floats, requests_s: Floats, length: int) -> Floats:
    """Un-hit tokens a second: what prefill achieves; raw requests/s rise with the hit and hide the dips."""
    out: Floats = requests_s * length * (1 - hit)
    return out


def dips(hit: Floats, value: Floats, length: int, chunk: int | None) -> list[Dip]:
    """Local minima of `value` (n,) over `hit` (n, ascending) against its own trend.

    The trend is the median of a window of hits (efficiency also falls or rises smoothly, by attention and fixed cost).
    A dip is deeper than 1% and than four robust deviations of what is left.
    """
    ratio = value / trend(hit, value)
    noise = 1.4826 * float(np.median(np.abs(ratio - np.median(ratio))))
    least = max(DEPTH, 4 * noise)
    found: list[Dip] = []
    for i in range(1, len(ratio) - 1):
        fall = 1 - float(ratio[i])
        if ratio[i] <= ratio[i - 1] and ratio[i] < ratio[i + 1] and fall > least:
            found.append(Dip(float(hit[i]), fall, tail_chunk(float(hit[i]), length, chunk)))
    return found


def trend(hit: Floats, value: Floats) -> Floats:
    """What `value` (n,) is over `hit` (n,) without its dips.

    Theil and Sen's line through each window of +-`_WINDOW`, at its middle: the dips themselves do not move it.
    """
    out = np.empty(len(value))
    for i, at in enumerate(hit):
        near = np.abs(hit - at) <= _WINDOW
        x, y = hit[near] - at, value[near]
        dx, dy = np.subtract.outer(x, x), np.subtract.outer(y, y)
        slope = float(np.median((dy / np.where(dx == 0, np.inf, dx))[dx > 0])) if len(x) > 2 else 0.0
        out[i] = float(np.median(y - slope * x))
    return out


def tail_chunk(hit: float, length: int, chunk: int | None) -> int | None:
    """k when `hit` lies just below 1 - k x chunk / length, within 3 points; else None."""
    if not chunk:
        return None
    for k, place in enumerate(expected_dips(length, chunk), start=1):
        if place - NEAR <= hit <= place + 0.005:
            return k
    return None


def expected_dips(length: int, chunk: int) -> list[float]:
    """Hits at which a tail after k = 1, 2, … whole chunks vanishes: the dip lies just below each."""
    return [1 - k * chunk / length for k in range(1, math.ceil(length / chunk))]


class Law(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill seconds of a request: fixed + u / tokens_s + attention x u x (H + u/2), u un-hit tokens on H hit ones.

    `chunk` and `step_s`: a further fixed cost of each chunk's step. 0: none.
    """

    fixed_s: float
    tokens_s: float
    attention_s: float = 0.0
    chunk: int = 0
    step_s: float = 0.0

    def seconds(self, length: int, hit: float) -> float:
        """Prefill seconds of a prompt of `length` tokens at a hit."""
        fresh = length * (1 - hit)
        steps = math.ceil(fresh / self.chunk) if self.chunk else 0
        linear = self.fixed_s + fresh / self.tokens_s + steps * self.step_s
        return linear + self.attention_s * fresh * (length * hit + fresh / 2)


class Revenue(msgspec.Struct, frozen=True, kw_only=True):
    """Revenue a GPU-second over hits, in units of (price of an un-hit input token) x tokens a second.

    `valley`: the hit at which it is lowest; `is_bathtub`: it falls before and rises after. `break_even`: the hit above
    the valley from which on it exceeds that at no hit; null: never, or there is no valley.
    """

    hit: list[float]
    value: list[float]
    valley: float
    is_bathtub: bool
    break_even: float | None


def revenue(law: Law, length: int, cached_price: float, hit: Sequence[float] | None = None) -> Revenue:
    """Price of a prompt (cached tokens at `cached_price` of the others') / its prefill seconds, over the hits."""
    places = np.linspace(0.0, 0.99, 100) if hit is None else np.asarray(hit, dtype=np.float64)
    value = np.array([length * (1 - h + cached_price * h) / law.seconds(length, float(h)) for h in places])
    return curve(places, value)


def curve(hit: Floats, value: Floats) -> Revenue:
    """A measured revenue curve described: where its valley is, and where it breaks even."""
    lowest = int(np.argmin(value))
    inside = 0 < lowest < len(value) - 1 and value[0] > value[lowest] * (1 + 1e-3) < value[-1]
    above = np.flatnonzero((np.arange(len(value)) > lowest) & (value >= value[0]))
    return Revenue(
        hit=[float(h) for h in hit],
        value=[float(v) for v in value],
        valley=float(hit[lowest]),
        is_bathtub=bool(inside),
        break_even=float(hit[above[0]]) if inside and len(above) else None,
    )


def rises_with_hit(law: Law, length: int, cached_price: float) -> bool:
    """Whether a linear law (no attention, no chunks) rises with the hit: iff p x L / mu > (1 - p) x c."""
    return cached_price * length / law.tokens_s > (1 - cached_price) * law.fixed_s


def measured_revenue(hit: Floats, requests_s: Floats, length: int, cached_price: float) -> Revenue:
    """Revenue from a measured hit sweep: requests a second x what one pays."""
    return curve(hit, requests_s * length * (1 - hit + cached_price * hit))


def advice(found: Sequence[Dip], length: int, chunk: int | None) -> str:
    """What to do about dips, in a sentence."""
    tails = [dip for dip in found if dip.tail_chunk is not None]
    if not tails or not chunk:
        return "No dip lies where a tail chunk would put it."
    deepest = max(tails, key=lambda dip: dip.depth)
    return (
        f"{len(tails)} dips lie where tails of {chunk:,}-token chunks begin (deepest {100 * deepest.depth:.0f}% at "
        f"{100 * deepest.hit:.0f}% hit): let tails share a step, choose a chunk that divides the usual un-hit length, "
        f"or keep more in the cache than {100 * deepest.hit:.0f}% of {length:,} tokens."
    )


def cache_advice(found: Revenue, length: int) -> str:
    """What the revenue curve says of the cache's size, in a sentence."""
    if not found.is_bathtub:
        rises = found.value[-1] > found.value[0]
        return (
            f"Revenue {'rises with' if rises else 'falls with'} the hit: {'more' if rises else 'no more'} cache pays."
        )
    if found.break_even is None:
        return "At these prices no hit rate earns what uncached traffic does: ask more for cached tokens."
    kept = found.break_even * length
    return (
        f"A cache pays that keeps at least {100 * found.break_even:.0f}% of a prompt ({kept:,.0f} tokens a session); "
        f"one that reaches only {100 * found.valley:.0f}% earns least."
    )
