"""Cluster B as a pure state machine: MD (pdd) or D (naive). KV arrives, ids are handed over, decoding goes on here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pddbench.deploy.emulator.blocks import BlockCache
from pddbench.deploy.emulator.decode import Decoder, Step, Stream
from pddbench.deploy.emulator.messages import (
    Drop,
    Failed,
    Finish,
    Gone,
    HandOff,
    KvArrived,
    Message,
    Ready,
    Tokens,
    framed_bytes,
)
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.wan.clock import Clock


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


class ClusterB:
    """Takes `KvArrived`, `HandOff`, `Drop` and `Gone` from A; answers A and the router through the senders it is given.

    `control_delay_s` is the one-way delay of what it sends (0 when the network has it).
    """

    def __init__(
        self,
        spec: EmulatorSpec,
        clock: Clock,
        to_router: Callable[[Message], None],
        to_a: Callable[[Message], None],
        control_delay_s: float,
    ) -> None:
        self._clock, self._to_router, self._to_a, self._delay_s = clock, to_router, to_a, control_delay_s
        role = spec.roles["MD" if spec.arm == "pdd" else "D"]
        self._chip = role.chip
        self._stage = "md" if spec.arm == "pdd" else "d"
        self.decoder = Decoder(clock, role.chip, role.count, self._on_step)
        self._cache = BlockCache()
        self._arrived = NumberSet()
        self._incomplete: list[tuple[KvArrived, set[int], int]] = []  # with what each still needs, and its own time
        self._held: dict[int, tuple[KvArrived, int]] = {}
        self._dropped: set[int] = set()  # requests that wait for other KV, or for their extend to start
        self._answers: dict[int, Finish] = {}
        self.kv_received_bytes = 0

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

    def _kv_arrived(self, message: KvArrived) -> None:
        self._arrived.add(message.transfer)
        self.kv_received_bytes += message.kv_bytes
        took_ns = round((self._clock.now() - message.started_s) * 1e9)
        needs = {number for number in message.needs if number not in self._arrived}
        self._incomplete.append((message, needs, took_ns))
        for item in self._incomplete:
            item[1].discard(message.transfer)
        complete = [item for item in self._incomplete if not item[1]]
        self._incomplete = [item for item in self._incomplete if item[1]]
        for item in sorted(complete, key=lambda item: item[0].transfer):  # a transfer builds on earlier ones only
            self._complete(item[0], item[2])

    def _complete(self, message: KvArrived, took_ns: int) -> None:
        """A transfer and all that it builds on are here."""
        if message.base is not None and self._cache.match([message.base]) == 0:
            self._send(self._to_router, Failed(message.rid, "the KV that this request builds on is not at MD"))
            return
        self._cache.insert(message.hashes)
        self._send(self._to_a, Ready(message.rid, message.transfer))
        if message.rid in self._dropped:
            self._dropped.discard(message.rid)
        elif message.mode == "hold":
            self._held[message.rid] = (message, took_ns)
        elif message.mode == "decode":
            self._answers[message.rid] = self._answer(message, took_ns, None)
            self.decoder.add(Stream(message.rid, message.seed, message.max_tokens, message.ids))

    def _answer(self, message: KvArrived, took_ns: int, handoff: dict[str, Any] | None) -> Finish:
        kv = {"bytes": message.kv_bytes, "wire_bytes": message.wire_bytes, "ns": took_ns}
        eager = handoff["token"] if handoff else 0
        return Finish(message.rid, message.cached_tokens, message.pipeline, eager, handoff, kv)

    def _hand_off(self, message: HandOff) -> None:
        """Recompute the KV of the ids (a fixed time, then a share of a step), and continue from exactly these ids."""
        held = self._held.pop(message.rid, None)
        if held is None:
            return  # dropped meanwhile
        kv, took_ns = held
        tokens = len(message.ids)
        handoff = {"mode": "one_shot", "token": tokens, "rounds": 1, "bytes": framed_bytes(message)}
        self._answers[message.rid] = self._answer(kv, took_ns, handoff)
        stream = Stream(message.rid, kv.seed, kv.max_tokens, message.ids, extend_tokens=tokens)
        wait_s = self._chip.extend_e0_s if tokens else 0.0
        self._clock.call_at(self._clock.now() + wait_s, self._start, stream)

    def _start(self, stream: Stream) -> None:
        if stream.rid in self._answers:
            self.decoder.add(stream)

    def _drop(self, rid: int) -> None:
        """Nobody waits for a request: let go of it wherever it is."""
        self._held.pop(rid, None)
        self._answers.pop(rid, None)
        self.decoder.discard(rid)
        if any(item[0].rid == rid for item in self._incomplete):
            self._dropped.add(rid)

    def _on_step(self, step: Step) -> None:
        rows = [(stream.rid, index, token) for stream, index, token in step]
        self._send(self._to_router, Tokens(self._stage, rows))
        for stream, _, _ in step:
            if stream.done:
                self._send(self._to_router, self._answers.pop(stream.rid))

    def _send(self, send: Callable[[Message], None], message: Message) -> None:
        self._clock.call_at(self._clock.now() + self._delay_s, send, message)
