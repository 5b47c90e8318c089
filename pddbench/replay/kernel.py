"""Kernel receive stamps (`SO_TIMESTAMPNS`): asked for on a socket, kept raw while a run is on, converted after it.

The kernel stamps a segment when it arrives, on CLOCK_REALTIME. The difference of that clock to CLOCK_MONOTONIC is
sampled through the run; a stamp is converted with the difference at the stamp itself, so that equal stamps
stay equal and keep their order, whenever they were read. Where two samples differ by more than a clock can be slewed,
CLOCK_REALTIME was set in between, and the stamps of reads from that time are not used.
"""

from __future__ import annotations

import socket
import struct
import time
from bisect import bisect_right
from collections.abc import Sequence

from pddbench.replay.stream import RawRead, Read

_STAMP = struct.Struct("@ll")
STAMP_BYTES = _STAMP.size
ANCILLARY_BYTES = socket.CMSG_SPACE(_STAMP.size)
_SO_TIMESTAMPNS = 35  # asm-generic; other numbers only on sparc, parisc and alpha, where asking does no harm
_NS = 1_000_000_000
TOLERANCE_NS = 20_000  # a stamp may seem to lie that much after our own: the error of the two clocks' difference
SLEW = 0.001  # a clock is slewed by at most 500 ppm; twice that
STEP_FLOOR_NS = 50_000
_STAMP_TYPE = f"i{_STAMP.size // 2}"
_MANY = 24  # reads from which NumPy is quicker than one by one

Offset = tuple[int, int]
"""A sample: CLOCK_MONOTONIC ns, and CLOCK_REALTIME − CLOCK_MONOTONIC at that moment."""


def ask_for_stamps(sock: socket.socket) -> bool:
    """Have the kernel stamp what this socket receives; whether it will."""
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def sample_offset(samples: int = 5) -> Offset:
    """The difference of the clocks now: of a few samples the one that was taken fastest."""
    best, at = None, (0, 0)
    for _ in range(samples):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        if best is None or after - before < best:
            best, middle = after - before, (before + after) // 2
            at = middle, real - middle
    return at


class KernelClock:
    """Kernel stamps on CLOCK_MONOTONIC. `rejected` counts those that could not be believed."""

    def __init__(self, offsets: Sequence[Offset]) -> None:
        self._t = [t_ns for t_ns, _ in offsets]
        self._offset = [offset for _, offset in offsets]
        self._real = [t_ns + offset for t_ns, offset in offsets]
        cuts = [i + 1 for i in range(len(offsets) - 1) if self._stepped(i)]
        self._between = [0, *cuts, len(offsets)]  # the clock was not set among the samples from one to the next
        self.steps = len(cuts)
        self.rejected = 0

    def monotonic_ns(self, raw: bytes, user_ns: int) -> int | None:
        """A raw stamp of a read that we stamped `user_ns`; None when it cannot be used."""
        part = self._part_at(user_ns) if len(raw) == _STAMP.size else None
        if part is None:
            self.rejected += 1
            return None
        seconds, nanoseconds = _STAMP.unpack(raw)
        real_ns: int = seconds * _NS + nanoseconds
        stamp = real_ns - self._offset_at(real_ns, *part)
        if stamp > user_ns + TOLERANCE_NS:
            self.rejected += 1
            return None
        return min(stamp, user_ns)

    def monotonic_all(self, raw: bytes, user_ns: Sequence[int]) -> list[int] | None:
        """`monotonic_ns` of many stamps, one behind the other, at once; None when not all of them can be used."""
        import numpy as np

        user = np.array(user_ns, dtype=np.int64)
        part, last_part = self._part_at(int(user.min())), self._part_at(int(user.max()))
        if part is None or part != last_part:
            return None  # around a step, or no samples
        seconds, nanoseconds = np.frombuffer(raw, dtype=_STAMP_TYPE).reshape(-1, 2).T
        real = seconds.astype(np.int64) * _NS + nanoseconds
        first = bisect_right(self._real, int(real.min()), *part)
        last = bisect_right(self._real, int(real.max()), *part)
        if not part[0] < first <= last < part[1]:
            return None  # before the first sample, or after the last
        at, offset = (np.array(column[first - 1 : last + 1], dtype=np.int64) for column in (self._real, self._offset))
        i = np.searchsorted(at, real, side="right") - 1
        share = (real - at[i]) / (at[i + 1] - at[i])
        stamps = real - (offset[i] + np.rint(share * (offset[i + 1] - offset[i])).astype(np.int64))
        if (stamps > user + TOLERANCE_NS).any():
            return None
        found: list[int] = np.minimum(stamps, user).tolist()
        return found

    def _part_at(self, user_ns: int) -> tuple[int, int] | None:
        """The samples (from, until) since the clock was set last before a time; None around a step, without samples."""
        after = bisect_right(self._t, user_ns)
        if not self._t or (0 < after < len(self._t) and self._stepped(after - 1)):
            return None
        i = bisect_right(self._between, max(0, after - 1))
        return self._between[i - 1], self._between[i]

    def _offset_at(self, real_ns: int, first: int, last: int) -> int:
        """The clocks' difference at a time on CLOCK_REALTIME, by samples among which it was not set."""
        after = bisect_right(self._real, real_ns, first, last)
        if after in (first, last):
            return self._offset[max(first, after - 1)]
        i = after - 1
        share = (real_ns - self._real[i]) / (self._real[after] - self._real[i])
        return self._offset[i] + round(share * (self._offset[after] - self._offset[i]))

    def _stepped(self, i: int) -> bool:
        """Whether the clock was set between sample i and the next."""
        moved = abs(self._offset[i + 1] - self._offset[i])
        return moved > STEP_FLOOR_NS + SLEW * (self._t[i + 1] - self._t[i])


def on_our_clock(reads: Sequence[RawRead], clock: KernelClock) -> list[Read]:
    """Reads of a spool with the kernel's stamps converted; those that cannot be used are left out."""
    if len(reads) >= _MANY and all(len(read) == 3 and len(read[2]) == _STAMP.size for read in reads):
        times, pieces, raw = zip(*reads, strict=True)
        stamps = clock.monotonic_all(b"".join(raw), times)
        if stamps is not None:
            return list(zip(times, pieces, stamps, strict=True))
    out: list[Read] = []
    for read in reads:
        stamp = clock.monotonic_ns(read[2], read[0]) if len(read) > 2 else None
        out.append((read[0], read[1]) if stamp is None else (read[0], read[1], stamp))
    return out
