"""Who a planned request is: where each token of its prompt comes from and how many are wanted, before any salt."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pddbench.trace.contexts import owners_before

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]
    Int32s = npt.NDArray[np.int32]

_AT_ONCE = 65_536
_KEPT = 200_000  # hashes in the middle of a prompt, some 200 bytes each; others are made again from their start


def request_sha256(pieces: Sequence[tuple[str, int, int]], output_tokens: int) -> str:
    """SHA-256 of a request: of its prompt's pieces, in order, and of the number of tokens wanted.

    A piece is the id of the request in which it was fresh, its start and its end.
    """
    lines = [f"{owner}[{start}:{end}]" for owner, start, end in pieces]
    return hashlib.sha256("\n".join([*lines, str(output_tokens)]).encode()).hexdigest()


def plan_digests(
    ids: bytearray, ends: Ints, donors: Int32s, prefixes: Int32s, inputs: Int32s, outputs: Int32s
) -> bytearray:
    """The 32 bytes of each request's `request_sha256`, one behind the other.

    Requests that share a beginning share the hash so far, so that a session of many turns is not hashed from its start
    for each. `ids` are UTF-8, `ends` where each ends.
    """
    return _Digests(ids, ends, donors, prefixes).run(inputs, outputs)


class _Digests:
    def __init__(self, ids: bytearray, ends: Ints, donors: Int32s, prefixes: Int32s) -> None:
        import numpy as np

        self._ids, self._ends = ids, ends.data
        start = np.where(donors >= 0, prefixes, 0).astype(np.int32)
        self._start = start.data
        self._owner = owners_before(donors.data, self._start)  # of the segment that a request's own continues
        self._last = np.full(len(donors), -1, dtype=np.int32)  # who continues it last
        owner = np.frombuffer(self._owner, dtype=np.int64)
        later = np.flatnonzero(owner >= 0)
        np.maximum.at(self._last, owner[later], later.astype(np.int32))
        self._kept: dict[int, hashlib._Hash] = {}

    def run(self, inputs: Int32s, outputs: Int32s) -> bytearray:
        out, kept, last, sha256 = bytearray(), self._kept, self._last.data, hashlib.sha256
        for first in range(0, len(inputs), _AT_ONCE):
            part = slice(first, first + _AT_ONCE)
            rows = zip(self._owner[part], self._start[part], inputs[part].tolist(), outputs[part].tolist(),
                       self._last[part].tolist(), strict=True)  # fmt: skip
            for i, (owner, start, end, wanted, used) in enumerate(rows, first):
                if owner < 0:
                    state = sha256()
                else:
                    state = self._before(owner) if last[owner] == i else self._before(owner, keep=True).copy()
                    state.update(self._piece(owner, start))
                if used >= 0:
                    if len(kept) < _KEPT:
                        kept[i] = state
                    state = state.copy()
                state.update(self._piece(i, end) + b"%d" % wanted if end > start else b"%d" % wanted)
                out += state.digest()
        return out

    def _piece(self, owner: int, end: int) -> bytes:
        """A request's own segment up to `end`, as it is hashed."""
        ends = self._ends
        name = self._ids[ends[owner - 1] if owner else 0 : ends[owner]]
        return b"%b[%d:%d]\n" % (bytes(name), self._start[owner], end)

    def _before(self, row: int, keep: bool = False) -> hashlib._Hash:
        """The hash of what comes before a request's own segment."""
        found = self._kept.get(row) if keep else self._kept.pop(row, None)
        if found is not None:
            return found
        chain = [row]
        while (owner := self._owner[chain[-1]]) >= 0:
            chain.append(owner)
        state = hashlib.sha256()
        for at in range(len(chain) - 1, 0, -1):
            state.update(self._piece(chain[at], self._start[chain[at - 1]]))
        return state
