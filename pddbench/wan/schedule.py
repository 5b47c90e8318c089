"""A link that changes during a run: brown-outs, flaps and cuts, as a list of times and figures."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from pddbench.errors import InputError, PddbenchError
from pddbench.wan.openlink import WanLink
from pddbench.wan.shape import Shape


class Change(msgspec.Struct, frozen=True):
    """From `at_s` seconds after the start the link is so."""

    at_s: float
    a_to_b: Shape
    b_to_a: Shape


_LAST_S = 1e6  # no event comes later, and no link flaps more often


class Applied(msgspec.Struct, frozen=True):
    """When a change was wanted and when it was in force, seconds after the start."""

    wanted_s: float
    in_force_s: float
    a_to_b: Shape
    b_to_a: Shape


def cut_of(shape: Shape) -> Shape:
    """The same direction with nothing coming through."""
    return msgspec.structs.replace(shape, loss_pct=100.0, gilbert=None)


def brown_out(usual: tuple[Shape, Shape], at_s: float, for_s: float, rate_share: float) -> list[Change]:
    """The rate falls to a share of itself for a while."""
    if not 0 < rate_share < 1:
        raise InputError(f"a brown-out leaves a share of the rate between 0 and 1, not {rate_share:g}")
    if not all(shape.rate_mbit for shape in usual):
        raise InputError("a brown-out needs a link with a rate")
    a, b = (msgspec.structs.replace(shape, rate_mbit=(shape.rate_mbit or 0.0) * rate_share) for shape in usual)
    return [Change(at_s, a, b), Change(at_s + for_s, *usual)]


def cut(usual: tuple[Shape, Shape], at_s: float, for_s: float) -> list[Change]:
    """Nothing comes through for a while."""
    return [Change(at_s, cut_of(usual[0]), cut_of(usual[1])), Change(at_s + for_s, *usual)]


def flap(usual: tuple[Shape, Shape], at_s: float, down_s: float, up_s: float, times: int) -> list[Change]:
    """Several cuts of `down_s` with `up_s` between them."""
    return [step for i in range(times) for step in cut(usual, at_s + i * (down_s + up_s), down_s)]


def parse_event(text: str, usual: tuple[Shape, Shape]) -> list[Change]:
    """`cut AT FOR`, `flap AT DOWN UP TIMES` or `brown-out AT FOR SHARE`, in seconds after the commands start."""
    name, *words = text.split()
    kinds: dict[str, tuple[int, Callable[..., list[Change]]]]
    kinds = {"cut": (2, cut), "flap": (4, flap), "brown-out": (3, brown_out)}
    try:
        figures = [float(word) for word in words]
    except ValueError:
        figures = []
    if name not in kinds or len(figures) != kinds[name][0] or not all(0 <= figure <= _LAST_S for figure in figures):
        raise InputError(f"an event is 'cut AT FOR', 'flap AT DOWN UP TIMES' or 'brown-out AT FOR SHARE', not {text!r}")
    if name == "flap":
        at_s, down_s, up_s, times = figures
        return flap(usual, at_s, down_s, up_s, int(times))
    return kinds[name][1](usual, *figures)


def checked(steps: Sequence[Change]) -> list[Change]:
    """`InputError` unless the times rise from 0 or later."""
    times = [step.at_s for step in steps]
    if any(late <= early for early, late in itertools.pairwise(times)) or (times and times[0] < 0):
        raise InputError(f"a schedule's times must rise from 0: {', '.join(f'{t:g}' for t in times)} s")
    return list(steps)


def run_schedule(
    link: WanLink,
    steps: Sequence[Change],
    stop: threading.Event | None = None,
    before_each: Callable[[], object] | None = None,
) -> list[Applied]:
    """Apply the steps at their times, until done or stopped; what was applied, and when it was in force."""
    stop, start, applied = stop or threading.Event(), time.monotonic(), []
    for step in checked(steps):
        if stop.wait(max(0.0, start + step.at_s - time.monotonic())):
            break
        if before_each is not None:
            before_each()
        link.change(step.a_to_b, step.b_to_a)
        applied.append(Applied(step.at_s, time.monotonic() - start, step.a_to_b, step.b_to_a))
    return applied


class Scheduled:
    """Runs a schedule beside something else: a context manager whose `applied` is there afterwards."""

    def __init__(self, link: WanLink, steps: Sequence[Change]) -> None:
        self._link, self._steps = link, checked(steps)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wan-schedule", daemon=True)
        self.applied: list[Applied] = []
        self.error: PddbenchError | None = None

    def _run(self) -> None:
        try:
            self.applied = run_schedule(self._link, self._steps, self._stop)
        except PddbenchError as error:
            self.error = error

    def __enter__(self) -> Scheduled:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stops where it is; an error of the schedule is raised by whoever asks `error`."""
        self._stop.set()
        self._thread.join()
