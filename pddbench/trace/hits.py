"""What a prefix cache of unlimited size would hit: as planned (trace order) and as it ran (by time).

Both stand on the paths of `trace.contexts`: a context is a path of segments, each fresh in one row, its owner. A
prompt that reaches into a segment has passed all the segments before it, so what earlier prompts cover of a segment
is one number a row (`_Cover`), and a walk from the end of a path towards its start may stop at the first segment it
finds covered. On the basis `prompt` only prompts leave KV behind, on `prompt+output` replies do too.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from pddbench.trace.contexts import Shares

Basis = Literal["prompt", "prompt+output"]
NEVER_NS = 2**63 - 1


class Lengths(Protocol):
    """A trace in columns (`trace.columns.Columns`): tokens, and the index of each row's donor (-1: none)."""

    prefix_tokens: npt.NDArray[np.int64]
    input_tokens: npt.NDArray[np.int64]
    output_tokens: npt.NDArray[np.int64]
    donor: npt.NDArray[np.int64]


def donor_indices(rows: Sequence[Any]) -> list[int]:
    """The index of each row's `prefix_of`, -1 for none; planned requests hold the index already."""
    index_of = {row.request_id: i for i, row in enumerate(rows)}
    return [_donor_index(row.prefix_of, index_of) for row in rows]


def _donor_index(prefix_of: str | int | None, index_of: dict[str, int]) -> int:
    if prefix_of is None:
        return -1
    return prefix_of if isinstance(prefix_of, int) else index_of[prefix_of]


def planned_hits(
    rows: Sequence[Any], basis: Basis = "prompt", donors: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """Hit tokens of each row if all earlier rows, in trace order, are cached for ever; at most its input.

    Shape (n,). `donors` defaults to `donor_indices(rows)`.
    """
    donors = donor_indices(rows) if donors is None else donors
    return _in_order(_Cover.of_rows(rows, donors, basis))


def column_hits(columns: Lengths, basis: Basis = "prompt") -> npt.NDArray[np.int64]:
    """`planned_hits` of a trace in columns, in about 50 bytes a request."""
    prefix, length, reply, donor = (
        _compact(c) for c in (columns.prefix_tokens, columns.input_tokens, columns.output_tokens, columns.donor)
    )
    return _in_order(_Cover(prefix, length, reply, donor, basis))


def _in_order(cover: _Cover) -> npt.NDArray[np.int64]:
    hits = np.empty(len(cover), dtype=np.int64)
    for i in range(len(cover)):
        hits[i] = cover.hit(i)
        cover.add(i)
    return hits


def _compact(values: Sequence[int] | npt.NDArray[np.int64]) -> array[int]:
    """Whole numbers in 8 bytes each, quicker to index one by one than NumPy's."""
    out = array("q")
    out.frombytes(np.asarray(values, dtype=np.int64).tobytes())
    return out


def possible_hits(
    rows: Sequence[Shares],
    donors: Sequence[int],
    query_ns: npt.ArrayLike,
    available_ns: npt.ArrayLike,
    basis: Basis = "prompt",
    replied_ns: npt.ArrayLike | None = None,
) -> npt.NDArray[np.int64]:
    """Hit tokens of each row as it ran: from rows whose `available_ns` is before its `query_ns`, never from itself.

    `NEVER_NS` stands for a time that did not come: a row without query hits nothing and leaves nothing behind. A row
    cannot be available before it was asked for; an earlier `available_ns` counts as its `query_ns`. On the basis
    `prompt+output` the reply is there from `replied_ns` on (default: with the prompt). Shape (n,).
    """
    query = np.asarray(query_ns, dtype=np.int64)
    available = np.maximum(np.asarray(available_ns, dtype=np.int64), query)
    n = len(rows)
    cover = _Cover.of_rows(rows, donors, basis)
    hits = np.zeros(n, dtype=np.int64)
    moments, add_first = [query, available], cover.add
    if basis == "prompt+output" and replied_ns is not None:
        moments.append(np.maximum(np.asarray(replied_ns, dtype=np.int64), available))
        add_first = cover.add_prompt
    times = np.concatenate(moments)
    kind = np.repeat(np.arange(len(moments)), n)  # at equal times the question comes first
    for event in np.lexsort((kind, times)).tolist():
        if times[event] == NEVER_NS:
            break
        if event < n:
            hits[event] = cover.hit(event)
        elif event < 2 * n:
            add_first(event - n)
        else:
            cover.add(event - 2 * n)
    return hits


class _Cover:
    """How far each row's own segment is covered by the prompts (and replies) that were added."""

    def __init__(
        self, prefixes: array[int], inputs: array[int], outputs: array[int], donors: array[int], basis: Basis
    ) -> None:
        if basis not in ("prompt", "prompt+output"):
            raise ValueError(f"unknown hit basis {basis!r}")
        n = len(inputs)
        self._input = inputs
        self._output = outputs if basis == "prompt+output" else array("q", bytes(8 * n))
        self._start = array("q", (prefix if donor >= 0 else 0 for prefix, donor in zip(prefixes, donors, strict=True)))
        self._before = self._owners(donors)
        self._covered = array("q", bytes(8 * n))

    @classmethod
    def of_rows(cls, rows: Sequence[Shares], donors: Sequence[int], basis: Basis) -> _Cover:
        """Nothing covered yet of these rows."""
        prefixes = _compact([row.prefix_tokens for row in rows])
        inputs, outputs = _compact([row.input_tokens for row in rows]), _compact([row.output_tokens for row in rows])
        return cls(prefixes, inputs, outputs, _compact(donors), basis)

    def __len__(self) -> int:
        return len(self._input)

    def _owners(self, donors: Sequence[int]) -> array[int]:
        """By row: the owner of the segment that its own segment continues (-1: it starts at position 0)."""
        before = array("q")
        for i, donor in enumerate(donors):
            owner = donor
            while owner >= 0 and self._start[i] <= self._start[owner]:
                owner = before[owner]
            before.append(owner)
        return before

    def hit(self, i: int) -> int:
        """Tokens of row i's prompt that are covered now."""
        owner, end = (i, self._input[i]) if self._input[i] > self._start[i] else (self._before[i], self._start[i])
        while owner >= 0:
            if self._covered[owner] > self._start[owner]:
                return min(self._covered[owner], end)
            owner, end = self._before[owner], self._start[owner]
        return 0

    def add_prompt(self, i: int) -> None:
        """Row i's prompt is in the cache from now on."""
        self._add(i, self._input[i])

    def add(self, i: int) -> None:
        """Row i's prompt (and reply) are in the cache from now on."""
        self._add(i, self._input[i] + self._output[i])

    def _add(self, owner: int, end: int) -> None:
        while owner >= 0:
            if end > self._start[owner]:
                if self._covered[owner] >= end:
                    return
                self._covered[owner] = end
            owner, end = self._before[owner], self._start[owner]
