"""Decode instances with continuous batching: the time of a step by its batch, the KV it reads, and ids extended in it.

Between two things that anybody can notice (a stream ends, joins, leaves, KV runs out) the batch is the same and the
ends of its steps are known in closed form. The engine sleeps until the next of them. Live, every token is noticed, so
`by_token` makes every step one; in virtual time an answer of 1,000 tokens costs as much as one of ten.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING

from pddbench.deploy.emulator.prefill import prefill_s
from pddbench.deploy.emulator.spec import RoleSpec
from pddbench.deploy.emulator.steps import StepLog, ends_s, steps_s, steps_until
from pddbench.deploy.emulator.streams import Step, Stream, Stretch
from pddbench.wan.clock import Clock

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_ENDING = -1
_NEAR_TOKENS = 1e-6  # fractions of tokens (MTP) add up to a whole that fits, however they are rounded
_BY_LOAD = attrgetter("load")


class _Instance:
    __slots__ = ("alive", "batch", "extends", "extra_s", "finishes", "first_s", "growth_s", "kv", "load", "log",
                 "looks", "number", "planned", "riding", "start_s", "step", "taken", "version", "waiting")  # fmt: skip

    def __init__(self, number: int) -> None:
        self.number = number
        self.alive = True
        self.batch: dict[int, Stream] = {}
        self.waiting: OrderedDict[int, Stream] = OrderedDict()
        self.taken: dict[int, Callable[[Stream], None] | None] = {}
        self.looks: list[tuple[int, Callable[[Stream], None]]] = []
        self.extends: list[tuple[int, Callable[[], None]]] = []
        self.riding: list[tuple[int, Callable[[], None]]] = []  # extends in the step under way
        self.finishes: list[tuple[int, int, Stream]] = []
        self.step = 0  # steps done
        self.start_s = 0.0  # when they were
        self.first_s = self.growth_s = self.kv = self.extra_s = 0.0
        self.planned = 0  # steps until the next thing to notice; 0: idle, _ENDING: that is being looked at
        self.version = self.load = 0  # load: streams in batch or waiting
        self.log = StepLog()


class Decoder:
    """The instances of a role; a new stream goes to the least loaded one and joins at its next step boundary.

    `on_step` gets the tokens of a step (`by_token`), `on_stretch` those of a stay in a batch (else), `on_done` a
    stream that has all its tokens. Streams that would not fit into the KV memory wait; when it runs out, the last to
    join is preempted, and its KV is computed again when it returns.
    """

    def __init__(
        self,
        clock: Clock,
        role: RoleSpec,
        on_step: Callable[[Step], None],
        on_done: Callable[[Stream], None],
        on_stretch: Callable[[Stretch], None] | None = None,
        tokens_per_step: float = 1.0,
    ) -> None:
        self._clock, self._chip, self._role = clock, role.chip, role
        self._on_step, self._on_done, self._on_stretch = on_step, on_done, on_stretch
        self._by_token = on_stretch is None
        self._per_step = tokens_per_step
        self._capacity = math.inf if role.kv_tokens is None else role.kv_tokens + _NEAR_TOKENS
        self._max_batch = math.inf if role.max_batch is None else role.max_batch
        self._instances = [_Instance(number) for number in range(role.count)]
        self._alive = list(self._instances)
        self._where: dict[int, _Instance] = {}
        self.tokens = self.steps = self.peak_batch = self.preemptions = 0
        self.peak_kv_tokens = 0.0

    @property
    def loads(self) -> list[int]:
        """Streams at each instance that is there, waiting ones too."""
        return [instance.load for instance in self._alive]

    @property
    def there(self) -> bool:
        """Whether any instance is left."""
        return bool(self._alive)

    def holds(self, rid: int) -> bool:
        """Whether a stream is here."""
        return rid in self._where

    def add(self, stream: Stream, number: int | None = None) -> None:
        """A stream whose KV is here. Raises `ValueError` when no instance is left."""
        instance = self._pick(number)
        self._where[stream.rid] = instance
        instance.load += 1
        instance.waiting[stream.rid] = stream
        self._wake(instance)

    def extend(self, tokens: int, on_done: Callable[[], None], number: int | None = None) -> None:
        """Recompute the KV of ids without going on from them; it rides in a step, and the batch waits for it."""
        instance = self._pick(number)
        instance.extends.append((tokens, on_done))
        self._wake(instance)

    def _pick(self, number: int | None) -> _Instance:
        """The instance asked for, if it is there, else the least loaded one."""
        if number is not None and self._instances[number].alive:
            return self._instances[number]
        return min(self._alive, key=_BY_LOAD)

    def take(self, rid: int, on_taken: Callable[[Stream], None]) -> bool:
        """Take a stream out at its next step boundary (a step under way cannot be interrupted). False: not here."""
        instance = self._where.get(rid)
        if instance is None:
            return False
        stream = instance.waiting.pop(rid, None)
        if stream is not None:
            del self._where[rid]
            instance.load -= 1
            self._next_in_line(instance)
            on_taken(stream)
        else:
            instance.taken[rid] = on_taken
            self._wake(instance)
        return True

    def look(self, rid: int, on_look: Callable[[Stream], None]) -> bool:
        """See a stream as it stands at its next step boundary; not called if it ends there. False: not here."""
        instance = self._where.get(rid)
        if instance is None:
            return False
        if rid in instance.waiting:
            on_look(instance.waiting[rid])
        else:
            instance.looks.append((rid, on_look))
            self._wake(instance)
        return True

    def discard(self, rid: int) -> bool:
        """Forget a stream at once (its client is gone). False: not here."""
        instance = self._where.pop(rid, None)
        if instance is None:
            return False
        if instance.waiting.pop(rid, None) is not None:
            instance.load -= 1
            self._next_in_line(instance)
        else:
            instance.taken[rid] = None
            self._wake(instance)
        return True

    def running(self, rid: int) -> tuple[int, npt.NDArray[np.float64]]:
        """Of a stream in a batch that counts: the first token of its stay there, when each step since ended.

        Those of the steps under way are in the future, and are there if the batch stays as it is.
        """
        import numpy as np

        instance = self._where.get(rid)
        stream = None if instance is None else instance.batch.get(rid)
        if instance is None or stream is None:
            return 0, np.empty(0)
        done = instance.log.ends_from_s(stream.joined_step)
        first_s = instance.first_s + instance.extra_s
        steps = np.arange(1, max(0, instance.planned) + 1, dtype=np.float64)
        return stream.made_before, np.concatenate([done, ends_s(instance.start_s, first_s, instance.growth_s, steps)])

    def lose_last(self) -> list[Stream]:
        """The last instance goes, with all KV on it; returns its streams as they stood at the end of a step."""
        if not self._alive:
            return []
        instance = self._alive.pop()
        elapsed_s = self._clock.now() - instance.start_s
        if instance.planned > 0:
            done = steps_until(instance.first_s + instance.extra_s, instance.growth_s, elapsed_s) - 1
            self._advance(instance, min(done, instance.planned))
        instance.alive = False
        instance.version += 1
        out = []
        for stream in [*instance.batch.values(), *instance.waiting.values()]:
            if self._where.pop(stream.rid, None) is not None:
                if stream.rid in instance.batch:
                    self._settle(instance, stream)
                out.append(stream)
        instance.batch.clear()
        instance.waiting.clear()
        return out

    def grow(self) -> None:
        """One more instance."""
        self._instances.append(_Instance(len(self._instances)))
        self._alive.append(self._instances[-1])

    def _next_in_line(self, instance: _Instance) -> None:
        """One that waited is gone: there may be room for those behind it."""
        if instance.waiting and instance.planned > 0:
            self._wake(instance)

    def _wake(self, instance: _Instance) -> None:
        """Something waits at an instance: it is looked at when the step under way ends, or now."""
        now = self._clock.now()
        if instance.planned == _ENDING:
            return
        if not instance.planned:
            instance.start_s = max(now, instance.start_s)
            self._begin(instance)
            return
        steps = steps_until(instance.first_s + instance.extra_s, instance.growth_s, now - instance.start_s)
        if steps < instance.planned:
            self._plan(instance, steps)

    def _plan(self, instance: _Instance, steps: int) -> None:
        instance.planned = steps
        instance.version += 1
        end_s = instance.start_s + steps_s(instance.first_s, instance.growth_s, steps) + instance.extra_s
        self._clock.call_at(end_s, self._end, instance, instance.version)

    def _begin(self, instance: _Instance) -> None:
        """Start the steps up to the next thing to notice. What must be recomputed rides in the first of them."""
        chip = self._chip
        instance.riding, instance.extends = instance.extends, []
        extra_s = chip.extend_e1_s * sum(tokens for tokens, _ in instance.riding)
        extra_s += self._admit(instance)
        self._preempt(instance)
        batch = len(instance.batch)
        if not batch and not instance.riding:
            instance.planned = 0
            return
        instance.first_s = chip.decode_c0_s + chip.decode_c1_s * batch + chip.decode_c2_s * instance.kv
        instance.growth_s = chip.decode_c2_s * self._per_step * batch
        instance.extra_s = extra_s
        self.peak_batch = max(self.peak_batch, batch)
        alone = self._by_token or extra_s > 0 or bool(instance.riding)
        self._plan(instance, 1 if alone else self._steps_alike(instance, batch))

    def _steps_alike(self, instance: _Instance, batch: int) -> int:
        """Steps until a stream ends or KV memory runs out."""
        finishes = instance.finishes
        while finishes[0][2].finish_step != finishes[0][0] or instance.batch.get(finishes[0][1]) is not finishes[0][2]:
            heapq.heappop(finishes)
        steps = finishes[0][0] - instance.step
        if self._capacity < math.inf:
            steps = min(steps, max(1, int((self._capacity - instance.kv) / (batch * self._per_step))))
        return steps

    def _admit(self, instance: _Instance) -> float:
        """Let in, in order, those for whom there is room; returns the seconds of recomputation they bring."""
        extra_s, waiting, batch = 0.0, instance.waiting, instance.batch
        while waiting and len(batch) < self._max_batch:
            stream = next(iter(waiting.values()))
            kv = stream.context_tokens + stream.made
            if batch and instance.kv + kv + self._per_step * (len(batch) + 1) > self._capacity:
                break
            del waiting[stream.rid]
            extra_s += self._chip.extend_e1_s * stream.extend_tokens
            stream.extend_tokens = 0
            if stream.lost_kv:
                extra_s += prefill_s(self._chip, kv, 0)
                stream.lost_kv = False
            steps = math.ceil((stream.limit - stream.made) / self._per_step - 1e-9)
            stream.joined_step, stream.made_before = instance.step, stream.made
            stream.finish_step = instance.step + max(1, steps)
            batch[stream.rid] = stream
            instance.kv += kv
            if not self._by_token:
                heapq.heappush(instance.finishes, (stream.finish_step, stream.rid, stream))
        return extra_s

    def _preempt(self, instance: _Instance) -> None:
        """While the next step does not fit, the last to join gives its KV up and waits at the front."""
        batch = instance.batch
        while len(batch) > 1 and instance.kv + self._per_step * len(batch) > self._capacity:
            stream = next(reversed(batch.values()))
            self._settle(instance, stream)
            self._leave(instance, stream)
            self._where[stream.rid] = instance
            instance.load += 1
            stream.lost_kv = True
            instance.waiting[stream.rid] = stream
            instance.waiting.move_to_end(stream.rid, last=False)
            self.preemptions += 1

    def _advance(self, instance: _Instance, steps: int) -> None:
        """Steps are over."""
        if not steps:
            return
        if not self._by_token:
            first_s = instance.first_s + instance.extra_s
            instance.log.add(instance.start_s, first_s, instance.growth_s, steps)
        instance.start_s += steps_s(instance.first_s, instance.growth_s, steps) + instance.extra_s
        instance.extra_s = 0.0
        instance.step += steps
        instance.kv += steps * len(instance.batch) * self._per_step
        self.peak_kv_tokens = max(self.peak_kv_tokens, instance.kv)
        self.steps += steps

    def _end(self, instance: _Instance, version: int) -> None:
        if version != instance.version:
            return
        self._advance(instance, instance.planned)
        instance.planned = _ENDING
        self._forget_discarded(instance)
        ended = {}
        for stream in self._finished(instance):
            ended[stream.rid] = stream
            self._on_done(stream)
        self._show(instance)
        taken, instance.taken = instance.taken, {}
        for rid, on_taken in taken.items():
            self._hand_out(instance, rid, on_taken, ended.get(rid))
        for _, on_done in instance.riding:
            on_done()
        if instance.alive:
            self._begin(instance)

    def _forget_discarded(self, instance: _Instance) -> None:
        for rid in [rid for rid, on_taken in instance.taken.items() if on_taken is None]:
            del instance.taken[rid]
            stream = instance.batch.get(rid)
            if stream is not None:
                self._settle(instance, stream, missed=1)
                self._leave(instance, stream)

    def _show(self, instance: _Instance) -> None:
        looks, instance.looks = instance.looks, []
        for rid, on_look in looks:
            stream = instance.batch.get(rid)
            if stream is not None:
                stream.made = stream.made_at(instance.step, self._per_step)
                on_look(stream)

    def _finished(self, instance: _Instance) -> list[Stream]:
        """Streams that have all their tokens now; by token, what the step made goes out first."""
        done = []
        if self._by_token:
            step: Step = []
            for stream in list(instance.batch.values()):
                if stream.chain is None:
                    raise ValueError("a stream without tokens cannot be served by token")
                upto = stream.made_at(instance.step, self._per_step)
                step += [(stream, index, stream.chain.next()) for index in range(stream.made, upto)]
                stream.made = upto
                if stream.done:
                    self._leave(instance, stream)
                    done.append(stream)
            self.tokens += len(step)
            if step:
                self._on_step(step)
            return done
        finishes = instance.finishes
        while finishes and finishes[0][0] <= instance.step:
            finish_step, rid, stream = heapq.heappop(finishes)
            if stream.finish_step == finish_step and instance.batch.get(rid) is stream:
                self._settle(instance, stream)
                self._leave(instance, stream)
                done.append(stream)
        return done

    def _settle(self, instance: _Instance, stream: Stream, missed: int = 0) -> None:
        """Bring a stream's count up to date; `missed` steps of it do not count."""
        if self._by_token or self._on_stretch is None:
            return
        stream.made = stream.made_at(max(stream.joined_step, instance.step - missed), self._per_step)
        count = stream.made - stream.made_before
        self.tokens += count
        if count:
            self._on_stretch(
                Stretch(stream.rid, stream.made_before, count, instance.log, stream.joined_step, self._per_step)
            )

    def _hand_out(
        self, instance: _Instance, rid: int, on_taken: Callable[[Stream], None] | None, ended: Stream | None
    ) -> None:
        """Give a taken stream away, finished or not."""
        stream = instance.batch.get(rid)
        if stream is not None:
            self._settle(instance, stream)
            self._leave(instance, stream)
        else:
            stream = instance.waiting.pop(rid, None)
            if stream is not None:
                instance.load -= 1
            stream = stream or ended
            self._where.pop(rid, None)
        if stream is not None and on_taken is not None:
            on_taken(stream)

    def _leave(self, instance: _Instance, stream: Stream) -> None:
        del instance.batch[stream.rid]
        instance.load -= 1
        self._where.pop(stream.rid, None)
        instance.kv -= stream.context_tokens + stream.made_before
        instance.kv -= (instance.step - stream.joined_step) * self._per_step
        if not instance.batch:
            instance.kv = 0.0
