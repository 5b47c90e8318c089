"""An upper bound on the hits that could have been: what a row's prompt shares with any other that was sent in time.

`trace.hits.possible_hits` counts a donor from its first token on. A server may do better: prefill that is still going
on can already be shared. The bound counts a donor from the moment it was sent, and takes every row that was sent
before this one's own first token, except itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pddbench.trace.contexts import Shares

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pddbench.trace.hits import Basis

    Ints = npt.NDArray[np.int64]


def ceiling_hits(
    rows: Sequence[Shares], donors: Sequence[int], query_ns: Ints, sent_ns: Ints, basis: Basis = "prompt"
) -> Ints:
    """Hit tokens of each row from all other rows with `sent_ns` before its `query_ns`; int64, shape (n,).

    `trace.hits.NEVER_NS` stands for a time that did not come. On the basis `prompt+output` replies count too, from
    the same moment on.
    """
    import numpy as np

    from pddbench.trace.hits import NEVER_NS

    n = len(rows)
    cover = _Others(rows, donors, basis)
    hits = np.zeros(n, dtype=np.int64)
    times = np.concatenate([query_ns, sent_ns])
    is_donor = np.repeat([0, 1], n)  # at equal times the question comes first
    for event in np.lexsort((is_donor, times)).tolist():
        if times[event] == NEVER_NS:
            break
        if event < n:
            hits[event] = cover.hit(event)
        else:
            cover.add(event - n)
    return hits


class _Others:
    """How far each row's own segment is covered by prompts, with and without the one that covers it farthest."""

    def __init__(self, rows: Sequence[Shares], donors: Sequence[int], basis: Basis) -> None:
        self._input = [row.input_tokens for row in rows]
        self._kept = [row.input_tokens + (row.output_tokens if basis == "prompt+output" else 0) for row in rows]
        self._start = [row.prefix_tokens if donor >= 0 else 0 for row, donor in zip(rows, donors, strict=True)]
        self._before: list[int] = []  # owner of the segment that a row's own segment continues
        for start, donor in zip(self._start, donors, strict=True):
            owner = donor
            while owner >= 0 and start <= self._start[owner]:
                owner = self._before[owner]
            self._before.append(owner)
        self._best = [0] * len(rows)
        self._best_row = [-1] * len(rows)
        self._second = [0] * len(rows)

    def hit(self, i: int) -> int:
        """Tokens of row i's prompt that other rows cover now."""
        owner, end = (i, self._input[i]) if self._input[i] > self._start[i] else (self._before[i], self._start[i])
        while owner >= 0:
            covered = self._second[owner] if self._best_row[owner] == i else self._best[owner]
            if covered > self._start[owner]:
                return min(covered, end)
            owner, end = self._before[owner], self._start[owner]
        return 0

    def add(self, i: int) -> None:
        """Row i was sent."""
        owner, end = i, self._kept[i]
        while owner >= 0:
            if end > self._best[owner]:
                self._second[owner], self._best[owner], self._best_row[owner] = self._best[owner], end, i
            elif end > self._second[owner]:
                self._second[owner] = end
            owner, end = self._before[owner], min(end, self._start[owner])
