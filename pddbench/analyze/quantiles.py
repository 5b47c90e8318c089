"""Quantiles, one definition everywhere: the ceil(q*n)-th smallest (`inverted_cdf`), so that +inf for failures works.

`SessionQuantiles` gives the same quantile of session-resampled data, exactly, without touching most rows.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Weights = NDArray[np.uint16]  # (draws, sessions): how often each session counts
Codes = NDArray[np.int64] | NDArray[np.int32]  # of sessions or rows; the narrow ones are for a hundred million gaps

_CELLS_AT_ONCE = 4_000_000  # of a matrix of weights
_SLACK = 1e-9  # q*n that is a whole number must not be pushed over it by rounding


def rank(q: float, n: int) -> int:
    """0-based rank of quantile `q` among `n` sorted values."""
    return min(n - 1, max(0, math.ceil(q * n - _SLACK) - 1))


def quantile(values: Floats, q: float) -> float:
    """The ceil(q*n)-th smallest of `values` (any order, +inf allowed, no NaN); NaN when there are none."""
    if len(values) == 0:
        return math.nan
    k = rank(q, len(values))
    return float(np.partition(values, k)[k])


def sorted_quantile(ascending: Floats, q: float) -> float:
    """`quantile` of values that are sorted already."""
    return float(ascending[rank(q, len(ascending))]) if len(ascending) else math.nan


def session_weights(sessions: int, draws: int, seed: int) -> Weights:
    """(draws, sessions): how often each session comes up when `sessions` of them are drawn with replacement."""
    rng = np.random.default_rng(seed)
    out = np.empty((draws, sessions), dtype=np.uint16)  # of a hundred thousand sessions this is what takes the memory
    for some in _blocks(draws, sessions):
        picks = rng.integers(0, sessions, (len(some), sessions))
        picks += np.arange(len(some))[:, None] * sessions
        out[some] = np.bincount(picks.ravel(), minlength=picks.size).reshape(picks.shape)
    return out


def weighted_sums(weights: Weights, values: Floats) -> Floats:
    """`weights @ values` for values of shape (sessions,) or (sessions, k): (draws,) or (draws, k)."""
    blocks = _blocks(*weights.shape)
    return np.concatenate([weights[some].astype(np.float64) @ values for some in blocks] or [np.empty(0)])


def _blocks(draws: int, sessions: int) -> list[range]:
    """The draws in parts that are small in memory."""
    size = max(1, _CELLS_AT_ONCE // max(1, sessions))
    return [range(first, min(first + size, draws)) for first in range(0, draws, size)]


class SessionQuantiles:
    """Quantiles of rows under session weights.

    Rows are sorted once and cut into blocks of consecutive ranks; a matrix product gives the weight up to each block's
    end, so a draw looks only into the one block its quantile is in. Exact. The product costs sessions x blocks a draw,
    the look inside rows / blocks, each of them some hundred times as much: hence the size of a block.
    """

    def __init__(self, values: Floats, code: Codes, sessions: int) -> None:
        order = np.argsort(values, kind="stable")
        self.ascending = values[order]
        self.code = code[order]
        self._sessions = sessions
        self._reached: tuple[Weights, Floats] | None = None
        self._block = max(16, math.isqrt(len(values)), math.isqrt(len(values) * sessions) // 10)

    def _weight_upto(self, weights: Weights) -> Floats:
        """(draws, blocks): the weight up to each block's end; that of the last weights is kept for the next quantile,
        as of many sessions it is nearly all of the work."""  # fmt: skip
        if self._reached is not None and self._reached[0] is weights:
            return self._reached[1]
        n = len(self.ascending)
        blocks = -(-n // self._block)
        cell = (np.arange(n) // self._block) * self._sessions + self.code
        counts = np.bincount(cell, minlength=blocks * self._sessions).reshape(blocks, self._sessions)
        reached: Floats = weighted_sums(weights, counts.T.astype(np.float64)).cumsum(axis=1)
        if reached.size <= _CELLS_AT_ONCE:
            self._reached = weights, reached
        return reached

    def at(self, q: float, weights: Weights) -> Floats:
        """(draws,) quantiles under (draws, sessions) weights; NaN for a draw without any row."""
        if len(self.ascending) == 0:
            return np.full(len(weights), math.nan)
        reached = self._weight_upto(weights)
        total = reached[:, -1]
        need = np.ceil(q * total - _SLACK)
        block = (reached < need[:, None]).sum(axis=1)
        before = np.where(block > 0, reached[np.arange(len(weights)), np.maximum(block - 1, 0)], 0.0)
        parts = _blocks(len(weights), self._block)
        found = np.concatenate([self._inside(block[some], (need - before)[some], weights[some]) for some in parts])
        return np.where(total > 0, found, math.nan)

    def _inside(self, block: Ints, need: Floats, weights: Weights) -> Floats:
        """The value in each draw's block at which the weight reaches `need`."""
        n = len(self.ascending)
        rows = block[:, None] * self._block + np.arange(self._block)
        inside = rows < n
        rows = np.minimum(rows, n - 1)
        weight = np.where(inside, np.take_along_axis(weights, self.code[rows], axis=1), 0.0)
        step = (weight.cumsum(axis=1) < need[:, None]).sum(axis=1)
        at = np.minimum(block * self._block + np.minimum(step, self._block - 1), n - 1)
        found: Floats = self.ascending[at]
        return found
