"""From lists of block ids to `prefix_of` and `prefix_tokens`: the longest shared prefix among earlier rows.

Two requests share their first k blocks if their first k ids are equal. Ids beyond a row's input are ignored, tokens
beyond its ids are fresh. The donor is the row that shares most tokens; among equals one whose shared tokens lie in
its prompt (not its reply), then the latest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence


class _Staircase:
    """Rows by a length: the latest row that reaches a given length. Rows that a later, longer one hides are dropped."""

    __slots__ = ("_negated", "_rows")

    def __init__(self) -> None:
        self._negated: list[int] = []  # ascending, so that bisect works
        self._rows: list[int] = []

    def push(self, length: int, row: int) -> None:
        while self._negated and self._negated[-1] >= -length:
            self._negated.pop()
            self._rows.pop()
        self._negated.append(-length)
        self._rows.append(row)

    def latest(self, length: int) -> int:
        """The latest row of at least `length` tokens, -1 for none."""
        i = bisect_right(self._negated, -length)
        return self._rows[i - 1] if i else -1

    def longest(self) -> int:
        """The largest length of any row."""
        return -self._negated[0]


class PrefixTrie:
    """The trie of block ids of one scope; rows are numbered from `first_row` in the order they are added.

    Time and memory grow with the total number of ids.
    """

    def __init__(self, block_tokens: int, first_row: int = 0) -> None:
        self._block = block_tokens
        self._next_row = first_row
        self._child: dict[tuple[int, int], int] = {}
        self._whole = [-1]  # by node: the latest row whose prompt holds all the tokens of the node's blocks
        self._partial: dict[int, tuple[_Staircase, _Staircase]] = {}  # rows ending inside: by prompt, by context

    def add(self, ids: Sequence[int], input_tokens: int, output_tokens: int) -> tuple[int, int]:
        """Number of the donor (-1: none) and tokens shared with it; then the row itself becomes a possible donor."""
        ids = ids[: -(-input_tokens // self._block)]
        path = self._matching(ids)
        shared = self._donor(path[-1], len(path) - 1, input_tokens) if len(path) > 1 else (-1, 0)
        self._insert(ids, path, input_tokens, output_tokens)
        self._next_row += 1
        return shared

    def _matching(self, ids: Sequence[int]) -> list[int]:
        """Nodes from the root along `ids`, as far as they exist."""
        node, path = 0, [0]
        for block_id in ids:
            child = self._child.get((node, block_id))
            if child is None:
                break
            node = child
            path.append(node)
        return path

    def _donor(self, node: int, depth: int, input_tokens: int) -> tuple[int, int]:
        """The best donor at the deepest common node: every row there shares more than depth - 1 blocks."""
        want = min(depth * self._block, input_tokens)
        whole = self._whole[node]
        if node not in self._partial:
            return whole, want
        by_prompt, by_context = self._partial[node]
        tokens = want if whole >= 0 else min(want, by_context.longest())
        in_prompt = max(whole, by_prompt.latest(tokens))
        return (in_prompt if in_prompt >= 0 else by_context.latest(tokens)), tokens

    def _insert(self, ids: Sequence[int], path: list[int], input_tokens: int, output_tokens: int) -> None:
        node = path[-1]
        for block_id in ids[len(path) - 1 :]:
            child = len(self._whole)
            self._child[node, block_id] = child
            self._whole.append(-1)
            node = child
            path.append(node)
        for depth in range(1, len(path)):
            if depth * self._block <= input_tokens:
                self._whole[path[depth]] = self._next_row
                continue
            by_prompt, by_context = self._partial.setdefault(path[depth], (_Staircase(), _Staircase()))
            by_prompt.push(input_tokens, self._next_row)
            by_context.push(input_tokens + output_tokens, self._next_row)
