"""A deployment in virtual time: the same clusters, link and laws as live, with no waiting and no sockets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pddbench.deploy.emulator.blocks import block_hashes
from pddbench.deploy.emulator.cluster_a import ClusterA
from pddbench.deploy.emulator.cluster_b import ClusterB
from pddbench.deploy.emulator.messages import Cancel, Failed, Finish, Message, Submit, Tokens
from pddbench.deploy.emulator.reply import Piece, Reply
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.wan.clock import VirtualClock
from pddbench.wan.fluid import FluidLink

if TYPE_CHECKING:
    import numpy.typing as npt


class Answer:
    """What a client of a virtual deployment gets: the pieces with their arrival times (model seconds)."""

    def __init__(self, sent_s: float, seed: int, max_tokens: int) -> None:
        self.sent_s, self.seed = sent_s, seed
        self.reply = Reply(max_tokens)
        self.pieces: list[Piece] = []
        self.times_s: list[float] = []
        self.error = ""

    @property
    def ttft_s(self) -> float:
        """Time to the first token."""
        return self.times_s[0] - self.sent_s

    @property
    def tokens(self) -> list[int]:
        """The tokens received, in order."""
        return [token for _, _, token in self.pieces]


class VirtualDeployment:
    """An arm on a virtual clock: `submit` prompts at times, `clock.run()`, read `answers`."""

    def __init__(self, spec: EmulatorSpec) -> None:
        self.spec = spec
        self.clock = VirtualClock()
        self.answers: dict[int, Answer] = {}
        self.link = None if spec.arm == "baseline" else FluidLink(spec.link, self.clock)
        delay_s = spec.link.rtt_s / 2
        self.a = ClusterA(spec, self.clock, self.link, self._on_reply, self._to_b, self._to_b, delay_s)
        self.b = None
        if spec.arm != "baseline":
            self.b = ClusterB(spec, self.clock, self._on_reply, self.a.on_message, delay_s)

    def submit(self, rid: int, at_s: float, ids: Sequence[int] | npt.NDArray[Any], max_tokens: int) -> None:
        """Send a prompt at a time."""
        hashes, seed = block_hashes(ids, self.spec.block_tokens)
        self.answers[rid] = Answer(at_s, seed, max_tokens)
        self.clock.call_at(at_s, self.a.on_message, Submit(rid, seed, len(ids), max_tokens, hashes))

    def cancel(self, rid: int, at_s: float) -> None:
        """The client of a request leaves at a time, if it is still there."""
        self.clock.call_at(at_s, self._leave, rid)

    def _leave(self, rid: int) -> None:
        if not self.answers[rid].reply.complete:
            self.a.on_message(Cancel(rid))

    def _to_b(self, message: Message) -> None:
        assert self.b is not None
        self.b.on_message(message)

    def _on_reply(self, message: Message) -> None:
        if isinstance(message, Tokens):
            for rid, index, token in message.rows:
                answer = self.answers[rid]
                pieces = answer.reply.accept(message.stage, index, token)
                answer.pieces += pieces
                answer.times_s += [self.clock.now()] * len(pieces)
        elif isinstance(message, Finish):
            self.answers[message.rid].reply.finish = message
        elif isinstance(message, Failed):
            self.answers[message.rid].error = message.reason
