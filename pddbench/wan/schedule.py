"""Changing a link of packets while something runs over it, at the times of a schedule (`wan.steps`)."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from pddbench.errors import InputError, PddbenchError
from pddbench.wan.openlink import WanLink
from pddbench.wan.shape import Shape
from pddbench.wan.steps import Applied, Step

_LEAST_MBIT = 1e-4  # the kernel's token bucket keeps no packet that would take longer than 274 s: it would lose all


def shape_at(usual: Shape, rate_share: float) -> Shape:
    """A direction with a share of its rate; 0: nothing comes through. The queue has the room that it has."""
    if rate_share == 1:
        return usual
    if rate_share == 0:
        return msgspec.structs.replace(usual, loss_pct=100.0, gilbert=None)
    return msgspec.structs.replace(
        usual, rate_mbit=(usual.rate_mbit or 0.0) * rate_share, queue_packets=usual.limit_packets
    )


def check_rates(steps: Sequence[Step], *usual: Shape) -> None:
    """`InputError` for a brown-out of a link that has no rate, or to one at which a packet takes minutes."""
    shares = [step.rate_share for step in steps if 0 < step.rate_share < 1]
    if shares and not all(shape.rate_mbit for shape in usual):
        raise InputError("a brown-out needs a link with a rate")
    for share, shape in itertools.product(shares, usual):
        if share * (shape.rate_mbit or 0.0) < 0.999 * _LEAST_MBIT:
            raise InputError(
                f"a brown-out to a share of {share:g} leaves nothing of {shape.rate_mbit:g} Mbit/s: give at least "
                f"{_LEAST_MBIT / (shape.rate_mbit or 1.0):.2g}"
            )


def run_schedule(
    link: WanLink,
    steps: Sequence[Step],
    stop: threading.Event | None = None,
    before_each: Callable[[], object] | None = None,
    start_s: float | None = None,
    speed: float = 1.0,
    applied: list[Applied] | None = None,
) -> list[Applied]:
    """Apply the steps at their times, until done or stopped; what was applied, and when it was in force.

    `start_s`: the zero of the steps on CLOCK_MONOTONIC (None: now); `speed`: seconds of the steps a wall second.
    """
    stop, applied = stop or threading.Event(), [] if applied is None else applied
    start_s, usual = time.monotonic() if start_s is None else start_s, link.shapes
    for step in steps:
        if stop.wait(max(0.0, start_s + step.at_s / speed - time.monotonic())):
            break
        if before_each is not None:
            before_each()
        link.change(shape_at(usual[0], step.rate_share), shape_at(usual[1], step.rate_share))
        in_force_s = (link.in_force_s - start_s) * speed
        applied.append(Applied(step.at_s, in_force_s, step.rate_share, step.words))
    return applied


class Scheduled:
    """Runs a schedule beside something else: a context manager; `applied` is what has been, `error` what stopped it."""

    def __init__(self, link: WanLink, steps: Sequence[Step], start_s: float | None = None, speed: float = 1.0) -> None:
        check_rates(steps, *link.shapes)
        self._link, self._steps, self._start_s, self.speed = link, list(steps), start_s, speed
        self._usual = link.shapes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wan-schedule", daemon=True)
        self.applied: list[Applied] = []
        self.error: PddbenchError | None = None

    def _run(self) -> None:
        try:
            run_schedule(
                self._link, self._steps, self._stop, start_s=self._start_s, speed=self.speed, applied=self.applied
            )
        except PddbenchError as error:
            self.error = error

    @property
    def not_reached(self) -> list[Step]:
        """Steps whose time had not come when it was stopped."""
        return self._steps[len(self.applied) :]

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End it where it is; an error of the schedule is raised by whoever asks `error`."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def restore(self) -> None:
        """The link as it was before the schedule; raises as `WanLink.change`."""
        if self._link.shapes != self._usual:
            self._link.change(*self._usual)

    def __enter__(self) -> Scheduled:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
