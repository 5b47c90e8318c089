"""Is the link what was asked? Measured with real packets after it was made, as figures for the manifest.

Round trips: the median of at least 20 within max(1 ms, 5%). Without loss: the throughput of one unlimited flow, at its
receiver, within 15%. With loss: what the link's own counters lost, within the 99% interval of that many draws. And what
was set is still set. A link that cannot be measured is not verified: that is an error, never a pass.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence

import msgspec

from pddbench.errors import WorldError
from pddbench.wan.device import Backend
from pddbench.wan.meter import Meter
from pddbench.wan.namespaces import Side
from pddbench.wan.shape import Shape

RTT_COUNT = 20
RTT_SLACK_MS, RTT_SLACK = 1.0, 0.05
RATE_SLACK = 0.15
_LOAD_S, _LOAD_ROUNDS = 2.0, 20  # at least two seconds, and 20 times the bandwidth-delay product
_SEGMENT_BYTES, _FIRST_WINDOW_BYTES = 1448, 14_480
_FRAME_OVERHEAD_BYTES = 66  # Ethernet, IP, TCP with timestamps: a rate counts frames, a receiver counts payload
_Z99 = 2.5758  # two-sided 99% of the normal distribution
_LOSSES_WANTED = 100  # so that the interval is about a quarter of the loss
_DATAGRAMS = (2_000, 20_000)
_DATAGRAM_BITS = 8 * (1400 + 28 + 14)
_DATAGRAMS_PER_S = 8000.0
_LINE_SHARE = 0.5  # of a slow line for the datagrams: none may be dropped for want of room


class Finding(msgspec.Struct, frozen=True):
    """One property of the link: what was wanted, what was found, the bounds it must lie in (both in `unit`)."""

    name: str
    unit: str
    wanted: float
    found: float
    low: float
    high: float
    samples: int
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether it lies within its bounds."""
        return self.low <= self.found <= self.high

    def words(self) -> str:
        """One line."""
        what = (
            f"{self.name}: {self.found:.4g} {self.unit}, wanted {self.wanted:.4g} ({self.low:.4g} to {self.high:.4g})"
        )
        return what + (f"; {self.note}" if self.note else "")


class Verification(msgspec.Struct, frozen=True):
    """All findings about a link; `ok` only when every one is."""

    backend: str
    findings: list[Finding]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether the link is what was asked."""
        return all(finding.ok for finding in self.findings)

    def facts(self) -> dict[str, object]:
        """For the manifest: plain values only."""
        return {"ok": self.ok, "seconds": round(self.seconds, 2),
                "findings": [{**msgspec.to_builtins(f), "ok": f.ok} for f in self.findings]}  # fmt: skip


def verify(backend: Backend, near: Side, far: Side, a_to_b: Shape, b_to_a: Shape, load: bool = True) -> Verification:
    """Measure the link between the sides; `load=False` leaves out what fills the line. Raises `WorldError`."""
    start = time.monotonic()
    findings = []
    with Meter(near, far) as meter:
        findings += check_delays(meter, a_to_b, b_to_a)
        if load and a_to_b.loss_share:
            findings.append(check_loss(backend, meter, "a_to_b", a_to_b))
        elif load and b_to_a.loss_share == 0 and a_to_b.rate_mbit:
            findings.append(check_rate(meter, a_to_b, (a_to_b.delay_ms + b_to_a.delay_ms) / 1e3))
    if load and (b_to_a.loss_share or b_to_a != a_to_b):
        with Meter(far, near) as meter:
            if b_to_a.loss_share:
                findings.append(check_loss(backend, meter, "b_to_a", b_to_a))
            elif a_to_b.loss_share == 0 and b_to_a.rate_mbit:
                findings.append(check_rate(meter, b_to_a, (a_to_b.delay_ms + b_to_a.delay_ms) / 1e3))
    backend.check_unchanged()
    return Verification(backend.name, findings, time.monotonic() - start)


def check_delays(meter: Meter, a_to_b: Shape, b_to_a: Shape, count: int = RTT_COUNT) -> list[Finding]:
    """The median round trip of single datagrams, and the way there alone: two delays on the wrong sides have the same
    sum. Lost datagrams are sent again, up to a limit."""  # fmt: skip
    wanted = a_to_b.delay_ms + b_to_a.delay_ms
    timeout_s = 1.0 + 3 * (wanted + 3 * (a_to_b.jitter_ms + b_to_a.jitter_ms)) / 1e3
    times_ms: list[float] = []
    there_ms: list[float] = []
    for _ in range(5):
        round_trips, there = meter.trips_ms(count - len(times_ms) + 2, timeout_s)
        times_ms, there_ms = times_ms + round_trips, there_ms + there
        if len(times_ms) >= count:
            both = rtt_finding(times_ms, wanted, (a_to_b.jitter_ms + b_to_a.jitter_ms))
            return [both, rtt_finding(there_ms, a_to_b.delay_ms, a_to_b.jitter_ms, "delay a_to_b")]
    raise WorldError(f"cannot measure the link: only {len(times_ms)} of {5 * count} round trips came back")


def rtt_finding(times_ms: Sequence[float], wanted_ms: float, jitter_ms: float, name: str = "rtt median") -> Finding:
    """The verdict on delays; the median of few with jitter is itself uncertain, which widens the bounds."""
    slack = max(RTT_SLACK_MS, RTT_SLACK * wanted_ms) + _Z99 * 1.2533 * jitter_ms / math.sqrt(len(times_ms))
    low, median, high = min(times_ms), statistics.median(times_ms), max(times_ms)
    note = f"{low:.2f} to {high:.2f}"
    return Finding(name, "ms", wanted_ms, median, wanted_ms - slack, wanted_ms + slack, len(times_ms), note)


def check_rate(meter: Meter, shape: Shape, rtt_s: float) -> Finding:
    """The link's throughput to one flow whose window is open."""
    rate_mbit = shape.rate_mbit or 0.0
    window_bytes = rate_mbit * 1e6 / 8 * rtt_s
    rounds = max(0.0, math.log2(max(1.0, window_bytes / _FIRST_WINDOW_BYTES)))
    measured_s = max(_LOAD_S, _LOAD_ROUNDS * rtt_s)
    mbit, control = meter.throughput(0.5 + 2 * rounds * rtt_s, measured_s)
    payload = shape.mtu_bytes - (_FRAME_OVERHEAD_BYTES - 14)
    wanted = rate_mbit * payload / (payload + _FRAME_OVERHEAD_BYTES)
    note = f"payload of one {control} flow over {measured_s:.1f} s"
    return Finding("throughput", "Mbit/s", wanted, mbit, wanted * (1 - RATE_SLACK), wanted * (1 + RATE_SLACK), 1, note)


def check_loss(backend: Backend, meter: Meter, direction: str, shape: Shape) -> Finding:
    """The share of datagrams that the link's own counters lost."""
    share = shape.loss_share
    per_s = min(_DATAGRAMS_PER_S, _LINE_SHARE * (shape.rate_mbit or math.inf) * 1e6 / _DATAGRAM_BITS)
    count = round(min(max(_LOSSES_WANTED / share, _DATAGRAMS[0]), _DATAGRAMS[1]))
    before = backend.counters()[direction]
    meter.measure("datagrams", count, per_s, seconds=count / per_s)
    time.sleep(0.1 + (shape.delay_ms + 4 * shape.jitter_ms) / 1e3)  # netem counts what has left
    after = backend.counters()[direction]
    lost, passed = (int(after[key] - before[key]) for key in ("lost", "packets"))
    return loss_finding(direction, lost, passed + lost, share, shape.gilbert.variance_factor if shape.gilbert else 1.0)


def loss_finding(direction: str, lost: int, sent: int, share: float, variance_factor: float) -> Finding:
    """The verdict on a count of losses: within the 99% interval; none sent is outside of any."""
    if sent == 0:
        return Finding(f"loss {direction}", "%", 100 * share, -1.0, 0.0, 100.0, 0, "no packet was counted")
    low, high = loss_interval(sent, share, variance_factor)
    note = f"{lost} of {sent} by the link's counters"
    return Finding(
        f"loss {direction}", "%", 100 * share, 100 * lost / sent, 100 * low / sent, 100 * high / sent, sent, note
    )


def loss_interval(sent: int, share: float, variance_factor: float = 1.0) -> tuple[int, int]:
    """Two-sided 99% interval of the number lost of `sent`: exact when independent, else normal."""
    if variance_factor > 1.0:
        half = _Z99 * math.sqrt(sent * share * (1 - share) * variance_factor) + 0.5
        return max(0, math.floor(sent * share - half)), min(sent, math.ceil(sent * share + half))
    return _binomial_quantile(sent, share, 0.005), _binomial_quantile(sent, share, 0.995)


def _binomial_quantile(n: int, p: float, q: float) -> int:
    """Smallest k with P(X <= k) >= q, by summing the distribution in logarithms."""
    total = 0.0
    for k in range(n + 1):
        log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        total += math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p)) if 0 < p < 1 else float(k == n * p)
        if total >= q:
            return k
    return n
