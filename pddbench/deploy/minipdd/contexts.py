"""P's prefix cache: the slot files of what it has computed, found by the longest shared prefix."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int32]


class Context:
    """A computed prompt: its ids, and the file with their KV."""

    __slots__ = ("ids", "n_bytes", "name", "pins")

    def __init__(self, name: str, ids: Ids, n_bytes: int) -> None:
        self.name, self.ids, self.n_bytes = name, ids, n_bytes
        self.pins = 0  # users of the file right now


def shared_tokens(a: Ids, b: Ids) -> int:
    """Length of the common prefix."""
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


class Contexts:
    """Files in `folder`, at most `limit_bytes` of them apart from those in use; the least recently used goes first."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._kept: dict[str, Context] = {}  # in order of last use
        self._dropped: set[str] = set()  # to be deleted when their last user has gone
        self._numbers = itertools.count(1)
        self.evicted = 0

    @property
    def n_bytes(self) -> int:
        """Size of what is kept."""
        return sum(context.n_bytes for context in self._kept.values())

    def new_name(self) -> str:
        """A file name that was not used before."""
        return f"p{next(self._numbers)}.kv"

    def best(self, ids: Ids) -> tuple[Context | None, int]:
        """What shares most with a prompt, and how many tokens; the last use is now."""
        found, most = None, 0
        for context in self._kept.values():
            shared = shared_tokens(context.ids, ids)
            if shared > most:
                found, most = context, shared
        if found is not None:
            self._kept[found.name] = self._kept.pop(found.name)
        return found, most

    def add(self, name: str, ids: Ids, n_bytes: int) -> Context:
        """Keep a file that was written; what it wholly contains is not needed any more."""
        new = Context(name, ids, n_bytes)
        for context in list(self._kept.values()):
            if len(context.ids) <= len(ids) and shared_tokens(context.ids, ids) == len(context.ids):
                self._drop(context)
        self._kept[name] = new
        return new

    @contextmanager
    def pinned(self, context: Context) -> Iterator[None]:
        """The file stays for as long as this lasts."""
        context.pins += 1
        try:
            yield
        finally:
            context.pins -= 1
            if not context.pins and context.name in self._dropped:
                self._dropped.discard(context.name)
                self._delete(context.name)
            self._shrink()

    def _shrink(self) -> None:
        for context in list(self._kept.values()):
            if self.n_bytes <= self._limit_bytes:
                return
            if not context.pins:
                self._drop(context)
                self.evicted += 1

    def _drop(self, context: Context) -> None:
        del self._kept[context.name]
        if context.pins:
            self._dropped.add(context.name)
        else:
            self._delete(context.name)

    def _delete(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)
