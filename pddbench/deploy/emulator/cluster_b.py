"""Cluster B as a pure state machine: MD (pdd) or D (naive). KV arrives, ids are handed over, decoding goes on here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pddbench.deploy.emulator import observe
from pddbench.deploy.emulator.decode import Decoder
from pddbench.deploy.emulator.messages import (
    Change,
    Drop,
    Evict,
    Extended,
    Failed,
    Finish,
    Gone,
    HandOff,
    KvArrived,
    Message,
    Ready,
    Tokens,
    Took,
    framed_bytes,
)
from pddbench.deploy.emulator.radix import Store
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.streams import Step, Stream, Stretch
from pddbench.deploy.emulator.tokens import ID_BYTES, unpack
from pddbench.wan.clock import Clock

MISSING = "the KV that this request builds on is not at MD"
GONE = "the instance of {role} that had this answer is gone"


class NumberSet:
    """A set of numbers counted up from 1 that stays small: all up to `_low` are in it, the rest is listed."""

    def __init__(self) -> None:
        self._low = 0
        self._above: set[int] = set()

    def __contains__(self, number: int) -> bool:
        return number <= self._low or number in self._above

    def add(self, number: int) -> None:
        """Put a number in."""
        self._above.add(number)
        while self._low + 1 in self._above:
            self._low += 1
            self._above.discard(self._low)


class _Held:
    """A request whose KV is here and whose ids are not, or not all of them."""

    __slots__ = ("bytes", "ids", "kv", "took_ns")

    def __init__(self, kv: KvArrived, took_ns: int) -> None:
        self.kv, self.took_ns = kv, took_ns
        self.ids = b""
        self.bytes = 0


class ClusterB:
    """Takes `KvArrived`, `HandOff`, `Drop`, `Gone` and `Evict` from A; answers A and the router through its senders.

    `control_delay_s` is the one-way delay of what it sends (0 when the network has it). `on_stretch` as in `ClusterA`.
    """

    def __init__(
        self,
        spec: EmulatorSpec,
        clock: Clock,
        to_router: Callable[[Message], None],
        to_a: Callable[[Message], None],
        control_delay_s: float,
        on_stretch: Callable[[str, Stretch], None] | None = None,
        observer: observe.Observer = observe.ignore,
    ) -> None:
        self._spec, self._clock, self._see = spec, clock, observer
        self._to_router, self._to_a, self._delay_s = to_router, to_a, control_delay_s
        self._role = "MD" if spec.arm == "pdd" else "D"
        self._chip = spec.roles[self._role].chip
        self.stage = "md" if spec.arm == "pdd" else "d"
        self._by_token = on_stretch is None
        stretched = None if on_stretch is None else partial(on_stretch, self.stage)
        self.decoder = Decoder(
            clock, spec.roles[self._role], self._on_step, self._on_done, stretched, spec.tokens_per_step
        )
        self._stores = {-1: Store()}
        self._arrived = NumberSet()
        self._incomplete: dict[int, tuple[KvArrived, set[int], int]] = {}  # with what each still needs, its own time
        self._held: dict[int, _Held] = {}
        self._dropped: set[int] = set()  # requests that wait for other KV
        self._answers: dict[int, Finish] = {}
        self.kv_received_bytes = 0
        for change in spec.changes:
            if change.role == self._role:
                clock.call_at(change.at_s, self._change, change.count)

    def on_message(self, message: Message) -> None:
        """A message from A."""
        if isinstance(message, KvArrived):
            self._kv_arrived(message)
        elif isinstance(message, HandOff):
            self._hand_off(message)
        elif isinstance(message, Drop):
            self._drop(message.rid)
        elif isinstance(message, Gone):
            self._arrived.add(message.transfer)
        elif isinstance(message, Evict):
            self._store(message.instance).cut(message.owner, message.stop)
        elif isinstance(message, Change) and message.role == self._role:
            self._change(message.count)

    def _store(self, instance: int) -> Store:
        return self._stores.setdefault(instance, Store())

    def _kv_arrived(self, message: KvArrived) -> None:
        self._arrived.add(message.transfer)
        self.kv_received_bytes += message.kv_bytes
        took_ns = round((self._clock.now() - message.started_s) * 1e9)
        needs = {number for number in message.needs if number not in self._arrived}
        if needs or self._incomplete:
            self._incomplete[message.transfer] = (message, needs, took_ns)
            self._look_again(message.transfer)
        else:
            self._complete(message, took_ns)

    def _look_again(self, arrived: int) -> None:
        """Something arrived: who has all it needs now? A transfer builds on earlier ones only."""
        for item in self._incomplete.values():
            item[1].discard(arrived)
        for number in sorted(number for number, item in self._incomplete.items() if not item[1]):
            message, _, took_ns = self._incomplete.pop(number)
            self._complete(message, took_ns)

    def _complete(self, message: KvArrived, took_ns: int) -> None:
        """A transfer and all that it builds on are here."""
        store = self._store(message.instance)
        if message.base is not None and not store.has(*message.base):
            self._fail(message.rid, MISSING)
            return
        store.put(message.path)
        self._see("kv_at_md", message.rid, self._clock.now(), message.instance, 0, message.kv_bytes)
        self._send(self._to_a, Ready(message.rid, message.transfer))
        if message.rid in self._dropped:
            self._dropped.discard(message.rid)
        elif message.mode == "hold":
            self._held[message.rid] = _Held(message, took_ns)
        elif message.mode == "decode":
            self._answers[message.rid] = self._answer(message, took_ns, None)
            self._start(message, message.ids, 0)

    def _answer(self, message: KvArrived, took_ns: int, handoff: dict[str, Any] | None) -> Finish:
        kv = {"bytes": message.kv_bytes, "wire_bytes": message.wire_bytes, "ns": took_ns}
        eager = handoff["token"] if handoff else 0
        return Finish(message.rid, message.cached_tokens, message.pipeline, eager, handoff, kv)

    def _hand_off(self, message: HandOff) -> None:
        """Recompute the KV of ids (a fixed time, then a share of a step); the final ones start the stream."""
        self.kv_received_bytes += message.kv_bytes
        held = self._held.get(message.rid)
        if held is None:
            if message.final:  # taken before, or dropped
                self._send(self._to_a, Took(message.rid))
            return
        if message.first * ID_BYTES != len(held.ids):
            self._fail(message.rid, f"ids from {message.first} on came, {len(held.ids) // ID_BYTES} were there")
            return
        held.ids += message.ids
        held.bytes += framed_bytes(message) + message.kv_bytes
        tokens = len(message.ids) // ID_BYTES
        self._see("extend", message.rid, self._clock.now(), held.kv.instance, tokens, message.kv_bytes)
        if not message.final:
            self._later(self._chip.extend_e0_s, self._extend, message.rid, tokens)
            return
        self._send(self._to_a, Took(message.rid))
        del self._held[message.rid]
        made = len(held.ids) // ID_BYTES
        handoff = {"mode": message.mode, "token": made, "rounds": message.round, "bytes": held.bytes}
        self._answers[message.rid] = self._answer(held.kv, held.took_ns, handoff)
        if message.kv_bytes:
            self._later(self._spec.kv_copy_s, self._start, held.kv, held.ids, 0)
        else:
            self._later(self._chip.extend_e0_s if tokens else 0.0, self._start, held.kv, held.ids, tokens)

    def _later(self, wait_s: float, fn: Callable[..., object], *args: object) -> None:
        self._clock.call_at(self._clock.now() + wait_s, fn, *args)

    def _extend(self, rid: int, tokens: int) -> None:
        """Ids of a round ride in a step of the instance; RLD goes on meanwhile."""
        held = self._held.get(rid)
        if held is None:
            return
        if not self.decoder.there:
            self._fail(rid, GONE.format(role=self._role))
            return
        number = held.kv.instance if held.kv.instance >= 0 else None
        self.decoder.extend(tokens, partial(self._extended, rid), number)

    def _extended(self, rid: int) -> None:
        self._send(self._to_a, Extended(rid))

    def _start(self, kv: KvArrived, ids: bytes, extend_tokens: int) -> None:
        """A stream joins its batch."""
        if kv.rid not in self._answers:
            return
        if not self.decoder.there:
            self._fail(kv.rid, GONE.format(role=self._role))
            return
        self._see("resume", kv.rid, self._clock.now(), kv.instance, len(ids) // ID_BYTES, 0)
        handed = unpack(ids) if self._by_token else len(ids) // ID_BYTES
        stream = Stream(kv.rid, kv.seed, kv.max_tokens, handed, extend_tokens, kv.prompt_tokens)
        self.decoder.add(stream, kv.instance if kv.instance >= 0 else None)

    def _drop(self, rid: int) -> None:
        """Nobody waits for a request: let go of it wherever it is."""
        self._held.pop(rid, None)
        self._answers.pop(rid, None)
        self.decoder.discard(rid)
        if any(item[0].rid == rid for item in self._incomplete.values()):
            self._dropped.add(rid)

    def _fail(self, rid: int, reason: str) -> None:
        self._held.pop(rid, None)
        self._answers.pop(rid, None)
        self._see("failed", rid, self._clock.now(), -1, 0, 0)
        self._send(self._to_router, Failed(rid, reason))

    def _change(self, count: int) -> None:
        """Instances are lost, with the answers they had, or added."""
        for _ in range(count):
            self.decoder.grow()
        for _ in range(-count):
            for stream in self.decoder.lose_last():
                self._see("lost", stream.rid, self._clock.now(), -1, stream.made, 0)
                self._fail(stream.rid, GONE.format(role=self._role))

    def _on_step(self, step: Step) -> None:
        rows = [(stream.rid, index, token) for stream, index, token in step]
        self._send(self._to_router, Tokens(self.stage, rows))

    def _on_done(self, stream: Stream) -> None:
        answer = self._answers.pop(stream.rid, None)
        if answer is not None:
            self._see("done", stream.rid, self._clock.now(), -1, stream.made, 0)
            self._send(self._to_router, answer)

    def _send(self, send: Callable[[Message], None], message: Message) -> None:
        self._clock.call_at(self._clock.now() + self._delay_s, send, message)
