"""What a prefix cache of unlimited size would hit: as planned (trace order) and as it ran (by time).

Both stand on the paths of `trace.contexts`: a context is a path of segments, each fresh in one row, its owner. A
prompt that reaches into a segment has passed all the segments before it, so what earlier prompts cover of a segment
is one number a row (`_Cover`), and a walk from the end of a path towards its start may stop at the first segment it
finds covered. On the basis `prompt` only prompts leave KV behind, on `prompt+output` replies do too.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from pddbench.trace.contexts import Shares, owners_before

Basis = Literal["prompt", "prompt+output"]
Ints = npt.NDArray[np.int64]
_LENGTHS = ("prefix_tokens", "input_tokens")
_REACH_BITS = 32  # more than a position in a context has
NEVER_NS = 2**63 - 1


class Shared(Protocol):
    """A trace in columns (`trace.columns.Columns`): tokens, and the index of each row's donor (-1: none)."""

    @property
    def prefix_tokens(self) -> Ints:
        """Tokens shared with the donor's context, shape (n,)."""

    @property
    def input_tokens(self) -> Ints:
        """Tokens of each prompt, shape (n,)."""

    @property
    def donor(self) -> Ints:
        """Index of each row's donor, shape (n,)."""


class Lengths(NamedTuple):
    """`trace.contexts.Shares` of many rows: int64, shape (n,) each."""

    prefix_tokens: Ints
    input_tokens: Ints
    output_tokens: Ints

    @classmethod
    def of(cls, column: Callable[[str], Ints]) -> Lengths:
        """From whatever hands out columns by name."""
        return cls(*(column(name) for name in cls._fields))

    @classmethod
    def of_rows(cls, rows: Sequence[Shares]) -> Lengths:
        """From rows."""
        return cls.of(lambda name: np.array([getattr(row, name) for row in rows], dtype=np.int64))


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
    donor = np.asarray(donor_indices(rows) if donors is None else donors, dtype=np.int64)
    prefix, inputs = (np.array([getattr(row, name) for row in rows], dtype=np.int64) for name in _LENGTHS)
    return hits_in_order(prefix, inputs, donor, basis)


def column_hits(columns: Shared, basis: Basis = "prompt") -> npt.NDArray[np.int64]:
    """`planned_hits` of a trace in columns."""
    return hits_in_order(columns.prefix_tokens, columns.input_tokens, columns.donor, basis)


def hits_in_order(prefix: Ints, inputs: Ints, donor: Ints, basis: Basis) -> Ints:
    """Hits where every earlier row is there, all rows at once.

    What a row shares of its donor's prompt is there, and nothing more can be: its other tokens are fresh. Of the
    donor's reply, on the basis `prompt`, there is what earlier rows have taken into their own prompts; those that
    reach farther than any before share with the donor itself, for whoever shares with one of them reaches no farther.
    """
    _check_basis(basis)
    hits = np.where(donor >= 0, prefix, 0)
    if basis == "prompt+output":
        return hits
    late = np.flatnonzero((donor >= 0) & (prefix > inputs[donor]))
    late = late[np.argsort(donor[late], kind="stable")]
    if not len(late):
        return hits
    group = np.cumsum(np.diff(donor[late], prepend=donor[late[0]]) != 0)
    reach = np.maximum.accumulate((group << _REACH_BITS) + prefix[late])  # of this donor's rows until here
    before = np.concatenate([[0], reach[:-1]])
    earlier = np.where(before >> _REACH_BITS == group, before & ((1 << _REACH_BITS) - 1), 0)
    hits[late] = np.minimum(prefix[late], np.maximum(inputs[donor[late]], earlier))
    return hits


def _compact(values: Sequence[int] | Ints) -> array[int]:
    """Whole numbers in 8 bytes each, quicker to index one by one than NumPy's."""
    out = array("q")
    out.frombytes(np.asarray(values, dtype=np.int64).tobytes())
    return out


def possible_hits(
    rows: Sequence[Shares] | Lengths,
    donors: Sequence[int] | Ints,
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
    n = len(query)
    cover = _Cover.of_rows(rows, donors, basis)
    hits = array("q", bytes(8 * n))
    moments, add_first = [query, available], cover.add
    if basis == "prompt+output" and replied_ns is not None:
        moments.append(np.maximum(np.asarray(replied_ns, dtype=np.int64), available))
        add_first = cover.add_prompt
    times = np.concatenate(moments)
    kind = np.repeat(np.arange(len(moments)), n)  # at equal times the question comes first
    order = np.lexsort((kind, times))[: int((times != NEVER_NS).sum())]  # what never came would be last
    for event in _compact(order):
        if event < n:
            hits[event] = cover.hit(event)
        elif event < 2 * n:
            add_first(event - n)
        else:
            cover.add(event - 2 * n)
    return np.frombuffer(hits, dtype=np.int64)


def _check_basis(basis: str) -> None:
    if basis not in ("prompt", "prompt+output"):
        raise ValueError(f"unknown hit basis {basis!r}")


class _Cover:
    """How far each row's own segment is covered by the prompts (and replies) that were added."""

    def __init__(
        self, prefixes: array[int], inputs: array[int], outputs: array[int], donors: array[int], basis: Basis
    ) -> None:
        _check_basis(basis)
        n = len(inputs)
        self._input = inputs
        self._output = outputs if basis == "prompt+output" else array("q", bytes(8 * n))
        self._start = array("q", (prefix if donor >= 0 else 0 for prefix, donor in zip(prefixes, donors, strict=True)))
        self._before = owners_before(donors, self._start)
        self._covered = array("q", bytes(8 * n))

    @classmethod
    def of_rows(cls, rows: Sequence[Shares] | Lengths, donors: Sequence[int] | Ints, basis: Basis) -> _Cover:
        """Nothing covered yet of these rows."""
        lengths = rows if isinstance(rows, Lengths) else Lengths.of_rows(rows)
        prefixes, inputs, outputs = map(_compact, lengths)
        return cls(prefixes, inputs, outputs, _compact(donors), basis)

    def __len__(self) -> int:
        return len(self._input)

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
