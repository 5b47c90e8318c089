"""Opening a link: two namespaces, a backend between them, verified, and everything gone at the end."""

from __future__ import annotations

import math
import platform
import threading
import time
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from pddbench.errors import InputError
from pddbench.wan.backends import PACKET_BACKENDS
from pddbench.wan.device import ADDRESSES, Backend
from pddbench.wan.link import Link
from pddbench.wan.namespaces import CONGESTION_CONTROL, Namespaces, Side
from pddbench.wan.netem import Netem
from pddbench.wan.shape import Shape, shape_of
from pddbench.wan.tun import Tun
from pddbench.wan.verify import Verification, verify

_LATE_S = 0.1  # what was sent shortly before the end of a cut may be looked at after it


class Counted(NamedTuple):
    """What a link has carried, by direction (`Backend.counters`), and which link that was: `change` counts them."""

    change: int
    shapes: tuple[Shape, Shape]
    counters: dict[str, dict[str, float]]


class WanLink:
    """An open link: `side_a` and `side_b` start processes and have addresses; `facts` is for the manifest."""

    def __init__(self, namespaces: Namespaces, backend: Backend, a_to_b: Shape, b_to_a: Shape) -> None:
        self._namespaces = namespaces
        self.backend = backend
        self.shapes = (a_to_b, b_to_a)
        self.verifications: list[Verification] = []
        self._n_changes = 0
        self.in_force_s = time.monotonic()  # since when the link is as it is, CLOCK_MONOTONIC
        self._changing = threading.Lock()  # who reads back must not see a half of a change
        self._cuts: list[tuple[float, float, float]] = []  # begin of the change, in force, begin of the next one

    @property
    def side_a(self) -> Side:
        """Where router and cluster A run."""
        return self._namespaces.a

    @property
    def side_b(self) -> Side:
        """Where cluster B runs."""
        return self._namespaces.b

    @property
    def facts(self) -> dict[str, Any]:
        """What is in force, as read back, and what was measured: plain values."""
        directions = dict(zip(("a_to_b", "b_to_a"), map(msgspec.to_builtins, self.shapes), strict=True))
        return {
            "backend": self.backend.name,
            "kernel": platform.release(),
            "directions": directions,
            "read_back": self.backend.read_back(),
            "emulator": getattr(self.backend, "emulator", None),
            "namespaces": self._namespaces.facts,
            "congestion_control_per_socket": CONGESTION_CONTROL[0],
            "rates_count": "Ethernet frames",
            "flow_rate_mbit": "not enforced by the link: a sender paces itself (SO_MAX_PACING_RATE)",
            "verifications": [each.facts() for each in self.verifications],
        }

    def verify(self, load: bool = True) -> Verification:
        """Measure the link now; `load=False` sends 20 datagrams only. Kept in `facts`."""
        found = verify(self.backend, self.side_a, self.side_b, *self.shapes, load=load)
        self.verifications.append(found)
        return found

    def change(self, a_to_b: Shape, b_to_a: Shape) -> None:
        """Another link from now on, in force since `in_force_s`; read back after that, which takes longer."""
        begin_s = time.monotonic()
        with self._changing:
            self.backend.apply(a_to_b, b_to_a)
            self.in_force_s = time.monotonic()
            self.backend.check_unchanged()
            self.shapes = (a_to_b, b_to_a)
            self._n_changes += 1
            if self._cuts and self._cuts[-1][2] == math.inf:
                self._cuts[-1] = (*self._cuts[-1][:2], begin_s)
            if min(shape.loss_share for shape in self.shapes) == 1:
                self._cuts.append((begin_s, self.in_force_s, math.inf))

    def check_unchanged(self) -> tuple[Shape, Shape]:
        """The link that is in force; `WorldError` when it is no longer what was last applied."""
        with self._changing:
            self.backend.check_unchanged()
            return self.shapes

    def was_cut(self, from_s: float, until_s: float) -> bool:
        """Whether the link was cut for certain between these times (CLOCK_MONOTONIC), so that nothing comes through."""
        return any(in_force_s < from_s and until_s < end_s - _LATE_S for _, in_force_s, end_s in self._cuts)

    def cut_since(self, from_s: float) -> bool:
        """Whether the link was, or may have been, cut at some time after `from_s`."""
        return any(end_s >= from_s for _, _, end_s in self._cuts)

    def counters(self) -> dict[str, dict[str, float]]:
        """By direction since the start: packets, wire bytes, lost, dropped."""
        return self.backend.counters()

    def counted(self) -> Counted:
        """The counters with the link that is in force, not in the middle of a change."""
        with self._changing:
            return Counted(self._n_changes, self.shapes, self.backend.counters())

    def close(self) -> None:
        """Kill what runs in the sides, and take everything down; harmless when done twice."""
        self.backend.close()
        self._namespaces.close()

    def __enter__(self) -> WanLink:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_link(link: Link, backend: str, *, back: Link | None = None) -> WanLink:
    """The link between two new namespaces, by `netem` or `tun`; `back`: the way from B to A if it differs."""
    return open_shapes(shape_of(link), shape_of(back or link), backend)


def open_shapes(a_to_b: Shape, b_to_a: Shape, backend: str, implementation: str = "auto") -> WanLink:
    """As `open_link`, by direction. Raises `Unavailable` or `WorldError`, with nothing left behind."""
    if backend not in PACKET_BACKENDS:
        raise InputError(f"WAN backend {backend!r} has no packets to open a link for: {' or '.join(PACKET_BACKENDS)}")
    namespaces = Namespaces(*ADDRESSES)
    made: Backend | None = None
    try:
        made = Netem(namespaces) if backend == "netem" else Tun(namespaces, a_to_b.mtu_bytes, 1, implementation)
        made.apply(a_to_b, b_to_a)
        made.check_unchanged()
    except BaseException:
        if made is not None:
            made.close()
        namespaces.close()
        raise
    return WanLink(namespaces, made, a_to_b, b_to_a)
