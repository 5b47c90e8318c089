"""The hand-off at RLD's side: which ids leave when, and what happens when they do not get through.

`one_shot`: RLD stops as soon as MD has the KV, and all its ids go. `catch_up`: while more than `catch_up_tokens` are
outstanding, so many go in a round while RLD works on; then it stops and the rest goes. `dynamic`: one shot when
RLD is busy, since that frees it soonest, catch-up otherwise. `direct_kv`: the KV of the eager tokens goes, not ids.
"""

from __future__ import annotations

from collections.abc import Callable

from pddbench.deploy.emulator import observe
from pddbench.deploy.emulator.decode import Decoder
from pddbench.deploy.emulator.kv import KvSender
from pddbench.deploy.emulator.messages import HandOff, Message
from pddbench.deploy.emulator.policy import kv_bytes
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.streams import Stream
from pddbench.deploy.emulator.tokens import ID_BYTES, pack
from pddbench.wan.clock import Clock

_TRIES = 3
NO_ANSWER = "MD did not answer to the ids handed over"


class _State:
    """A hand-off under way: ids sent so far, in how many rounds."""

    __slots__ = ("mode", "on_handed", "rounds", "sent", "stream")

    def __init__(self, stream: Stream, mode: str, on_handed: Callable[[], None]) -> None:
        self.stream, self.mode, self.on_handed = stream, mode, on_handed
        self.sent = self.rounds = 0


class HandOffs:
    """All hand-offs of a cluster. `send` reaches B's control channel, `give_up(rid, reason)` ends a request."""

    def __init__(
        self,
        spec: EmulatorSpec,
        clock: Clock,
        decoder: Decoder,
        kv: KvSender,
        send: Callable[[Message], None],
        give_up: Callable[[int, str], None],
        observer: observe.Observer,
    ) -> None:
        self._spec, self._clock, self._decoder, self._kv = spec, clock, decoder, kv
        self._send, self._give_up, self._see = send, give_up, observer
        self._states: dict[int, _State] = {}  # RLD still has the stream
        self._unanswered: dict[int, HandOff] = {}  # final ids that MD has not acknowledged

    @property
    def under_way(self) -> int:
        """Hand-offs that are not over."""
        return len(self._states) + len(self._unanswered)

    def _mode(self) -> str:
        if self._spec.handoff != "dynamic":
            return self._spec.handoff
        loads = self._decoder.loads
        busy = not loads or sum(loads) / len(loads) > self._spec.switch_load
        return "one_shot" if busy else "catch_up"

    def begin(self, stream: Stream, on_handed: Callable[[], None]) -> None:
        """MD has the KV of a stream: hand it over. `on_handed` is called when RLD has let go of it."""
        state = self._states[stream.rid] = _State(stream, self._mode(), on_handed)
        if state.mode == "catch_up" and self._decoder.look(stream.rid, self._round):
            return
        if state.mode == "catch_up" or not self._decoder.take(stream.rid, self._final):
            self._final(stream)  # not at RLD (yet, or no more): what there is goes

    def cut_short(self, stream: Stream) -> bool:
        """RLD lost a stream: hand over what it had made, if MD has the KV already. False: it has not."""
        if stream.rid not in self._states:
            return False
        self._final(stream)
        return True

    def _round(self, stream: Stream) -> None:
        """A step boundary of RLD in catch-up: send a batch of what is outstanding, or stop when little is."""
        state = self._states.get(stream.rid)
        if state is None:
            return
        outstanding = stream.made - state.sent
        if outstanding <= self._spec.catch_up_tokens or state.rounds + 1 >= self._spec.catch_up_rounds:
            self._decoder.take(stream.rid, self._final)
            return
        message = self._message(state, stream, self._spec.catch_up_tokens, final=False)
        self._see("round", stream.rid, self._clock.now(), -1, self._spec.catch_up_tokens, 0)
        self._send(message)

    def extended(self, rid: int) -> None:
        """MD has recomputed what was sent so far: the next round."""
        state = self._states.get(rid)
        if state is not None and not self._decoder.look(rid, self._round):
            self._final(state.stream)

    def _message(self, state: _State, stream: Stream, count: int, final: bool) -> HandOff:
        first, state.sent = state.sent, state.sent + count
        state.rounds += 1
        ids = bytes(ID_BYTES * count) if stream.chain is None else pack(stream.chain.ids[first : state.sent])
        return HandOff(stream.rid, first, ids, final, state.mode, state.rounds)

    def _final(self, stream: Stream) -> None:
        """RLD has let go of a stream: the rest of its ids goes."""
        state = self._states.pop(stream.rid, None)
        if state is None:
            return  # it ended at that very step
        message = self._message(state, stream, stream.made - state.sent, final=True)
        self._see("hand_over", stream.rid, self._clock.now(), -1, stream.made, 0)
        state.on_handed()
        self._unanswered[stream.rid] = message
        if state.mode == "direct_kv" and stream.made:
            message.kv_bytes = kv_bytes(self._spec.model, stream.made)
            self._kv.tail(message)
        else:
            self._send(message)
            self._watch(message, 1)

    def _watch(self, message: HandOff, tries: int) -> None:
        due_s = self._clock.now() + self._spec.ids_timeout_s
        self._clock.call_at(due_s, self._again, message, tries)

    def _again(self, message: HandOff, tries: int) -> None:
        """No answer in time: send the ids again (MD takes them once), in the end give up."""
        if self._unanswered.get(message.rid) is not message:
            return
        if tries >= _TRIES:
            del self._unanswered[message.rid]
            self._give_up(message.rid, NO_ANSWER)
            return
        self._send(message)
        self._watch(message, tries + 1)

    def took(self, rid: int) -> None:
        """MD has the final ids, or nobody waits for them any more."""
        self._unanswered.pop(rid, None)

    def forget(self, rid: int) -> None:
        """The answer ended at RLD, or its client is gone."""
        self._states.pop(rid, None)
        self._unanswered.pop(rid, None)
