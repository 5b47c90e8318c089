"""Decode instances with continuous batching: one token a stream a step, step time by batch and by ids extended."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pddbench.deploy.emulator.spec import Chip
from pddbench.deploy.emulator.tokens import TokenChain
from pddbench.wan.clock import Clock


class Stream:
    """An answer being produced: where it stands, how long it will be, and ids to extend before it goes on."""

    __slots__ = ("chain", "extend_tokens", "limit", "rid")

    def __init__(self, rid: int, seed: int, limit: int, handed: Iterable[int] = (), extend_tokens: int = 0) -> None:
        self.rid, self.limit, self.extend_tokens = rid, limit, extend_tokens
        self.chain = TokenChain(seed, handed)

    @property
    def done(self) -> bool:
        """All its tokens are there."""
        return len(self.chain.ids) >= self.limit


Step = list[tuple[Stream, int, int]]  # stream, index of its new token, the token


class _Instance:
    __slots__ = ("batch", "busy", "joining", "taken")

    def __init__(self) -> None:
        self.batch: dict[int, Stream] = {}
        self.joining: dict[int, Stream] = {}
        self.taken: dict[int, Callable[[Stream], None]] = {}
        self.busy = False

    def load(self) -> int:
        return len(self.batch) + len(self.joining)


class Decoder:
    """`count` instances of a chip; a new stream goes to the least loaded one and joins at its next step boundary."""

    def __init__(self, clock: Clock, chip: Chip, count: int, on_step: Callable[[Step], None]) -> None:
        self._clock, self._chip, self._on_step = clock, chip, on_step
        self._instances = [_Instance() for _ in range(count)]
        self._where: dict[int, _Instance] = {}
        self.tokens = self.steps = self.peak_batch = 0

    def add(self, stream: Stream) -> None:
        """A stream whose KV is here."""
        instance = min(self._instances, key=_Instance.load)
        self._where[stream.rid] = instance
        instance.joining[stream.rid] = stream
        if not instance.busy:
            self._begin(instance)

    def take(self, rid: int, on_taken: Callable[[Stream], None]) -> bool:
        """Take a stream out at its next step boundary (a step under way cannot be interrupted). False: not here."""
        instance = self._where.get(rid)
        if instance is None:
            return False
        stream = instance.joining.pop(rid, None)
        if stream is not None:
            del self._where[rid]
            on_taken(stream)
        else:
            instance.taken[rid] = on_taken
        return True

    def discard(self, rid: int) -> bool:
        """Forget a stream at once (its client is gone). False: not here."""
        instance = self._where.pop(rid, None)
        if instance is None:
            return False
        instance.joining.pop(rid, None)
        instance.batch.pop(rid, None)
        instance.taken.pop(rid, None)
        return True

    def _begin(self, instance: _Instance) -> None:
        """Start a step with all that have joined; ids to extend ride in it, and the others wait for them."""
        extend_tokens = sum(stream.extend_tokens for stream in instance.joining.values())
        instance.batch.update(instance.joining)
        instance.joining.clear()
        batch = list(instance.batch.values())
        instance.busy = bool(batch)
        if batch:
            chip = self._chip
            self.peak_batch = max(self.peak_batch, len(batch))
            step_s = chip.decode_c0_s + chip.decode_c1_s * len(batch) + chip.extend_e1_s * extend_tokens
            self._clock.call_at(self._clock.now() + step_s, self._end, instance, batch)

    def _end(self, instance: _Instance, batch: list[Stream]) -> None:
        step: Step = []
        for stream in batch:
            if instance.batch.get(stream.rid) is stream:
                index = len(stream.chain.ids)
                step.append((stream, index, stream.chain.next()))
                if stream.done:
                    self._leave(instance, stream.rid)
        self.tokens += len(step)
        self.steps += 1
        if step:
            self._on_step(step)
        for rid, on_taken in list(instance.taken.items()):
            self._hand_out(instance, rid, on_taken, batch)
        instance.taken.clear()
        self._begin(instance)

    def _hand_out(self, instance: _Instance, rid: int, on_taken: Callable[[Stream], None], batch: list[Stream]) -> None:
        """Give a taken stream away, finished or not."""
        self._leave(instance, rid)
        on_taken(next(stream for stream in batch if stream.rid == rid))

    def _leave(self, instance: _Instance, rid: int) -> None:
        instance.batch.pop(rid, None)
        self._where.pop(rid, None)
