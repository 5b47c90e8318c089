"""The spool: an append-only file that survives SIGKILL, written by a thread so that no disk can stall the loop."""

from __future__ import annotations

import fcntl
import mmap
import os
import queue
import threading
import time
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.errors import WorldError
from pddbench.replay import credentials, frames
from pddbench.replay.exchange import Exchange
from pddbench.replay.frames import HEAD, NO_INDEX, Answered, Frame, Reads

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PENDING = 256  # frames


class SpoolWriter:
    """Appends frames to a new file. `push` hands what was written to the thread; `close` pushes too.

    Handing over wakes the thread, which costs the caller a turn of the interpreter: not for every frame.
    """

    def __init__(self, path: Path, arm: str, repeat: int, requests: int) -> None:
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise WorldError(f"cannot write the spool {path}: {error.strerror}") from None
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # tells `recover` that this run lives; SIGKILL releases it
        self.path = path
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._pending: list[bytes] = []
        self._failed: OSError | None = None
        self._thread = threading.Thread(target=self._drain, name="spool", daemon=True)
        self._thread.start()
        self.write(frames.Opened(arm, repeat, requests, time.time_ns(), time.monotonic_ns()))
        self.push()

    def write(self, frame: Frame) -> None:
        """Append a frame with the next `push`. Raises `WorldError` once the file cannot be written any more."""
        self.append(frames.pack(frame))

    def append(self, packed: bytes) -> None:
        """Append whole frames that are packed already; as `write`."""
        if self._failed is not None:
            raise WorldError(f"cannot write the spool {self.path}: {self._failed.strerror}")
        self._pending.append(packed)
        if len(self._pending) >= PENDING:
            self.push()

    def push(self) -> None:
        """Hand over what was written."""
        if self._pending:
            self._queue.put(b"".join(self._pending))
            self._pending.clear()

    def flush_exchange(self, exchange: Exchange) -> None:
        """Append what an exchange has gathered since the last time; its reads leave memory."""
        if exchange.changed:
            exchange.changed = False
            self.write(
                Answered(
                    exchange.index,
                    exchange.sent_ns,
                    exchange.reused,
                    exchange.headers_ns,
                    exchange.status,
                    exchange.content_type,
                    exchange.location,
                    exchange.headers_kernel,
                    exchange.began_ns,
                )
            )
        for n, entries in exchange.packed:
            self.append(frames.pack_reads(exchange.index, n, entries))
        exchange.packed.clear()
        if exchange.reads:
            self.write(Reads(exchange.index, exchange.reads))
            exchange.reads.clear()

    def close(self) -> None:
        """Wait until everything is in the file. Raises `WorldError` if something could not be written."""
        if self._thread.is_alive():
            self.push()
            self._queue.put(None)
            self._thread.join()
            os.close(self._fd)
        if self._failed is not None:
            raise WorldError(f"cannot write the spool {self.path}: {self._failed.strerror}")

    def _drain(self) -> None:
        """The thread: write until told to stop; after a failure only take frames out of memory."""
        while (data := self._queue.get()) is not None:
            if self._failed is not None:
                continue
            try:
                view = memoryview(credentials.mask(data))
                while view:
                    view = view[os.write(self._fd, view) :]
            except OSError as error:
                self._failed = error


class RequestFrames(msgspec.Struct):
    """All that a spool holds of one request."""

    handed: frames.Handed | None = None
    answered: frames.Answered | None = None
    ended: frames.Ended | None = None
    not_sent: frames.NotSent | None = None
    reads: list[Any] = msgspec.field(default_factory=list)


class Spool:
    """A spool read back: an index of its frames in memory (16 bytes each), their contents mapped from the file.

    `torn_bytes` counts what is behind the last whole frame (a write that SIGKILL cut short).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise WorldError(f"the spool {path} is empty: nothing of this run was saved")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._common: list[int] = []
        offsets, indices = array("q"), array("q")
        self.torn_bytes = self._scan(offsets, indices)
        self._sort(offsets, indices)
        self.opened: frames.Opened = self._first(frames.Opened)
        zero = self._first(frames.Zero, missing_ok=True)
        self.started = zero is not None
        self.exact_timer: bool | None = zero.exact_timer if zero else None
        self.reader: str | None = zero.reader if zero else None
        self.t0_ns: int = zero.t0_ns if zero else self.opened.monotonic_ns
        closed = self._first(frames.Closed, missing_ok=True)
        self.status: str = closed.status if closed else "killed"

    def _scan(self, offsets: array[int], indices: array[int]) -> int:
        """Walk over the heads; returns the bytes behind the last whole frame."""
        size, at = len(self._map), 0
        while at + HEAD.size <= size:
            length, kind, index = HEAD.unpack_from(self._map, at)
            if not 1 <= kind <= len(frames.KINDS) or at + HEAD.size + length > size:
                break
            if index == NO_INDEX:
                self._common.append(at)
            else:
                offsets.append(at)
                indices.append(index)
            at += HEAD.size + length
        return size - at

    def _sort(self, offsets: array[int], indices: array[int]) -> None:
        """Frames by request, in the order they were written."""
        import numpy as np

        where, of = np.frombuffer(offsets, dtype=np.int64), np.frombuffer(indices, dtype=np.int64)
        order = np.argsort(of, kind="stable")
        self._offsets, self._indices = where[order], of[order]

    def _frame(self, at: int) -> Any:
        length, kind, _ = HEAD.unpack_from(self._map, at)
        return frames.unpack(kind, self._map[at + HEAD.size : at + HEAD.size + length])

    def _first(self, kind: type[msgspec.Struct], missing_ok: bool = False) -> Any:
        frame = next(self._of_kind(kind), None)
        if frame is None and not missing_ok:
            raise WorldError(f"{self.path} is not a spool of this version")
        return frame

    def _of_kind(self, kind: type[msgspec.Struct]) -> Iterator[Any]:
        wanted = frames.kind_of(kind)
        for at in self._common:
            if HEAD.unpack_from(self._map, at)[1] == wanted:
                yield self._frame(at)

    @property
    def health(self) -> Iterable[frames.Health]:
        """The health samples, in order."""
        return self._of_kind(frames.Health)

    @property
    def clock_offsets(self) -> Iterable[frames.ClockOffset]:
        """The samples of the two clocks' difference, in order."""
        return self._of_kind(frames.ClockOffset)

    def seen(self, requests: int) -> npt.NDArray[np.int64]:
        """Indices below `requests` of which there are frames, ascending, repeated."""
        return self._indices[self._indices < requests]

    def request(self, index: int) -> RequestFrames:
        """Everything of request `index`; empty when it never came to be."""
        import numpy as np

        first, last = np.searchsorted(self._indices, [index, index + 1])
        out = RequestFrames()
        for at in self._offsets[first:last].tolist():
            match self._frame(at):
                case frames.Reads() as frame:
                    out.reads += frame.reads
                case frames.Handed() as frame:
                    out.handed = frame
                case frames.Answered() as frame:
                    out.answered = frame
                case frames.Ended() as frame:
                    out.ended = frame
                case frames.NotSent() as frame:
                    out.not_sent = frame
        return out

    def count_sent(self) -> tuple[int, int]:
        """How many requests were sent, and how many of those have no end."""
        handed, ended = frames.kind_of(frames.Handed), frames.kind_of(frames.Ended)
        kinds = [self._map[at + 4] for at in self._offsets.tolist()]
        return kinds.count(handed), kinds.count(handed) - kinds.count(ended)

    def let_go(self) -> None:
        """What was read of the file need not stay in memory; it is read again when it is asked for."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def is_being_written(path: Path) -> bool:
    """Whether the process that writes this spool is alive."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read_spool(path: Path) -> Spool:
    """Open a spool, whole or torn. Raises `WorldError` when it is none."""
    return Spool(path)
