"""The link as figures: one-way delay, rate, what one flow can reach, loss and jitter, with named profiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pddbench.errors import InputError, suggest

if TYPE_CHECKING:
    from pddbench.workload.experiment import Wan


class Link(msgspec.Struct, frozen=True):
    """A WAN link. The delay is one way; rates are megabits (10^6) a second; `flow_rate_mbit` caps one TCP flow."""

    one_way_ms: float
    rate_mbit: float
    flow_rate_mbit: float
    loss_pct: float = 0.0
    jitter_ms: float = 0.0
    profile: str = "custom"
    congestion_control: str = "cubic"

    @property
    def rtt_s(self) -> float:
        """Round-trip time of the idle link in seconds: the sum of both ways."""
        return 2 * self.one_way_ms / 1e3

    @property
    def rate_bytes_s(self) -> float:
        """Capacity in bytes a second."""
        return self.rate_mbit * 1e6 / 8

    @property
    def flow_bytes_s(self) -> float:
        """What a single flow can reach, bytes a second."""
        return min(self.rate_mbit, self.flow_rate_mbit) * 1e6 / 8


WINDOW_BYTES = 4 * 1024 * 1024  # default maximum of Linux's tcp_wmem: what one flow can have under way
_LINE_MBIT = 10_000.0  # the lower end of the 10-100 Gbit/s a WAN line is said to have (CLAIMS C17)


def window_mbit(one_way_ms: float, rate_mbit: float = _LINE_MBIT) -> float:
    """What one TCP flow can reach: a window of 4 MiB each RTT, at most the line."""
    if one_way_ms <= 0:
        return rate_mbit
    return min(rate_mbit, WINDOW_BYTES * 8 / (2 * one_way_ms * 1e3))


# One-way delays: the profiles in CLAIMS.md. A flow's cap is its window / RTT; "national" is C1's 305 MB in 2.5 s, about
# 1 Gbit/s, which is what the window gives too (1.1).
PROFILES = {
    "metro": Link(1.0, _LINE_MBIT, _LINE_MBIT, profile="metro"),
    "regional": Link(5.0, _LINE_MBIT, round(window_mbit(5.0)), profile="regional"),
    "national": Link(15.0, _LINE_MBIT, 1000.0, profile="national"),
    "continental": Link(33.0, _LINE_MBIT, round(window_mbit(33.0)), profile="continental"),
    # A national line that others fill: a tenth of the rate, a packet in a thousand lost, jitter of queues on the way.
    # Chosen, not measured: TCP is then bound by loss (16 Mbit/s a flow of Cubic or Reno), which only packets show.
    "congested": Link(15.0, 1000.0, 1000.0, loss_pct=0.1, jitter_ms=2.0, profile="congested"),
}
DEFAULT_PROFILE = "national"
MIN_WIRE_MBIT = 1.0

_RANGES = {
    "one_way_ms": (0.0, 1000.0),
    "rate_mbit": (0.1, 1_000_000.0),
    "flow_rate_mbit": (0.1, 1_000_000.0),
    "loss_pct": (0.0, 50.0),
    "jitter_ms": (0.0, 1000.0),
}


def wire_link(link: Link, kv_scale: float, speed: float) -> Link:
    """The link that real packets see: rates divided by `kv_scale`, times divided by `speed`. Raises `InputError`.

    A transfer of bytes / `kv_scale` then takes 1 / `speed` of its time, but for what TCP counts in packets: with
    `kv_scale` above 1 slow start needs fewer rounds, and a lost packet stands for `kv_scale` of them.
    """
    rate_mbit = link.rate_mbit * speed / kv_scale
    if rate_mbit < MIN_WIRE_MBIT:
        raise InputError(
            f"kv_scale = {kv_scale:g} leaves {rate_mbit:.3g} Mbit/s of the line to real packets, and control messages "
            f"share it: lower kv_scale so that at least {MIN_WIRE_MBIT:g} is left, or use --wan model"
        )
    return msgspec.structs.replace(
        link,
        one_way_ms=link.one_way_ms / speed,
        jitter_ms=link.jitter_ms / speed,
        rate_mbit=rate_mbit,
        flow_rate_mbit=link.flow_rate_mbit * speed / kv_scale,
    )


def resolve_link(wan: Wan, backend: str = "model") -> Link:
    """The link of an experiment: its profile with the given figures put in. Raises `InputError`."""
    given = {name: value for name in _RANGES if (value := getattr(wan, name)) is not None}
    for name, value in given.items():
        low, high = _RANGES[name]
        if not low <= value <= high:
            raise InputError(f"[wan] {name} = {value:g} is out of range: {low:g} to {high:g}")
    link = msgspec.structs.replace(_base(wan, given), **given)
    if backend == "model" and (link.loss_pct or link.jitter_ms):
        raise InputError("[wan] loss_pct and jitter_ms need the netem or tun backend: the model backend has no packets")
    if backend == "model" and wan.congestion_control != link.congestion_control:
        raise InputError(
            f"[wan] congestion_control = {wan.congestion_control!r} needs the netem or tun backend: the model backend "
            "has no packets"
        )
    link = msgspec.structs.replace(link, congestion_control=wan.congestion_control)
    if link.flow_rate_mbit > link.rate_mbit:
        link = msgspec.structs.replace(link, flow_rate_mbit=link.rate_mbit)
    return link


def _base(wan: Wan, given: dict[str, float]) -> Link:
    """The profile asked for, or what is known of a link of the given delay."""
    if wan.profile is None and "one_way_ms" in given:
        rate_mbit = given.get("rate_mbit", _LINE_MBIT)
        return Link(given["one_way_ms"], rate_mbit, window_mbit(given["one_way_ms"], rate_mbit))
    name = wan.profile or DEFAULT_PROFILE
    if name not in PROFILES:
        raise InputError(f"[wan] unknown profile {name!r}: {suggest(name, list(PROFILES))}")
    changed = any(getattr(PROFILES[name], key) != value for key, value in given.items())
    return msgspec.structs.replace(PROFILES[name], profile=f"{name}, changed" if changed else name)
