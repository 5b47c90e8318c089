"""Prefill instances: first come, first served; a whole prompt at a time, or chunks of a token budget a step."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from pddbench.deploy.emulator.spec import Chip, RoleSpec
from pddbench.wan.clock import Clock


def prefill_s(chip: Chip, fresh: int, prefix: int) -> float:
    """Seconds to prefill `fresh` tokens on a cached prefix."""
    return chip.prefill_a_s + chip.prefill_b_s * fresh + chip.prefill_c_s * fresh * (prefix + fresh / 2)


class _Work:
    """A prompt: `measure(instance)` gives (fresh, prefix) tokens when it starts, `done(instance)` ends it."""

    __slots__ = ("done", "fresh", "measure", "prefix", "rid")

    def __init__(self, rid: int, measure: Callable[[int], tuple[int, int]], done: Callable[[int], None]) -> None:
        self.rid, self.measure, self.done = rid, measure, done
        self.fresh = self.prefix = 0


_Queue = OrderedDict[int, _Work]  # by request, so that a client that leaves a long queue costs no walk along it


class _Instance:
    __slots__ = ("alive", "busy", "current", "ending", "free_s", "number", "queue", "version")

    def __init__(self, number: int, queue: _Queue) -> None:
        self.number, self.queue = number, queue
        self.alive, self.busy, self.version = True, False, 0
        self.current: _Work | None = None  # begun, and not at its end after the step under way
        self.ending: list[_Work] = []  # those that the step under way completes
        self.free_s = 0.0  # when it will have done all that it has accepted, by its own law


class Prefill:
    """`count` instances of a chip before one queue (`pooled`) or a queue each.

    With `chunk_tokens` a step takes up to that many tokens: the rest of the prompt that was begun, then those after it
    (not without `packing`: a tail chunk then has a step to itself). Each step costs `chip.prefill_step_s` besides what
    its tokens cost. 0: one prompt is one step, without that cost.
    """

    def __init__(
        self, clock: Clock, role: RoleSpec, *, pooled: bool = True, chunk_tokens: int = 0, packing: bool = True
    ) -> None:
        self._clock, self._chip = clock, role.chip
        self._chunk, self._packing, self._pooled = chunk_tokens, packing, pooled
        self._shared: _Queue = OrderedDict()
        self._instances = [self._new(number) for number in range(role.count)]
        self.steps = 0
        self.busy_s = 0.0

    def _new(self, number: int) -> _Instance:
        return _Instance(number, self._shared if self._pooled else OrderedDict())

    def submit(
        self,
        rid: int,
        measure: Callable[[int], tuple[int, int]],
        done: Callable[[int], None],
        number: int | None = None,
    ) -> None:
        """Queue a prompt, at an instance of its own choice unless they are pooled."""
        work = _Work(rid, measure, done)
        if self._pooled or number is None or not self._instances[number].alive:
            queue = (
                self._shared
                if self._pooled
                else min(map(self._instances.__getitem__, self.alive()), key=lambda one: one.free_s).queue
            )
        else:
            queue = self._instances[number].queue
        queue[rid] = work
        for instance in self._instances:
            if instance.alive and not instance.busy and instance.queue is queue:
                self._start(instance)
                break

    def reserve(self, number: int, fresh: int, prefix: int) -> None:
        """Remember what a prompt sent to an instance will take of it (see `predict_s`)."""
        instance = self._instances[number]
        instance.free_s = max(instance.free_s, self._clock.now()) + prefill_s(self._chip, fresh, prefix)

    def predict_s(self, number: int, fresh: int, prefix: int) -> float:
        """When an instance would have done a prompt sent to it now; infinite when it is gone."""
        instance = self._instances[number]
        if not instance.alive:
            return math.inf
        return max(instance.free_s, self._clock.now()) + prefill_s(self._chip, fresh, prefix)

    def drop(self, rid: int) -> None:
        """Take a prompt out of the queue; one that has started runs to its end."""
        for instance in self._instances:
            instance.queue.pop(rid, None)

    def lose(self, number: int) -> list[int]:
        """An instance is gone; returns the requests that it was working on or had queued alone."""
        instance = self._instances[number]
        instance.alive, instance.busy = False, False
        instance.version += 1
        lost = [work.rid for work in [instance.current, *instance.ending] if work is not None]
        if not self._pooled:
            lost += instance.queue
            instance.queue.clear()
        instance.current, instance.ending = None, []
        return lost

    def grow(self) -> None:
        """One more instance."""
        self._instances.append(self._new(len(self._instances)))
        self._start(self._instances[-1])

    @property
    def there(self) -> bool:
        """Whether any instance is left."""
        return any(instance.alive for instance in self._instances)

    def alive(self) -> list[int]:
        """Numbers of the instances that are there."""
        return [instance.number for instance in self._instances if instance.alive]

    def _start(self, instance: _Instance) -> None:
        """Begin a step: what is left of the prompt under way and, as far as the budget goes, those after it."""
        chip, left = self._chip, float(self._chunk or math.inf)
        took_s = chip.prefill_step_s if self._chunk else 0.0
        work, instance.current = instance.current, None
        while left > 0 and (work is not None or instance.queue):
            if work is None:
                _, work = instance.queue.popitem(last=False)
                work.fresh, work.prefix = work.measure(instance.number)
                took_s += chip.prefill_a_s
            tokens = int(min(work.fresh, left))
            took_s += chip.prefill_b_s * tokens + chip.prefill_c_s * tokens * (work.prefix + tokens / 2)
            work.fresh, work.prefix, left = work.fresh - tokens, work.prefix + tokens, left - tokens
            if work.fresh:
                instance.current = work
                break
            instance.ending.append(work)
            work = None
            if not self._chunk or not self._packing:
                break
        instance.busy = instance.current is not None or bool(instance.ending)
        if instance.busy:
            self.steps += 1
            self.busy_s += took_s
            self._clock.call_at(self._clock.now() + took_s, self._end, instance, instance.version)

    def _end(self, instance: _Instance, version: int) -> None:
        if version != instance.version:
            return
        ended, instance.ending = instance.ending, []
        for work in ended:
            work.done(instance.number)
        if instance.alive:
            self._start(instance)
