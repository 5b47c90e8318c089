"""A link that changes during a run: cuts, flaps and brown-outs, as the times from which it has which share of its rate.

What they mean is the same for every backend: packets (`wan.schedule`) and the model (`wan.fluid`, `Waits`).
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

_LAST_S = 1e6  # no event comes later, and no link flaps more often
_MOST_STEPS = 20_000
_LEAST_SHARE = 1e-4  # a rate is set in whole bytes a second, and 0 of them is no limit at all
_LATE_S = 1.0  # a change of the link that was in force later than that was not the one of the schedule
_FORMS = "'cut AT FOR', 'flap AT DOWN UP TIMES' or 'brown-out AT FOR SHARE'"


class Step(msgspec.Struct, frozen=True):
    """From `at_s` seconds after the start the link has this share of its rate: 1 as asked, 0 nothing comes through."""

    at_s: float
    rate_share: float

    @property
    def words(self) -> str:
        """What the link is then."""
        if self.rate_share == 0:
            return "cut"
        return "as asked" if self.rate_share == 1 else f"{100 * self.rate_share:g}% of its rate"


class Applied(msgspec.Struct, frozen=True):
    """A change of the link: when it was wanted and when it was in force, seconds after the start, and to what."""

    wanted_s: float
    in_force_s: float
    rate_share: float
    state: str

    def late_words(self, speed: float = 1.0) -> str:
        """What is to be said of it when it came late, by the clock on the wall; nothing when it did not."""
        late_s = self.in_force_s - self.wanted_s
        if late_s <= _LATE_S * speed:
            return ""
        return f"the link was to be {self.state} at {self.wanted_s:g} s and was so {late_s:.1f} s later"


def cut(at_s: float, for_s: float) -> list[Step]:
    """Nothing comes through for a while."""
    if for_s <= 0:
        raise InputError(f"a cut takes some time: FOR must be above 0, not {for_s:g}")
    return [Step(at_s, 0.0), Step(at_s + for_s, 1.0)]


def flap(at_s: float, down_s: float, up_s: float, times: float) -> list[Step]:
    """Several cuts of `down_s` with `up_s` between them."""
    if times != int(times) or not 1 <= times <= _MOST_STEPS / 2:
        raise InputError(f"a link flaps a whole number of times, 1 to {_MOST_STEPS // 2}, not {times:g}")
    if up_s <= 0:
        raise InputError(f"a link that flaps is up for some time: UP must be above 0, not {up_s:g}")
    return [step for i in range(int(times)) for step in cut(at_s + i * (down_s + up_s), down_s)]


def brown_out(at_s: float, for_s: float, rate_share: float) -> list[Step]:
    """The rate falls to a share of itself for a while."""
    if not 0 < rate_share < 1:
        raise InputError(f"a brown-out leaves a share of the rate between 0 and 1, not {rate_share:g}")
    if rate_share < _LEAST_SHARE:
        raise InputError(f"a brown-out to a share of {rate_share:g} leaves nothing: give {_LEAST_SHARE:g} or more")
    if for_s <= 0:
        raise InputError(f"a brown-out takes some time: FOR must be above 0, not {for_s:g}")
    return [Step(at_s, rate_share), Step(at_s + for_s, 1.0)]


_KINDS: dict[str, tuple[int, Callable[..., list[Step]]]]
_KINDS = {"cut": (2, cut), "flap": (4, flap), "brown-out": (3, brown_out)}


def parse_event(text: str) -> list[Step]:
    """`cut AT FOR`, `flap AT DOWN UP TIMES` or `brown-out AT FOR SHARE`, in seconds after the start."""
    name, *words = text.split() or [""]
    try:
        figures = [float(word) for word in words]
    except ValueError:
        figures = []
    if name not in _KINDS or len(figures) != _KINDS[name][0] or not all(0 <= figure <= _LAST_S for figure in figures):
        raise InputError(f"an event is {_FORMS}, in seconds, not {text!r}")
    return _KINDS[name][1](*figures)


def parse_events(texts: Iterable[str]) -> tuple[Step, ...]:
    """All events in the order of their times, in whatever order they are written. `InputError` when two overlap."""
    events = sorted(((parse_event(text), text) for text in texts), key=lambda event: event[0][0].at_s)
    for (early, one), (late, other) in itertools.pairwise(events):
        if late[0].at_s <= early[-1].at_s:
            raise InputError(f"the link can be in one state at a time: the events {one!r} and {other!r} overlap")
    steps = tuple(step for each, _ in events for step in each)
    if len(steps) > _MOST_STEPS:
        raise InputError(f"{len(steps)} changes of a link are too many: at most {_MOST_STEPS}")
    return steps


def not_reached(texts: Iterable[str], begun_s: Collection[float]) -> list[str]:
    """The events that never began; `begun_s`: the times of the steps that did, as they were wanted."""
    return [text for text in texts if parse_event(text)[0].at_s not in begun_s]


def applied_on_time(step: Step) -> dict[str, Any]:
    """The record of a step in model time, which is never late (see `schedule.Applied`)."""
    return msgspec.to_builtins(Applied(step.at_s, step.at_s, step.rate_share, step.words))  # type: ignore[no-any-return]


def shifted(steps: Sequence[Step], start_s: float) -> list[Step]:
    """The same steps on a clock on which the start is at `start_s`."""
    return [Step(start_s + step.at_s, step.rate_share) for step in steps]


class Waits:
    """When what is sent at a time really leaves, while the link is cut now and then: at once, or when it is back.

    The model's control messages wait so; over packets TCP does it, later by its retransmission timer.
    """

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._cuts = [
            (step.at_s, after.at_s) for step, after in itertools.pairwise(steps) if step.rate_share == 0
        ]  # every event ends "as asked"
        self._from = [begin for begin, _ in self._cuts]

    def leaves_s(self, at_s: float) -> float:
        """When something sent at `at_s` leaves."""
        index = bisect_right(self._from, at_s) - 1
        return max(at_s, self._cuts[index][1]) if index >= 0 else at_s

    def arrives_s(self, due_s: float, delay_s: float) -> float:
        """When something arrives that was sent `delay_s` before `due_s`, and due then."""
        sent_s = due_s - delay_s
        leaves_s = self.leaves_s(sent_s)
        return due_s if leaves_s == sent_s else leaves_s + delay_s

    def leave_s(self, at_s: Floats) -> Floats:
        """The same of many times; float64, any shape."""
        import numpy as np

        if not self._cuts:
            return at_s
        index = np.searchsorted(self._from, at_s, side="right") - 1
        ends = np.array([end for _, end in self._cuts])
        leave: Floats = np.where(index >= 0, np.maximum(at_s, ends[index]), at_s)
        return leave
