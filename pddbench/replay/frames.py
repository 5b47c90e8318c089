"""The frames of a spool: what is written while a run is on, one after the other, and read back after it.

A frame is a 9-byte head (length of its payload, kind, index of the request) and a msgpack array. All stamps are wall
CLOCK_MONOTONIC nanoseconds, not yet relative to t0 nor multiplied by an emulator's speed.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

HEAD = struct.Struct(">IBI")
NO_INDEX = 0xFFFFFFFF
VERSION = 1


class Opened(msgspec.Struct, array_like=True):
    """First frame: which run this is, when it was opened on both clocks."""

    arm: str
    repeat: int
    requests: int
    utc_ns: int
    monotonic_ns: int
    version: int = VERSION


class Zero(msgspec.Struct, array_like=True):
    """The run's t0: the measured requests' times count from here. `exact_timer`: starts are paced by a timerfd.
    `reader`: who reads the answers."""  # fmt: skip

    t0_ns: int
    exact_timer: bool | None = None
    reader: str | None = None


class Handed(msgspec.Struct, array_like=True):
    """A request was given to the transport, with its times until then. `late_body`: encoded only when it was due."""

    index: int
    handed_ns: int
    scheduled_ns: int
    ready_ns: int
    due_ns: int
    throttle_wait_ns: int
    body_sha256: str
    late_body: bool


class Answered(msgspec.Struct, array_like=True):
    """What is known of an exchange besides its body; the last such frame of a request counts.

    `began_ns`: when it began to connect, or to be sent on a connection that was there (None: when handed over).
    """

    index: int
    sent_ns: int | None
    reused: bool
    headers_ns: int | None
    status: int | None
    content_type: str
    location: str
    headers_kernel: bytes | None = None
    began_ns: int | None = None


def connect_wait_ns(handed: Handed, answered: Answered) -> int | None:
    """How long a request waited for a connection; None: it was never sent."""
    if answered.sent_ns is None:
        return None
    return answered.sent_ns - (handed.handed_ns if answered.began_ns is None else answered.began_ns)


class Reads(msgspec.Struct, array_like=True):
    """Reads of a body in order: (t_ns, bytes) or (t_ns, bytes, the kernel's stamp as it gave it)."""

    index: int
    reads: list[tuple[Any, ...]]


class Ended(msgspec.Struct, array_like=True):
    """The exchange is over."""

    index: int
    end_ns: int
    ending: str
    error: str | None


class NotSent(msgspec.Struct, array_like=True):
    """A planned request that was never sent, why, and the times it got to."""

    index: int
    reason: str
    scheduled_ns: int | None
    ready_ns: int | None
    due_ns: int | None


class Health(msgspec.Struct, array_like=True):
    """A sample of the client's own health over the interval that ends at `t_ns`.

    `cpu_share` is of the whole process; `busy_share` of the busier of the thread that reads beside the interpreter and
    all others together, which can each take a core (on a single core: of all together), null in spools without it.
    `kernel_gap_ns`: how much later than the kernel we stamped a read, of the newest read at each sample that has one.
    """

    t_ns: int
    loop_lag_ns: list[int]
    cpu_share: float
    run_delay_ns: int | None
    rss_bytes: int | None
    in_flight: int
    kernel_gap_ns: list[int] = []
    busy_share: float | None = None


class ClockOffset(msgspec.Struct, array_like=True):
    """CLOCK_REALTIME − CLOCK_MONOTONIC at a moment of the latter: what turns kernel stamps into our own time."""

    t_ns: int
    offset_ns: int


class Closed(msgspec.Struct, array_like=True):
    """Last frame: the run came to its end (`complete`) or was stopped by a signal (`interrupted`)."""

    status: str


Frame = Opened | Zero | Handed | Answered | Reads | Ended | NotSent | Health | Closed | ClockOffset
KINDS: tuple[type[msgspec.Struct], ...] = (Opened, Zero, Handed, Answered, Reads, Ended, NotSent, Health, Closed,
                                           ClockOffset)  # fmt: skip
_KIND_OF = {frame: kind for kind, frame in enumerate(KINDS, start=1)}
_DECODERS = {kind: msgspec.msgpack.Decoder(frame) for kind, frame in enumerate(KINDS, start=1)}
_encode = msgspec.msgpack.Encoder().encode


def pack(frame: Frame) -> bytes:
    """A frame as bytes."""
    payload = _encode(frame)
    return HEAD.pack(len(payload), _KIND_OF[type(frame)], getattr(frame, "index", NO_INDEX)) + payload


def pack_reads(index: int, n: int, entries: bytes) -> bytes:
    """A frame of `n` reads that are packed already."""
    start = b"\x92\xce" + index.to_bytes(4, "big") + b"\xdd" + n.to_bytes(4, "big")
    return HEAD.pack(len(start) + len(entries), _KIND_OF[Reads], index) + start + entries


def kind_of(frame: type[msgspec.Struct]) -> int:
    """The number a kind of frame has in a spool."""
    return _KIND_OF[frame]


def unpack(kind: int, payload: bytes | memoryview) -> Any:
    """A frame from its kind and payload. Raises `msgspec.MsgspecError` when it is not one."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise msgspec.DecodeError(f"frame of unknown kind {kind}")
    return decoder.decode(payload)
