"""A deployment in virtual time: the same clusters, link and laws as live, with no waiting and no sockets.

`VirtualDeployment` makes every token and puts the answers together as the router does. `CountedDeployment` only
counts them: when they came is read from the instances' logs afterwards, so that an answer costs as much as its events.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pddbench.deploy.emulator import observe
from pddbench.deploy.emulator.blocks import Path, PathBook, block_hashes
from pddbench.deploy.emulator.cluster_a import ClusterA
from pddbench.deploy.emulator.cluster_b import ClusterB
from pddbench.deploy.emulator.messages import Cancel, Failed, Finish, Message, Submit, Tokens
from pddbench.deploy.emulator.reply import Piece, Reply
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.streams import Stretch
from pddbench.wan.clock import VirtualClock
from pddbench.wan.fluid import FluidLink
from pddbench.wan.steps import Waits, shifted

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

STAGES = ("p", "rld", "md", "d")


class _World:
    """Clusters and a link on a virtual clock."""

    def __init__(
        self,
        spec: EmulatorSpec,
        on_stretch: Callable[[str, Stretch], None] | None = None,
        observer: observe.Observer = observe.ignore,
    ) -> None:
        self.spec = spec
        self.clock = VirtualClock()
        self.link: FluidLink | None = None
        if spec.arm != "baseline":
            self.link = FluidLink(spec.link, self.clock, spec.kv_flows, spec.kv_warm)
        self.delay_s = spec.link.rtt_s / 2
        self.waits = Waits()
        self.a = ClusterA(
            spec,
            self.clock,
            self.link,
            self._on_reply,
            self._across(self._deliver),
            self._across(self._deliver),
            self.delay_s,
            on_stretch,
            observer,
        )
        self.b: ClusterB | None = None
        if spec.arm != "baseline":
            self.b = ClusterB(
                spec,
                self.clock,
                self._across(self._on_reply),
                self._across(self.a.on_message),
                self.delay_s,
                on_stretch,
                observer,
            )

    def begin_events(self, start_s: float) -> None:
        """The link's own schedule begins: its zero on the clock."""
        if self.link is not None:
            self.link.follow(self.spec.link_steps, start_s)
            self.waits = Waits(shifted(self.spec.link_steps, start_s))

    def _across(self, receive: Callable[[Message], None]) -> Callable[[Message], None]:
        """What takes a message at the other end, over a link that may be cut."""
        return partial(self._crossed, receive) if self.spec.link_steps else receive

    def _crossed(self, receive: Callable[[Message], None], message: Message) -> None:
        """A message is due at the other end: it is there, or waits until the link is back."""
        arrives_s = self.waits.arrives_s(self.clock.now(), self.delay_s)
        if arrives_s > self.clock.now():
            self.clock.call_at(arrives_s, receive, message)
        else:
            receive(message)

    def _deliver(self, message: Message) -> None:
        self.to_b(message)

    def to_b(self, message: Message) -> None:
        """What A sends arrives at B."""
        assert self.b is not None
        self.b.on_message(message)

    def _on_reply(self, message: Message) -> None:
        raise NotImplementedError


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


class VirtualDeployment(_World):
    """An arm on a virtual clock, token by token: `submit` prompts at times, `clock.run()`, read `answers`."""

    def __init__(self, spec: EmulatorSpec, observer: observe.Observer = observe.ignore) -> None:
        self.answers: dict[int, Answer] = {}
        self._book = PathBook()
        super().__init__(spec, observer=observer)

    def submit(
        self,
        rid: int,
        at_s: float,
        ids: Sequence[int] | npt.NDArray[Any],
        max_tokens: int,
        session: int | None = None,
    ) -> None:
        """Send a prompt at a time; without a `session` those that begin with the same block are one."""
        hashes, seed = block_hashes(ids, self.spec.block_tokens)
        self.answers[rid] = Answer(at_s, seed, max_tokens)
        path = self._book.path(hashes)
        if session is None:
            session = path[0][0] if path else 0
        self.clock.call_at(at_s, self.a.on_message, Submit(rid, seed, len(ids), max_tokens, path, session))

    def cancel(self, rid: int, at_s: float) -> None:
        """The client of a request leaves at a time, if it is still there."""
        self.clock.call_at(at_s, self._leave, rid)

    def _leave(self, rid: int) -> None:
        if not self.answers[rid].reply.complete:
            self.a.on_message(Cancel(rid))

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


class Outcome:
    """What became of a request: who made which of its tokens, the closing figures, an error."""

    __slots__ = ("ended_s", "error", "finish", "max_tokens", "sent_s", "stretches")

    def __init__(self, sent_s: float, max_tokens: int) -> None:
        self.sent_s, self.max_tokens, self.ended_s = sent_s, max_tokens, -1.0
        self.stretches: list[tuple[str, Stretch | float]] = []  # a float: when the one token of P was sent
        self.finish: Finish | None = None
        self.error = ""


class CountedDeployment(_World):
    """An arm on a virtual clock, tokens counted: `submit` prompts, `clock.run()`, read `outcomes`.

    `on_end(rid)` is called when an answer is over, at the client's time.
    """

    def __init__(
        self, spec: EmulatorSpec, on_end: Callable[[int], None], observer: observe.Observer = observe.ignore
    ) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self._on_end = on_end
        super().__init__(spec, self._on_stretch, observer)

    def submit(self, rid: int, prompt_tokens: int, max_tokens: int, path: Path, session: int) -> None:
        """Send a prompt now."""
        self.outcomes[rid] = Outcome(self.clock.now(), max_tokens)
        self.a.on_message(Submit(rid, rid, prompt_tokens, max_tokens, path, session))

    def cancel(self, rid: int) -> None:
        """The client of a request leaves now, if it is still there."""
        if self.outcomes[rid].ended_s < 0:
            self.outcomes[rid].ended_s = self.clock.now()
            self.a.on_message(Cancel(rid))

    def _on_stretch(self, stage: str, stretch: Stretch) -> None:
        self.outcomes[stretch.rid].stretches.append((stage, stretch))

    def _on_reply(self, message: Message) -> None:
        if isinstance(message, Tokens):
            for rid, _, _ in message.rows:
                self.outcomes[rid].stretches.append((message.stage, self.clock.now()))
            return
        assert isinstance(message, Finish | Failed)
        outcome = self.outcomes[message.rid]
        if outcome.ended_s >= 0:
            return
        outcome.ended_s = self.clock.now()
        if isinstance(message, Finish):
            outcome.finish = message
        else:
            outcome.error = message.reason
            self.a.on_message(Cancel(message.rid))
        self._on_end(message.rid)

    def token_times_s(self, rid: int) -> tuple[npt.NDArray[np.float64], list[tuple[str, int]]]:
        """When each token of an answer reached the client, and which stages made how many of them.

        float64, shape (tokens,). A token never arrives before the one before it. Raises `ValueError` when one is
        missing or came twice.
        """
        import numpy as np

        parts, stages, at = [], [], 0
        for stage, stretch in self.outcomes[rid].stretches:
            if not isinstance(stretch, Stretch):
                parts.append(np.array([stretch]))
                at += 1
                stages.append((stage, 1))
                continue
            if stretch.first != at:
                raise ValueError(f"token {stretch.first} of request {rid} came after {at}")
            parts.append(self._arrivals_s(stage, stretch))
            at += stretch.count
            stages.append((stage, stretch.count))
        times_s = np.concatenate(parts) if parts else np.empty(0)
        return np.maximum.accumulate(times_s), stages

    def _arrivals_s(self, stage: str, stretch: Stretch) -> npt.NDArray[np.float64]:
        import numpy as np

        ends_s = stretch.log.ends_s()
        far = self.spec.arm != "baseline" and stage in ("md", "d")
        if stretch.tokens_per_step == 1:
            made_s = ends_s[stretch.step : stretch.step + stretch.count]
        else:  # token i comes with the first step after which i + 1 tokens are made
            steps = np.ceil(np.arange(1, stretch.count + 1) / stretch.tokens_per_step - 1e-9).astype(np.int64)
            made_s = ends_s[stretch.step + steps - 1]
        return self.waits.leave_s(made_s) + self.delay_s if far else made_s
