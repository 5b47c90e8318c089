"""Plans and runs for the tests of the engine."""

from __future__ import annotations

import json

from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.kernel import KernelClock, on_our_clock
from pddbench.replay.spool import Spool, SpoolWriter, read_spool
from pddbench.replay.stream import Facts, StreamResult, interpret
from pddbench.workload.plan import Plan, PlannedRequest

MS = 1_000_000


def request(index: int, name: str = "", **more) -> PlannedRequest:
    """A planned request; a root at 0 unless told."""
    fields = {
        "request_id": name or f"r{index}", "session_id": f"s{index}", "turn": 0, "kind": "root", "phase": "measure",
        "parents": (), "start_ns": None if more.get("parents") else 0, "gap_ns": 0, "prefix_of": -1,
        "prefix_tokens": 0, "input_tokens": 10, "output_tokens": 2, "cached_tokens_planned": 0, "plan_sha256": "p",
    }  # fmt: skip
    return PlannedRequest(index=index, **{**fields, **more})


def plan(*requests: PlannedRequest, timing: str = "think") -> Plan:
    """A plan of these requests."""
    return Plan(list(requests), timing, "plan-hash")


def body(index: int) -> bytes:
    """A body that tells its request."""
    return json.dumps({"prompt": [index], "stream": True}).encode()


async def run(the_plan: Plan, url: str, folder, target=None, name="a.1", **more):
    """Replay, and the spool read back."""
    path = folder / f"{name}.spool"
    spool = SpoolWriter(path, "a", 1, len(the_plan.requests))
    try:
        end = await replay(ReplayJob(the_plan, Target(url=url, **(target or {})), body, spool, **more))
    finally:
        spool.close()
    return end, read_spool(path)


def result(spool: Spool, index: int) -> StreamResult:
    """The meaning of one request of a spool."""
    one = spool.request(index)
    answered, ended = one.answered, one.ended
    clock = KernelClock([(sample.t_ns, sample.offset_ns) for sample in spool.clock_offsets])
    return interpret(
        on_our_clock(one.reads, clock),
        Facts(
            ended.ending,
            answered.status if answered else None,
            answered.content_type if answered else "",
            answered.location if answered else "",
            answered.headers_ns if answered else None,
            ended.error,
        ),
    )
