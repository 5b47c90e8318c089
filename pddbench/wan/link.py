"""The link as figures: one-way delay, rate, what one flow can reach, loss and jitter, with named profiles."""

from __future__ import annotations

import msgspec


class Link(msgspec.Struct, frozen=True):
    """A WAN link. The delay is one way; rates are megabits (10^6) a second; `flow_rate_mbit` caps one TCP flow."""

    one_way_ms: float
    rate_mbit: float
    flow_rate_mbit: float
    loss_pct: float = 0.0
    jitter_ms: float = 0.0
    profile: str = "custom"

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
