"""Prompts as paths: which blocks a prompt is made of, so that what prompts share is a matter of a few numbers.

A block stands for itself and all before it, so blocks form a tree. A *piece* `(owner, start, stop)` is a run of blocks
[start, stop) at those very positions of a prompt, all first seen in prompt `owner`; a *path* is the pieces of a prompt
from position 0 on. Equal blocks have equal owner and position, whoever asks. A prompt of 1,000 blocks is as many
pieces as there were turns before it, and caches and messages handle pieces, never single blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pddbench.trace.contexts import Segment

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Piece = tuple[int, int, int]
Path = list[Piece]


def block_hashes(ids: Sequence[int] | npt.NDArray[Any], block_tokens: int) -> tuple[list[int], int]:
    """Chained 63-bit hashes of the full blocks of a prompt, and a seed that stands for all of it.

    All blocks at once: each is a polynomial of its ids, mixed with its place; the chain is the running sum. 64K ids
    take 0.5 ms where a hash a block takes 3. Not meant against an adversary.
    """
    import numpy as np

    tokens = np.asarray(ids, dtype=np.uint64)
    n = len(tokens) // block_tokens
    powers = _powers(max(block_tokens, 1))
    full = (tokens[: n * block_tokens].reshape(n, block_tokens) + np.uint64(1)) @ powers
    rest = tokens[n * block_tokens :]
    tail = ((rest + np.uint64(1)) @ powers[: len(rest)]).reshape(1)
    mixed = np.concatenate([full, tail])
    mixed += np.arange(1, n + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for multiplier in (_MIX_1, _MIX_2):
        mixed ^= mixed >> np.uint64(31)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(33)
    chain = np.cumsum(mixed, dtype=np.uint64) >> np.uint64(1)
    values: list[int] = chain.tolist()
    return values[:-1], values[-1] ^ len(tokens)


def _powers(n: int) -> npt.NDArray[np.uint64]:
    """Odd multipliers, one for each place in a block."""
    import numpy as np

    return np.cumprod(np.full(n, 0x5851F42D4C957F2D, dtype=np.uint64), dtype=np.uint64)


class PathBook:
    """Gives paths to prompts known by their block hashes: a block belongs to the prompt that first brought it."""

    def __init__(self) -> None:
        self._owner: dict[int, int] = {}  # block hash -> owner
        self._start: list[int] = []  # by owner: position of its first block
        self._before: list[int] = []  # by owner: owner of the block before that; -1: none

    def path(self, hashes: Sequence[int]) -> Path:
        """The path of a prompt; blocks never seen before become a piece of a new owner."""
        known = self._known(hashes)
        owner, stop = (self._owner[hashes[known - 1]] if known else -1), known
        if known < len(hashes):
            self._start.append(known)
            self._before.append(owner)
            owner, stop = len(self._start) - 1, len(hashes)
            self._owner.update(dict.fromkeys(hashes[known:], owner))
        out: Path = []
        while owner >= 0:
            out.append((owner, self._start[owner], stop))
            owner, stop = self._before[owner], self._start[owner]
        out.reverse()
        return out

    def _known(self, hashes: Sequence[int]) -> int:
        """Leading blocks seen before (by bisection: a known block means that all before it are)."""
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._owner:
                low = middle
            else:
                high = middle - 1
        return low


def path_of(segments: Sequence[Segment], block_tokens: int) -> Path:
    """The path of a prompt known by its segments: a block belongs to the owner of its last token."""
    out: Path = []
    for owner, start, end in segments:
        if start // block_tokens < end // block_tokens:
            out.append((owner, start // block_tokens, end // block_tokens))
    return out


def cut_path(path: Path, blocks: int) -> Path:
    """The first `blocks` blocks of a path."""
    if not path or path[-1][2] <= blocks:
        return path
    n = len(path)
    while n and path[n - 1][1] >= blocks:
        n -= 1
    out = path[:n]
    if out and out[-1][2] > blocks:
        owner, start, _ = out[-1]
        out[-1] = (owner, start, blocks)
    return out


def path_after(path: Path, blocks: int) -> Path:
    """A path without its first `blocks` blocks."""
    return [(owner, max(start, blocks), stop) for owner, start, stop in path if stop > blocks]


def block_at(path: Path, blocks: int) -> tuple[int, int] | None:
    """Owner and position of the last of the first `blocks` blocks of a path; None: there is none."""
    for owner, start, stop in path:
        if start < blocks <= stop:
            return owner, blocks - 1
    return None
