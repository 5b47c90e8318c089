"""A plan on a deployment in virtual time, tokens counted: cost by event. Its rows: `runner.counted`.

The clusters, the schedule and the meaning of a row are those of a live run; only the tokens themselves are not made,
so there is no text to hash and no body to send.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, NamedTuple

from pddbench.deploy.emulator import observe
from pddbench.deploy.emulator.blocks import Path, path_of
from pddbench.deploy.emulator.openai import CHAT_HEAD_TOKENS, CHAT_TAIL_TOKENS
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.virtual import CountedDeployment, until
from pddbench.replay.schedule import Times
from pddbench.runner.virtual_client import Manners, VirtualClient
from pddbench.trace.contexts import Segment, contexts, cut
from pddbench.workload.plan import NS, Plan
from pddbench.workload.requests import as_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pddbench.replay.stream import Ending

    Ints = npt.NDArray[np.int64]

NEVER_NS = -(2**63)


def plan_paths(plan: Plan, block_tokens: int, chat: bool) -> list[Path]:
    """The path of each prompt of a plan in blocks; a chat template's tokens stand around the prompt."""
    donors = [request.prefix_of for request in plan.requests]
    tails: dict[tuple[int, int], int] = {}  # what ends at the same place of the same prompt has the same template tail
    out = []
    for request, context in zip(plan.requests, contexts(plan.requests, donors), strict=True):
        prompt = cut(context, request.input_tokens)
        if chat:
            end = CHAT_HEAD_TOKENS + request.input_tokens
            owner = tails.setdefault((prompt[-1].owner, end), len(plan.requests) + len(tails))
            prompt = [Segment(o, s + CHAT_HEAD_TOKENS * (s > 0), e + CHAT_HEAD_TOKENS) for o, s, e in prompt]
            prompt.append(Segment(owner, end, end + CHAT_TAIL_TOKENS))
        out.append(path_of(prompt, block_tokens))
    return out


class CountedRun(VirtualClient):
    """One arm, one repeat: `run()`, then ask for rows and events.

    By request, ns on the deployment's clock, `NEVER_NS` where it did not happen: `scheduled_ns`, `ready_ns`, `due_ns`
    (which is when it was sent, if it was: `was_sent`), `ended_ns`. `left`: how and why the client went away.
    """

    def __init__(
        self,
        spec: EmulatorSpec,
        plan: Plan,
        *,
        chat: bool = False,
        manners: Manners | None = None,
        observer: observe.Observer = observe.ignore,
    ) -> None:
        self.deployment = CountedDeployment(spec, self._answered, observer)
        super().__init__(plan, self.deployment.clock, manners or Manners())
        self.spec = spec
        self._extra_tokens = CHAT_HEAD_TOKENS + CHAT_TAIL_TOKENS if chat else 0
        self._paths: list[Path | None] = [*plan_paths(plan, spec.block_tokens, chat)]
        columns = as_columns(plan.requests)
        self._sessions: list[int] = columns.ints("session").tolist()
        self.prompt_tokens: list[int] = (columns.ints("input_tokens") + self._extra_tokens).tolist()
        self.output_tokens: list[int] = columns.ints("output_tokens").tolist()
        self.scheduled_ns, self.ready_ns, self.due_ns, self.ended_ns = (
            array("q", [NEVER_NS]) * len(columns) for _ in range(4)
        )
        self.left: dict[int, tuple[str, str]] = {}
        self.not_sent: dict[int, str] = {}

    def run(self) -> None:
        """See `VirtualClient.run`; then what is still on its way."""
        super().run()
        self._clock.run()

    def _begin_measured(self) -> None:
        self.deployment.begin_events(self.t0_ns / NS)

    def was_sent(self, index: int) -> bool:
        """Whether a request left the client."""
        return index in self.deployment.outcomes

    def _note(self, index: int, times: Times) -> None:
        self.scheduled_ns[index], self.ready_ns[index] = times.scheduled_ns, times.ready_ns
        self.due_ns[index] = times.due_ns

    def _submit(self, index: int, times: Times) -> None:
        self._note(index, times)
        path, self._paths[index] = self._paths[index], None
        assert path is not None
        self.deployment.submit(index, self.prompt_tokens[index], self.output_tokens[index], path, self._sessions[index])

    def _answered(self, index: int) -> None:
        """The reply is over."""
        end_ns = self.ended_ns[index] = self._now_ns()
        self._over(index, end_ns, good=not self.deployment.outcomes[index].error)

    def _last_byte_ns(self, index: int) -> int:
        times_s, stages = self.deployment.token_times_so_far_s(index)
        chunks = self._chunked(index, times_s, stages, 0)
        return int(chunks.ns[-1]) if len(chunks.ns) else self.due_ns[index]

    def _leave(self, index: int, end_ns: int, ending: Ending, error: str) -> None:
        self.ended_ns[index], self.left[index] = end_ns, (ending, error)
        self.deployment.cancel(index)

    def _not_sent(self, index: int, reason: str, times: Times | None) -> None:
        self.not_sent[index] = reason
        if times is not None:
            self._note(index, times)

    def chunks(self, index: int) -> Chunks:
        """The token-bearing chunks of an answer as its client got them; the run is over."""
        if not self.was_sent(index):
            return no_chunks()
        times_s, stages = self.deployment.token_times_s(index)
        if index in self.left:
            times_s, stages = until(times_s, stages, self.ended_ns[index] / NS)
        return self._chunked(index, times_s, stages, self.t0_ns)

    def _chunked(
        self, index: int, times_s: npt.NDArray[np.float64], stages: list[tuple[str, int]], t0_ns: int
    ) -> Chunks:
        import numpy as np

        times_ns = np.rint(times_s * NS).astype(np.int64) - t0_ns
        if self.spec.tokens_per_chunk == 1:
            return Chunks(times_ns, np.ones(len(times_ns), dtype=np.int32), stages)
        return _bundled(times_ns, stages, self.spec.tokens_per_chunk, self.output_tokens[index])


class Chunks(NamedTuple):
    """Chunks of an answer: when each came (ns since t0), its tokens, and how many in a row each stage made."""

    ns: Ints
    tokens: npt.NDArray[np.int32]
    stages: list[tuple[str, int]]


def no_chunks() -> Chunks:
    """Of a request that was not sent."""
    import numpy as np

    return Chunks(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), [])


def _bundled(times_ns: Ints, stages: list[tuple[str, int]], per: int, limit: int) -> Chunks:
    """Chunks of several tokens: one leaves when it is full, with the first token, and before the stage changes."""
    import numpy as np

    ns: list[int] = []
    sizes: list[int] = []
    out: list[tuple[str, int]] = []
    at = 0
    for stage, count in _merged(stages):
        stop, before = at + count, len(ns)
        while at < stop:
            size = 1 if at == 0 else min(per, stop - at)
            full = size == per or at == 0 or at + size == limit
            if full or stop < len(times_ns):
                ns.append(times_ns[at + size - 1] if full else times_ns[stop])
                sizes.append(size)
            at += size
        out.append((stage, len(ns) - before))
    return Chunks(np.array(ns, dtype=np.int64), np.array(sizes, dtype=np.int32), out)


def _merged(stages: list[tuple[str, int]]) -> list[tuple[str, int]]:
    out: list[tuple[str, int]] = []
    for stage, count in stages:
        if out and out[-1][0] == stage:
            out[-1] = (stage, out[-1][1] + count)
        else:
            out.append((stage, count))
    return out
