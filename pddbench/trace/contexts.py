"""Where each token of a context comes from: contexts as paths in the trie of fresh segments.

A token at position p of row r's context (prompt, then output) was fresh in exactly one row, its *owner*: r itself
for p >= prefix_tokens, otherwise the owner of position p in `prefix_of`'s context. Prompts, planned hits and
possible hits are all built on these paths, so that they cannot disagree.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol


class Segment(NamedTuple):
    """Positions [start, end) of a context, fresh in row `owner` (an index) at the very same positions."""

    owner: int
    start: int
    end: int


class Shares(Protocol):
    """What a row must tell: the index of its donor (-1: none) and its lengths in tokens."""

    @property
    def prefix_tokens(self) -> int:
        """Tokens shared with the donor's context."""

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompt."""

    @property
    def output_tokens(self) -> int:
        """Tokens of the reply."""


def cut(path: Sequence[Segment], length: int) -> list[Segment]:
    """The first `length` tokens of a path."""
    out: list[Segment] = []
    for seg in path:
        if seg.start >= length:
            break
        out.append(seg if seg.end <= length else seg._replace(end=length))
    return out


def contexts(rows: Sequence[Shares], donors: Sequence[int]) -> Iterator[list[Segment]]:
    """The path of each row's context, in order; `donors[i]` is the index of row i's `prefix_of`, -1 for none."""
    paths: list[list[Segment]] = []
    for i, row in enumerate(rows):
        head = cut(paths[donors[i]], row.prefix_tokens) if donors[i] >= 0 and row.prefix_tokens > 0 else []
        length = row.input_tokens + row.output_tokens
        if row.prefix_tokens < length:
            head.append(Segment(i, row.prefix_tokens if donors[i] >= 0 else 0, length))
        paths.append(head)
        yield head


def owners_before(donors: Sequence[int], starts: Sequence[int]) -> array[int]:
    """By row: the owner of the segment that its own segment continues (-1: it starts at position 0).

    `starts`: the position of each row's first fresh token.
    """
    before = array("q")
    for donor, start in zip(donors, starts, strict=True):
        owner = donor
        while owner >= 0 and start <= starts[owner]:
            owner = before[owner]
        before.append(owner)
    return before
