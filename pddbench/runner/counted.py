"""A plan on a deployment in virtual time, tokens counted: cost by event, then rows as in a run folder.

The clusters, the schedule and the meaning of a row are those of a live run; only the tokens themselves are not made,
so there is no text to hash and no body to send.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from pddbench.deploy.emulator import observe
from pddbench.deploy.emulator.blocks import Path, path_of
from pddbench.deploy.emulator.openai import CHAT_HEAD_TOKENS, CHAT_TAIL_TOKENS
from pddbench.deploy.emulator.spec import EmulatorSpec
from pddbench.deploy.emulator.virtual import CountedDeployment
from pddbench.replay.engine import LEAD_NS
from pddbench.replay.schedule import Schedule, Times
from pddbench.trace.contexts import Segment, contexts, cut
from pddbench.workload.plan import BEFORE_START, NS, Plan
from pddbench.workload.requests import as_columns

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    Ints = npt.NDArray[np.int64]


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


class CountedRun:
    """One arm, one repeat: `run()`, then ask for rows and events. `abandon`: children of a failure are not sent."""

    def __init__(
        self,
        spec: EmulatorSpec,
        plan: Plan,
        *,
        chat: bool = False,
        abandon: bool = False,
        paths: list[Path] | None = None,
        observer: observe.Observer = observe.ignore,
    ) -> None:
        self.spec, self.plan, self._abandon = spec, plan, abandon
        self._extra_tokens = CHAT_HEAD_TOKENS + CHAT_TAIL_TOKENS if chat else 0
        self._paths = plan_paths(plan, spec.block_tokens, chat) if paths is None else paths
        self.deployment = CountedDeployment(spec, self._end, observer)
        self._clock = self.deployment.clock
        self._schedule = Schedule(plan, (), 1.0)
        self._sessions = as_columns(plan.requests).ints("session").tolist()
        self._left = 0  # of the phase that is on
        self.t0_ns = 0
        self.times: dict[int, Times] = {}
        self.ended_ns: dict[int, int] = {}
        self.parent_failed: set[int] = set()

    def run(self) -> None:
        """Warm-ups, then the rest."""
        early = [request.kind in BEFORE_START for request in self.plan.requests]
        self._phase([index for index, before in enumerate(early) if before])
        self._phase([index for index, before in enumerate(early) if not before], zero=True)
        self._clock.run()  # what is still on its way

    def _phase(self, indices: list[int], zero: bool = False) -> None:
        """Send these and go on until the last of them has ended; later events are the next phase's."""
        self._schedule = Schedule(self.plan, indices, 1.0)
        self._schedule.t0_ns = self.t0_ns = self._now_ns() + LEAD_NS
        if zero:
            self.deployment.begin_events(self.t0_ns / NS)
        for index in self._schedule.roots:
            self._wait(index, self._schedule.root_times(index))
        self._left = len(indices)
        while self._left > 0 and self._clock.step():
            pass

    def _now_ns(self) -> int:
        return round(self._clock.now() * NS)

    def _wait(self, index: int, times: Times) -> None:
        self._clock.call_at(times.due_ns / NS, self._send, index, times)

    def _send(self, index: int, times: Times) -> None:
        """A request is due: an ideal client sends it at once."""
        self.times[index] = times
        request, path = self.plan.requests[index], self._paths[index]
        tokens = request.input_tokens + self._extra_tokens
        self.deployment.submit(index, tokens, request.output_tokens, path, self._sessions[index])

    def _end(self, index: int) -> None:
        """The reply is over; its children may be due."""
        end_ns = self.ended_ns[index] = self._now_ns()
        self._left -= 1
        if self._abandon and self.deployment.outcomes[index].error:
            dropped = self._schedule.drop(index)
            self._left -= len(dropped)
            self.parent_failed.update(dropped)
            return
        for child, times in self._schedule.release(index, end_ns):
            self._wait(child, times)

    def prompt_tokens(self, index: int) -> int:
        """Tokens of a prompt as the engine counts them."""
        return self.plan.requests[index].input_tokens + self._extra_tokens

    def chunks(self, index: int) -> Chunks:
        """The token-bearing chunks of an answer as its client got them."""
        import numpy as np

        if index not in self.times:
            return Chunks(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32), [])
        times_s, stages = self.deployment.token_times_s(index)
        times_ns = np.rint(times_s * NS).astype(np.int64) - self.t0_ns
        if self.spec.tokens_per_chunk == 1:
            return Chunks(times_ns, np.ones(len(times_ns), dtype=np.int32), stages)
        return _bundled(times_ns, stages, self.spec.tokens_per_chunk, self.plan.requests[index].output_tokens)


class Chunks(NamedTuple):
    """Chunks of an answer: when each came (ns since t0), its tokens, and how many in a row each stage made."""

    ns: Ints
    tokens: npt.NDArray[np.int32]
    stages: list[tuple[str, int]]


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


def row(run: CountedRun, index: int, chunks: Chunks) -> dict[str, Any]:
    """What happened to a request, as columns of `requests`; hashes of what was never made are left out."""
    times = run.times.get(index)
    if times is None:
        return {"outcome": "not_sent", "error": "parent_failed" if index in run.parent_failed else "run_ended"}
    outcome, t0_ns = run.deployment.outcomes[index], run.t0_ns
    due_ns = times.due_ns - t0_ns
    out: dict[str, Any] = {
        "scheduled_ns": times.scheduled_ns - t0_ns,
        "ready_ns": times.ready_ns - t0_ns,
        "due_ns": due_ns,
        "throttle_wait_ns": 0,
        "worker": 0,
        "connect_wait_ns": 0,
        "sent_ns": due_ns,
        "first_byte_ns": due_ns,
        "http_status": 200,
        "chunks": len(chunks.ns),
    }
    ended_ns = run.ended_ns.get(index)
    out["end_ns"] = None if ended_ns is None else ended_ns - t0_ns
    if outcome.error:
        out |= {"outcome": "stream_error", "error": f"the server sent an error: {outcome.error}"}
    elif ended_ns is None:
        out |= {"outcome": "truncated", "error": "the simulation ended before this answer"}
    else:
        out |= {"outcome": "ok", "finish_reason": "length"} | _closing(run, index)
    return out | _stamps(chunks)


def _closing(run: CountedRun, index: int) -> dict[str, Any]:
    """Usage and the facts of the `pdd` extension."""
    finish = run.deployment.outcomes[index].finish
    assert finish is not None
    handoff, kv = finish.handoff or {}, finish.kv or {}
    return {
        "prompt_tokens": run.prompt_tokens(index),
        "cached_tokens": finish.cached_tokens,
        "completion_tokens": run.plan.requests[index].output_tokens,
        "pipeline": finish.pipeline,
        "handoff_mode": handoff.get("mode"),
        "handoff_token": handoff.get("token"),
        "handoff_rounds": handoff.get("rounds"),
        "handoff_bytes": handoff.get("bytes"),
        "kv_wan_bytes": kv.get("bytes"),
        "kv_wan_wire_bytes": kv.get("wire_bytes"),
        "kv_wan_ns": kv.get("ns"),
    }


def _stamps(chunks: Chunks) -> dict[str, Any]:
    """Stamps of chunks, the largest gap, and tokens by stage."""
    ns = chunks.ns
    if not len(ns):
        return {}
    first_ns = int(ns[0])
    out: dict[str, Any] = {
        "first_chunk_ns": first_ns,
        "first_token_ns": first_ns,
        "user_first_token_ns": first_ns,
        "last_token_ns": int(ns[-1]),
        "stamps": "user",
    }
    if len(ns) > 1:
        gaps = ns[1:] - ns[:-1]
        largest = int(gaps.argmax())
        out["second_token_ns"] = int(ns[1])
        out["max_gap_ns"] = int(gaps[largest])
        out["max_gap_token"] = int(chunks.tokens[: largest + 1].sum())
    shares, at = {"p": 0, "rld": 0, "md": 0}, 0
    for stage, count in chunks.stages:
        shares["md" if stage == "d" else stage] += int(chunks.tokens[at : at + count].sum())
        at += count
    return out | {f"tokens_{name}": tokens for name, tokens in shares.items()}


def table(run: CountedRun, arm: str, repeat: int, all_chunks: Iterable[Chunks] | None = None) -> pa.Table:
    """All requests of a run as the `requests` table of a run folder."""
    import numpy as np
    import pyarrow as pa

    from pddbench.runfolder.finish import as_sent, planned_row
    from pddbench.runfolder.schema import REQUESTS, SCHEMA_VERSION, arrow_schema
    from pddbench.runfolder.spooled import ArmFacts
    from pddbench.trace.hits import NEVER_NS
    from pddbench.workload.phases import phases

    facts, block = ArmFacts(arm, repeat, 1.0, run.spec.block_tokens), run.spec.block_tokens
    columns: dict[str, list[Any]] = {name: [] for name in REQUESTS}
    sent, first, answer, end = (np.full(len(run.plan.requests), NEVER_NS, dtype=np.int64) for _ in range(4))
    reply = np.zeros(len(sent), dtype=np.int64)
    every = (run.chunks(i) for i in range(len(sent))) if all_chunks is None else all_chunks
    for request, chunks in zip(run.plan.requests, every, strict=True):
        values = planned_row(request, facts, block) | row(run, request.index, chunks)
        for name, column in columns.items():
            column.append(values.get(name))
        if values.get("sent_ns") is not None:
            sent[request.index] = values["sent_ns"]
            answer[request.index] = values.get("first_token_ns") or values.get("end_ns") or NEVER_NS
            first[request.index] = values.get("first_token_ns", NEVER_NS)
            if values.get("end_ns") is not None:
                end[request.index] = values["end_ns"]
            reply[request.index] = int(chunks.tokens.sum())
    columns["phase"] = phases(run.plan, columns["due_ns"], columns["end_ns"])
    schema = arrow_schema(REQUESTS, {"pddbench_schema_version": str(SCHEMA_VERSION)})
    arrays = {name: pa.array(column, schema.field(name).type) for name, column in columns.items()}
    for name, (hits, missing) in as_sent(run.plan, block, sent, first, answer, end, reply).items():
        arrays[name] = pa.array(hits, type=pa.int32(), mask=missing)
    return pa.table(arrays, schema=schema)
