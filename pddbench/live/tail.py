"""Reads a spool while it is being written: whole frames only, each once, and only those that are asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pddbench.replay.frames import HEAD, unpack

READ_BYTES = 8 << 20


class Tail:
    """A spool from its beginning to where it has been written so far. An unlinked file can still be read to its end."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._rest = b""

    def frames(self, wanted: Callable[[int, int], bool]) -> Iterator[Any]:
        """New frames; `wanted(kind, index)` says of each whether it shall be decoded at all."""
        while data := os.read(self._fd, READ_BYTES):
            data = self._rest + data
            at = 0
            while at + HEAD.size <= len(data):
                length, kind, index = HEAD.unpack_from(data, at)
                end = at + HEAD.size + length
                if end > len(data):
                    break
                if wanted(kind, index):
                    yield unpack(kind, data[at + HEAD.size : end])
                at = end
            self._rest = data[at:]

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
