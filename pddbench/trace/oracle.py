"""An independent recount of prefix hits: token ids written out, block hashes compared, a cache that forgets nothing.

It shares no code with `hits`, `contexts` or the generator, so that agreement between them means something. Every prompt
is written out as token ids (64-bit ones, so that no two fresh tokens are equal by chance), cut into blocks as an engine
does, and each block is known by a fingerprint of all tokens up to its end. A request hits the leading blocks whose
fingerprints an earlier prompt has left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from pddbench.trace.model import Row

if TYPE_CHECKING:
    from pddbench.trace.columns import Columns

_CHUNK = 65_536
_LEAST_BLOCKS = 1 << 22  # fewer are not worth forgetting (32 MB)
Ids = npt.NDArray[np.uint64]
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
_SEED_ROW = 0x8BB84B93962EACC9
_SEED_POSITION, _SEED_BLOCK = np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F)


class _Written:
    """Token ids written one behind the other, and the fingerprints of their whole blocks; both grow in place.

    Several contexts may stand in one of these: those that begin with one another.
    """

    def __init__(self, tokens: Ids, blocks: Ids) -> None:
        self._tokens, self._blocks = tokens, blocks
        self.length = len(tokens)
        self.users = 0  # contexts that a later row still shares with

    def tokens(self, end: int, start: int = 0) -> Ids:
        """Those from `start` to `end`."""
        return self._tokens[start:end]

    def blocks(self, count: int) -> Ids:
        """The first `count` fingerprints."""
        return self._blocks[:count]

    def go_on(self, shared: int, fresh: Ids, block: int) -> None:
        """After the first `shared` tokens come these; what stood there is gone."""
        whole = shared // block
        self._tokens = _grown(self._tokens, shared, fresh)
        self.length = shared + len(fresh)
        new = _fingerprints(self._tokens[whole * block : self.length], whole, self._blocks[:whole], block)
        self._blocks = _grown(self._blocks, whole, new)


def _grown(array: Ids, used: int, more: Ids) -> Ids:
    """`array` with `more` after the first `used`; moved to twice the room where there is too little."""
    need = used + len(more)
    if need > len(array):
        larger = np.empty(max(2 * len(array), need), dtype=np.uint64)
        larger[:used] = array[:used]
        array = larger
    array[used:need] = more
    return array


@dataclass
class _Context:
    """A request's prompt and reply, written out; the prompt's length."""

    written: _Written
    length: int
    input_tokens: int

    def blocks(self, block: int) -> Ids:
        """Fingerprints of its whole blocks."""
        return self.written.blocks(self.length // block)


class _Seen:
    """A growing set of fingerprints: sorted runs, merged so that there are few (8 bytes each, where a set takes 80)."""

    def __init__(self) -> None:
        self._runs: list[Ids] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, values: Ids) -> None:
        if not len(values):
            return
        run = np.sort(values)
        while self._runs and len(self._runs[-1]) <= 2 * len(run):
            run = np.sort(np.concatenate([self._runs.pop(), run]), kind="stable")
        self._runs.append(run)

    def __contains__(self, value: np.uint64) -> bool:
        for run in self._runs:
            at = run.searchsorted(value)
            if at < len(run) and run[at] == value:
                return True
        return False

    def keep(self, values: Ids) -> None:
        """Forget all but what is among `values`, sorted."""
        kept = [run[_is_in(run, values)] for run in self._runs]
        self._runs = []
        self.add(np.concatenate(kept))


def _is_in(values: Ids, known: Ids) -> npt.NDArray[np.bool_]:
    """Which values are in a sorted array."""
    if not len(known):
        return np.zeros(len(values), dtype=np.bool_)
    at = np.minimum(np.searchsorted(known, values), len(known) - 1)
    found: npt.NDArray[np.bool_] = known[at] == values
    return found


class _Line(NamedTuple):
    """What the recount needs of a request: its number, that of the request it shares a prefix with (-1: none)."""

    number: int
    donor: int
    prefix_tokens: int
    input_tokens: int
    output_tokens: int


def recount_hits(
    rows: Sequence[Row] | Columns, block_tokens: int = 16, basis: Literal["prompt", "prompt+output"] = "prompt"
) -> npt.NDArray[np.int64]:
    """Tokens of each row's prompt that an infinite cache of whole blocks holds, in trace order; shape (n,).

    Memory: the contexts that a later row still shares with, and 8 bytes for each of their blocks. What is in none of
    them never occurs again, as fresh tokens are new ones, so forgetting it changes nothing.
    """
    last_use = _last_uses(rows)
    live: dict[int, _Context] = {}
    seen, hits, limit = _Seen(), np.zeros(len(last_use), dtype=np.int64), _LEAST_BLOCKS
    for line in _lines(rows):
        i, donor = line.number, line.donor
        before = live[donor] if donor >= 0 else None
        last = donor >= 0 and last_use[donor] == i
        context = _written_out(line, before, block_tokens, last)
        blocks = context.blocks(block_tokens)
        prompt_blocks = blocks[: line.input_tokens // block_tokens]
        shared = min(line.prefix_tokens, before.input_tokens) if before is not None and basis == "prompt" else None
        known = _known(prompt_blocks, seen, (line.prefix_tokens if shared is None else shared) // block_tokens)
        hits[i] = known * block_tokens
        seen.add((prompt_blocks if basis == "prompt" else blocks)[known:])
        if last:
            live.pop(donor).written.users -= 1
        if last_use[i] >= 0:
            live[i] = context
            context.written.users += 1
        if len(seen) > limit:
            kept = [c.blocks(block_tokens) for c in live.values()]
            seen.keep(np.unique(np.concatenate(kept or [blocks[:0]])))
            limit = max(_LEAST_BLOCKS, 2 * len(seen))
    return hits


def _last_uses(rows: Sequence[Row] | Columns) -> npt.NDArray[np.int64]:
    """By row: the last one that shares with it, -1 for none."""
    last = np.full(len(rows), -1, dtype=np.int64)
    for line in _lines(rows):
        if line.donor >= 0:
            last[line.donor] = line.number
    return last


def _lines(rows: Sequence[Row] | Columns) -> Iterator[_Line]:
    if isinstance(rows, Sequence):
        place = {row.request_id: i for i, row in enumerate(rows)}
        for i, row in enumerate(rows):
            donor = place[row.prefix_of] if row.prefix_of is not None else -1
            yield _Line(i, donor, row.prefix_tokens, row.input_tokens, row.output_tokens)
        return
    for first in range(0, len(rows), _CHUNK):
        part = slice(first, first + _CHUNK)
        columns = (rows.donor[part], rows.prefix_tokens[part], rows.input_tokens[part], rows.output_tokens[part])
        for i, values in enumerate(zip(*(column.tolist() for column in columns), strict=True), start=first):
            yield _Line(i, *values)


def bucket_counts(hits: Iterable[int], inputs: Iterable[int], edges: Sequence[float]) -> list[int]:
    """Requests in each bucket [edge, next edge) of hit / input; the last bucket includes its end."""
    counts = [0] * (len(edges) - 1)
    for hit, length in zip(hits, inputs, strict=True):
        share = int(hit) / int(length) if length else 0.0
        counts[max(b for b in range(len(counts)) if share >= edges[b])] += 1
    return counts


def _known(blocks: Ids, seen: _Seen, guess: int) -> int:
    """How many leading blocks are known: what is known of one prompt is known from its start on.

    Bisection, from a first guess that only saves time: whatever it is, the last known and the first unknown block are
    looked up.
    """
    low, high = 0, len(blocks)
    middle = min(max(guess, 1), high)
    while low < high:
        if blocks[middle - 1] in seen:
            low = middle
            middle = low + 1 if low == guess else (low + high + 1) // 2
        else:
            high = middle - 1
            middle = (low + high + 1) // 2
    return low


def _written_out(row: _Line, donor: _Context | None, block: int, last: bool) -> _Context:
    """The row's context: the donor's tokens as far as they are shared, then tokens that occur nowhere else.

    They are written behind the donor's where nothing stands there, or nothing that anybody needs (`last`: no later row
    shares with the donor); else the shared ones are written out again.
    """
    shared = row.prefix_tokens if donor is not None else 0
    length = row.input_tokens + row.output_tokens
    positions = np.arange(shared, length, dtype=np.uint64)
    fresh = _mixed(np.uint64((row.number + 1) * _SEED_ROW % 2**64) ^ positions * _SEED_POSITION)
    if donor is None:
        written = _Written(positions[:0], positions[:0])
    elif donor.written.length == shared or (last and donor.written.users == 1):
        written = donor.written
    else:
        written = _Written(donor.written.tokens(shared).copy(), donor.written.blocks(shared // block).copy())
    if length > shared or written.length > length:
        written.go_on(shared, fresh, block)
    return _Context(written, length, row.input_tokens)


def _fingerprints(tokens: Ids, first: int, before: Ids, block: int) -> Ids:
    """Of each whole block from number `first` on, where `tokens` begin; `before`: those of the blocks before it.

    It depends on every token from the start, and on its place.
    """
    count = len(tokens) // block
    body = tokens[: count * block].reshape(count, block)
    own = _mixed((body * _weights(block)).sum(axis=1, dtype=np.uint64))
    places = _mixed(np.arange(first + 1, first + count + 1, dtype=np.uint64) * _SEED_POSITION) | np.uint64(1)
    sums: Ids = np.cumsum(own * places, dtype=np.uint64)
    return sums + before[-1] if len(before) else sums


@cache
def _weights(block: int) -> Ids:
    return _mixed(np.arange(1, block + 1, dtype=np.uint64) * _SEED_BLOCK) | np.uint64(1)


def _mixed(values: Ids) -> Ids:
    """A bijection of 64-bit numbers that leaves no pattern (two rounds of multiply and xor-shift)."""
    values = (values ^ (values >> _SHIFT)) * _ODD
    values = (values ^ (values >> _SHIFT)) * _SEED_POSITION
    return values ^ (values >> _SHIFT)
