"""Where the tokens of one prompt come from, found when it is asked for: the paths of `trace.contexts` without a list
of them for every request."""  # fmt: skip

from __future__ import annotations

from collections.abc import Sequence

from pddbench.trace.contexts import Segment


class Paths:
    """Paths of rows with these donors (-1: none) and shared prefixes. `starts`: see `first_own`."""

    def __init__(self, donors: Sequence[int], prefix_tokens: Sequence[int]) -> None:
        self._donors, self._prefix = donors, prefix_tokens

    def first_own(self, row: int) -> int:
        """The position of a row's first fresh token."""
        return self._prefix[row] if self._donors[row] >= 0 else 0

    def of(self, row: int, length: int) -> list[Segment]:
        """The first `length` tokens of a row's context."""
        donors, prefix = self._donors, self._prefix
        out: list[Segment] = []
        owner, end = row, length
        while end > 0:
            donor = donors[owner]
            start = prefix[owner] if donor >= 0 else 0
            if end > start:
                out.append(Segment(owner, start, end))
                end = start
            owner = donor
        out.reverse()
        return out
