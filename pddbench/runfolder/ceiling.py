"""An upper bound on the hits that could have been: what a row's prompt shares with any other that was sent in time.

`trace.hits.possible_hits` counts a donor from its first token on. A server may do better: prefill that is still going
on can already be shared. The bound counts a donor from the moment it was sent, and takes every row that was sent
before this one's own first token, except itself.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pddbench.trace.contexts import Shares, owners_before

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pddbench.trace.hits import Basis, Lengths

    Ints = npt.NDArray[np.int64]


def ceiling_hits(
    rows: Sequence[Shares] | Lengths,
    donors: Sequence[int] | Ints,
    query_ns: Ints,
    sent_ns: Ints,
    basis: Basis = "prompt",
) -> Ints:
    """Hit tokens of each row from all other rows with `sent_ns` before its `query_ns`; int64, shape (n,).

    `trace.hits.NEVER_NS` stands for a time that did not come. On the basis `prompt+output` replies count too, from
    the same moment on.
    """
    import numpy as np

    from pddbench.trace.hits import NEVER_NS, Lengths

    n = len(query_ns)
    cover = _Others(rows if isinstance(rows, Lengths) else Lengths.of_rows(rows), donors, basis)
    hits = array("q", bytes(8 * n))
    times = np.concatenate([query_ns, sent_ns])
    is_donor = np.repeat([0, 1], n)  # at equal times the question comes first
    order = np.lexsort((is_donor, times))[: int((times != NEVER_NS).sum())]  # what never came would be last
    for event in array("q", order.astype(np.int64).tobytes()):
        if event < n:
            hits[event] = cover.hit(event)
        else:
            cover.add(event - n)
    return np.frombuffer(hits, dtype=np.int64)


class _Others:
    """How far each row's own segment is covered by prompts, with and without the one that covers it farthest."""

    def __init__(self, rows: Lengths, donors: Sequence[int] | Ints, basis: Basis) -> None:
        import numpy as np

        def numbers(values: Any) -> array[int]:
            return array("q", np.asarray(values, dtype=np.int64).tobytes())

        n = len(rows.input_tokens)
        donor = np.asarray(donors, dtype=np.int64)
        self._input = numbers(rows.input_tokens)
        self._kept = numbers(rows.input_tokens + (rows.output_tokens if basis == "prompt+output" else 0))
        self._start = numbers(np.where(donor >= 0, rows.prefix_tokens, 0))
        self._before = owners_before(numbers(donor), self._start)
        self._best, self._second = array("q", bytes(8 * n)), array("q", bytes(8 * n))
        self._best_row = array("q", [-1]) * n

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
