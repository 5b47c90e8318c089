"""How many requests each bucket gets, and where inside its bucket each hit lies, so that the mean is met."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pddbench.errors import InputError

Floats = npt.NDArray[np.float64]
_MARGIN = 0.01  # of a bucket's width: planned hits keep this from its edges, so that rounding to tokens stays inside
REACH = (0.02, 0.98)  # relative positions that the mean of a bucket may take


def largest_remainder(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers that sum to `total` and lie within 1 of `shares * total`; ties go to the earlier."""
    exact = np.asarray(shares, dtype=np.float64) * total / sum(shares)
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(-(exact - counts), kind="stable")
    counts[order[: total - int(counts.sum())]] += 1
    return [int(count) for count in counts]


def slice_counts(counts: Sequence[int], part: int, parts: int) -> list[int]:
    """The share of part `part` of `parts` in `counts`; over all parts they sum to `counts` exactly."""
    return [count * (part + 1) // parts - count * part // parts for count in counts]


def tilted(shares: Floats, mean: float) -> Floats:
    """Quantiles at `shares` of the law on [0, 1] with the given mean whose density is exponential in the position."""
    k = _tilt(mean)
    if abs(k) < 1e-6:
        return shares
    tilt: Floats = np.log1p(shares * np.expm1(k)) / k
    return tilt


def _tilt(mean: float) -> float:
    low, high = -400.0, 400.0
    for _ in range(100):
        k = (low + high) / 2
        low, high = (k, high) if _tilted_mean(k) < mean else (low, k)
    return (low + high) / 2


def _tilted_mean(k: float) -> float:
    if abs(k) < 1e-6:
        return 0.5 + k / 12
    return float(1 / -np.expm1(-k) - 1 / k)


@dataclass
class Positions:
    """Mean relative positions: of the free hits of the first bucket, and of those of all the others."""

    first: float = 0.5
    others: float = 0.5

    def hits(self, bucket: npt.NDArray[np.int64], rank: Floats, edges: Sequence[float]) -> Floats:
        """The planned hit of each request, given its bucket and its rank in (0, 1) inside of it."""
        low, high = np.asarray(edges)[:-1][bucket], np.asarray(edges)[1:][bucket]
        place = np.where(bucket == 0, tilted(rank, self.first), tilted(rank, self.others))
        hits: Floats = low + (high - low) * (_MARGIN + (1 - 2 * _MARGIN) * place)
        return hits


def positions_for_mean(
    mean: float, counts: Sequence[int], edges: Sequence[float], fixed_first: int = 0, fixed_hits: float = 0.0
) -> Positions:
    """Positions with which hits have this mean over all `counts` requests.

    `fixed_first` requests of the first bucket have given hits that sum to `fixed_hits`. The first bucket gives way
    first; if it cannot, all the others do. `InputError` with the bound that breaks if they cannot either.
    """
    positions = Positions()
    wanted = mean * sum(counts)
    free = counts[0] - fixed_first
    rest = _others_sum(counts, edges, 0.5)
    positions.first = _needed(wanted - fixed_hits - rest, free, edges[0], edges[1])
    if REACH[0] <= positions.first <= REACH[1] or (free == 0 and abs(wanted - fixed_hits - rest) < 1e-9):
        return positions
    up = wanted - fixed_hits - rest > free * (edges[0] + edges[1]) / 2
    positions.first = REACH[1] if up else REACH[0]
    first_sum = fixed_hits + free * (edges[0] + positions.first * (edges[1] - edges[0]))
    span = _others_sum(counts, edges, 1.0) - _others_sum(counts, edges, 0.0)
    above = wanted - first_sum - _others_sum(counts, edges, 0.0)
    positions.others = above / span if span > 0 else (0.0 if abs(above) < 1e-9 else np.inf * np.sign(above))
    if not REACH[0] <= positions.others <= REACH[1]:
        raise _beyond(mean, counts, edges, up, fixed_first, fixed_hits)
    return positions


def _needed(total: float, n: int, low: float, high: float) -> float:
    return (total / n - low) / (high - low) if n else (np.inf if total > 0 else -np.inf)


def _others_sum(counts: Sequence[int], edges: Sequence[float], place: float) -> float:
    pairs = zip(counts[1:], edges[1:-1], edges[2:], strict=True)
    return sum(n * (low + place * (high - low)) for n, low, high in pairs)


def _beyond(
    mean: float, counts: Sequence[int], edges: Sequence[float], up: bool, fixed_first: int, fixed_hits: float
) -> InputError:
    """The bound that breaks, in one sentence."""
    n, first = sum(counts), counts[0]
    place, where = (REACH[1], "upper") if up else (REACH[0], "lower")
    rest = _others_sum(counts, edges, place)
    edge = edges[1] if up else edges[0]
    reach = (rest + fixed_hits + (first - fixed_first) * (edges[0] + place * (edges[1] - edges[0]))) / n
    forced = (
        f" ({fixed_first} of its {first} requests are singular or share with no earlier one)" if fixed_first else ""
    )
    side = "above" if up else "below"
    if not first:
        return InputError(
            f"mean {mean:g} is out of reach: with these shares it lies {'at most' if up else 'at least'} at {reach:.4f}"
        )
    return InputError(
        f"mean {mean:g} needs the first bucket's mean {side} {edge:.2f}{forced}, even with the other buckets at their "
        f"{where} edges; these shares reach a mean of {'at most' if up else 'at least'} {reach:.4f}"
    )
