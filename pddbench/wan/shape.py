"""What one direction of a link does to its packets, in the terms that netem and the TUN emulator share."""

from __future__ import annotations

import math

import msgspec

from pddbench.errors import InputError
from pddbench.wan.link import Link, wire_link

MTU_BYTES = 1500
MIN_LIMIT_PACKETS = 10_000
OFFLOAD_MBIT = 1000.0
_MIN_QUEUE_PACKETS = (
    300  # what a busy host sends in one bunch: with 100 a flow got 70% of an 80 Mbit/s line, with 250 95%
)
DISTRIBUTIONS = ("uniform", "normal")
_QUEUE_FACTOR = 1.5  # what is under way, and half as much waiting for the line


class Gilbert(msgspec.Struct, frozen=True):
    """Gilbert-Elliott loss: a good and a bad state; all figures are percent a packet (as netem's `gemodel`)."""

    to_bad_pct: float
    to_good_pct: float
    bad_loss_pct: float = 100.0
    good_loss_pct: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0.0 <= getattr(self, name) <= 100.0:
                raise InputError(f"Gilbert-Elliott loss: {name} = {getattr(self, name):g} is out of range: 0 to 100")
        if self.to_bad_pct + self.to_good_pct <= 0:
            raise InputError("Gilbert-Elliott loss: to_bad_pct and to_good_pct cannot both be 0")

    @property
    def bad_share(self) -> float:
        """Share of packets that meet the bad state."""
        return self.to_bad_pct / (self.to_bad_pct + self.to_good_pct)

    @property
    def loss_share(self) -> float:
        """Mean share of packets lost."""
        return (self.bad_share * self.bad_loss_pct + (1 - self.bad_share) * self.good_loss_pct) / 100

    @property
    def variance_factor(self) -> float:
        """Variance of a long count of losses, over that of independent losses at the same mean: bursts count again."""
        mean = self.loss_share
        if not 0 < mean < 1:
            return 1.0
        bad, gap = self.bad_share, (self.bad_loss_pct - self.good_loss_pct) / 100
        memory = 1 - (self.to_bad_pct + self.to_good_pct) / 100  # correlation of the state with the next packet's
        covariance = gap * gap * bad * (1 - bad) * memory / (1 - memory)
        return 1 + 2 * covariance / (mean * (1 - mean))


def parse_gilbert(text: str) -> Gilbert:
    """`TO_BAD,TO_GOOD[,BAD_LOSS[,GOOD_LOSS]]` in percent."""
    try:
        figures = [float(word) for word in text.split(",")]
    except ValueError:
        figures = []
    if not 2 <= len(figures) <= 4:
        raise InputError(f"Gilbert-Elliott loss is TO_BAD,TO_GOOD[,BAD_LOSS[,GOOD_LOSS]] in percent, not {text!r}")
    return Gilbert(*figures)


class Shape(msgspec.Struct, frozen=True):
    """One direction: one-way delay and jitter (ms), rate (Mbit/s, of Ethernet frames), random or bursty loss."""

    delay_ms: float
    rate_mbit: float | None
    jitter_ms: float = 0.0
    distribution: str = "normal"
    loss_pct: float = 0.0
    gilbert: Gilbert | None = None
    mtu_bytes: int = MTU_BYTES
    queue_packets: int | None = None  # None: by `limit_packets`

    def __post_init__(self) -> None:
        if self.jitter_ms and not self.rate_mbit:
            raise InputError("jitter without a rate reorders packets, which no line does: give rate_mbit too")
        if self.distribution not in DISTRIBUTIONS:
            raise InputError(f"jitter distribution {self.distribution!r} is none of {', '.join(DISTRIBUTIONS)}")
        if self.gilbert and self.loss_pct:
            raise InputError("loss_pct and Gilbert-Elliott loss are two models of one thing: give one")

    @property
    def loss_share(self) -> float:
        """Mean share of packets lost."""
        return self.gilbert.loss_share if self.gilbert else self.loss_pct / 100

    @property
    def limit_packets(self) -> int:
        """Room of the queue: 1.5 x rate x delay in packets, at least 10,000 (netem's own 1000 drops on a long line)."""
        if self.queue_packets is not None:
            return self.queue_packets
        bits_under_way = (self.rate_mbit or 0.0) * 1e6 * self.delay_ms / 1e3
        return max(MIN_LIMIT_PACKETS, math.ceil(_QUEUE_FACTOR * bits_under_way / (8 * self.mtu_bytes)))


def offload(shape: Shape) -> bool:
    """Whether super-packets of up to 64 KB may cross: on fast lines without loss.

    Below 1 Gbit/s one would hold the line for more than half a millisecond, a loss would hit all of it, and a queue
    that counts packets would hold forty times as many bytes.
    """
    return shape.loss_share == 0 and (shape.rate_mbit or OFFLOAD_MBIT) >= OFFLOAD_MBIT


def wire_shape(link: Link, kv_scale: float, speed: float) -> Shape:
    """What a direction does to the real packets of a scaled deployment (`wan.link.wire_link`).

    Scaled, the queue is what is under way and a round trip's worth waiting for the line: the 10,000 packets that a
    fast line needs would be seconds of a slow one.
    """
    shape = shape_of(wire_link(link, kv_scale, speed))
    if kv_scale == 1:
        return shape
    bits = 3 * (shape.rate_mbit or 0.0) * 1e6 * shape.delay_ms / 1e3
    queue = min(shape.limit_packets, max(_MIN_QUEUE_PACKETS, math.ceil(bits / (8 * shape.mtu_bytes))))
    return msgspec.structs.replace(shape, queue_packets=queue)


def shape_of(link: Link, gilbert: Gilbert | None = None, mtu_bytes: int = MTU_BYTES) -> Shape:
    """A direction of `link`. Its cap on a single flow is no property of packets: the sender paces itself."""
    return Shape(
        delay_ms=link.one_way_ms,
        rate_mbit=link.rate_mbit,
        jitter_ms=link.jitter_ms,
        loss_pct=0.0 if gilbert else link.loss_pct,
        gilbert=gilbert,
        mtu_bytes=mtu_bytes,
    )
