"""Blind seams: where the producer of a token stream may have changed, from arrival times and chunk sizes alone.

A stream that is handed over has one stall of unknown length at an unknown place, and may go on at another rate. A
stream that is not may stall too (preemption, somebody's prefill, a lost packet), so no fixed multiple of the median
gap can be right: what counts as a seam is calibrated on a control without seams (`seam_control`).

Sources: likelihood ratio of a mean shift (Page 1954, Hinkley 1970), winsorised by median and MAD (Huber 1981), deflated
by the lag-1 autocorrelation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pddbench.analyze.quantiles import Floats, Ints

CANDIDATES = 6  # largest excess gaps looked at in a stream
EDGE = 4  # arrival groups at each end from which no rate can be told
SIDE = 64  # gaps on each side that say what is usual there
MERGE = 0.25  # chunks closer than this share of the usual gap came in one read or were held back together
LEAST_GROUPS = 2 * EDGE + 4
_TINY_S = 1e-6


@dataclass(frozen=True)
class Stream:
    """Arrivals of one reply: `gaps_s` before each chunk after the first, `tokens` of that chunk (1 where unknown)."""

    gaps_s: Floats
    tokens: Floats


@dataclass(frozen=True)
class Candidates:
    """Places of a stream at which its producer may have changed.

    `features` (k, 5): log excess in usual gaps, log of it over the next largest, log(1 + likelihood ratio of a rate
    change there), |log rate ratio|, and what that ratio falls short of the stream's best split. `gap` (k,): index of
    the gap; `excess_s` (k,): how much longer than usual it is. `change_gap`, `change`: best split of all and its
    likelihood ratio. `unit_s`: the stream's usual gap.
    """

    features: Floats
    gap: Ints
    excess_s: Floats
    change_gap: int
    change: float
    unit_s: float


@dataclass(frozen=True)
class _Groups:
    """Chunks that arrived together are one group: gap before it with its own span, chunks and tokens, first chunk."""

    gap_s: Floats
    chunks: Floats
    tokens: Floats
    first: Ints


def usual_gap_s(gaps_s: Floats) -> float:
    """The usual gap: the median of spans of eight, an eighth of it (single gaps may be mostly zero)."""
    if len(gaps_s) < 8:
        return float(np.median(gaps_s)) if len(gaps_s) else 0.0
    upto = np.concatenate([[0.0], np.cumsum(gaps_s)])
    return float(np.median(upto[8::8] - upto[:-8:8][: len(upto[8::8])])) / 8


def _grouped(stream: Stream) -> _Groups:
    """Merge what arrived together: after a network stall the held chunks come at once, and their time is normal."""
    gaps = stream.gaps_s
    opens = np.concatenate([[True], gaps >= max(MERGE * usual_gap_s(gaps), _TINY_S)])
    at = np.concatenate([[0.0], np.cumsum(gaps)])
    first = np.flatnonzero(opens)
    last = np.concatenate([first[1:] - 1, [len(gaps)]])
    tokens = np.add.reduceat(np.concatenate([[1.0], stream.tokens]), first)
    span = at[last] - at[first]
    gap = np.maximum(at[first[1:]] - at[last[:-1]] + span[1:], _TINY_S)
    return _Groups(gap, np.diff(np.concatenate([first, [len(gaps) + 1]]))[1:].astype(np.float64), tokens[1:], first[1:])


def rate_change(log_gaps: Floats) -> tuple[Floats, int, Floats]:
    """One shift of the mean at every split of `log_gaps` (n,): likelihood ratios (n-1,), best split, shifts (n-1,)."""
    n = len(log_gaps)
    median = float(np.median(log_gaps))
    mad = 1.4826 * float(np.median(np.abs(log_gaps - median))) + 1e-9
    clipped = np.clip(log_gaps, median - 3 * mad, median + 3 * mad)
    total, k = np.cumsum(clipped), np.arange(1, n)
    before, after = total[:-1] / k, (total[-1] - total[:-1]) / (n - k)
    raw = k * (n - k) / n * (after - before) ** 2
    best = int(np.argmax(raw[EDGE : n - EDGE])) + EDGE
    rest = clipped.copy()
    rest[: best + 1] -= before[best]
    rest[best + 1 :] -= after[best]
    variance = float(rest @ rest) / n + 1e-9
    lag = min(0.9, max(0.0, float(rest[1:] @ rest[:-1]) / n / variance))
    return raw / (2 * variance) * (1 - lag) / (1 + lag), best, after - before


def candidates(stream: Stream) -> Candidates | None:
    """The places to look at; None for a stream too short to tell (fewer than 12 arrival groups)."""
    if len(stream.gaps_s) < LEAST_GROUPS:
        return None
    groups = _grouped(stream)
    n = len(groups.gap_s)
    if n < LEAST_GROUPS:
        return None
    per_chunk = groups.gap_s / groups.chunks
    unit = float(np.median(per_chunk))
    ratio, best, shift = rate_change(_steadier(np.log(per_chunk), np.log(groups.gap_s / groups.tokens)))
    inner = slice(EDGE, n - EDGE)
    over = groups.gap_s - groups.chunks * unit
    places = np.argsort(over[inner], kind="stable")[::-1][:CANDIDATES] + EDGE
    excess = np.maximum(_excess(groups, per_chunk, places), 1e-3 * unit)
    ordered = np.sort(excess)
    rival = np.where(np.arange(len(excess)) == int(np.argmax(excess)), ordered[-2], ordered[-1])
    split = np.minimum(places, n - 2)
    here = np.maximum(ratio[split], ratio[np.maximum(split - 1, 0)])
    features = np.column_stack(
        [np.log(excess / unit), np.log(excess / rival), np.log1p(here), np.abs(shift[split]),
         np.log1p(ratio[inner].max()) - np.log1p(here)]
    )  # fmt: skip
    change_gap = int(groups.first[min(best + 1, n - 1)]) - 1
    return Candidates(features, groups.first[places] - 1, excess, change_gap, float(ratio[best]), unit)


def _steadier(by_chunk: Floats, by_token: Floats) -> Floats:
    """Whichever is steadier says how the stream is bundled: a chunk a step, or tokens at an even pace."""

    def spread(x: Floats) -> float:
        return float(np.median(np.abs(x - np.median(x))))

    return by_token if spread(by_token) < 0.8 * spread(by_chunk) else by_chunk


def _excess(groups: _Groups, per_chunk: Floats, places: Ints) -> Floats:
    """How much longer each gap is than the slower of its two sides."""
    out = np.empty(len(places))
    for i, at in enumerate(places):
        left, right = per_chunk[max(0, at - SIDE) : at], per_chunk[at + 1 : at + 1 + SIDE]
        out[i] = groups.gap_s[at] - groups.chunks[at] * max(np.median(left), np.median(right))
    return out


def plant(stream: Stream, gap: int, stall_s: float, ratio: float = 1.0) -> Stream:
    """The stream with a seam at gap index `gap`: that gap `stall_s` longer, it and all later ones times `ratio`."""
    gaps = stream.gaps_s.copy()
    gaps[gap:] *= ratio
    gaps[gap] += stall_s
    return Stream(gaps, stream.tokens)
