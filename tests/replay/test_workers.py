"""Several client processes: the same bytes and rows as one, one start, and nothing lost when one of them dies."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from replay_kit import MS, plan, request
from replay_server import stream, truth_server
from replay_streams import last, text

from pddbench.errors import InputError, WorldError
from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.split import share_of_places, share_of_rate, split_sessions, usable_workers
from pddbench.replay.spool import SpoolWriter
from pddbench.runfolder import finish
from pddbench.runfolder.recover import recover
from pddbench.runner.worker import WorkerJob
from pddbench.runner.workers import replay_by_workers
from pddbench.runner.writer import WriterSettings, make_writer

WRITER = WriterSettings(
    model="m", chat=False, token_ids=True, fields={"ignore_eos": True}, limit_field="max_tokens", min_tokens=False,
    words=(), overhead_tokens=0, turn_overhead_tokens=0, token_id_range=(1000, 30000),
)  # fmt: skip
SAME = ["request_id", "outcome", "error", "body_sha256", "output_sha256", "chunks", "prompt_tokens", "http_status",
        "completion_tokens", "finish_reason", "plan_sha256", "phase"]  # fmt: skip


def sessions(n: int, turns: int = 2, **more):
    """`n` sessions that share a prefix with the first, then a prime of it, sent before the start."""
    rows = []
    for s in range(n):
        for t in range(turns):
            i = len(rows)
            rows.append(
                request(
                    i, f"s{s}.{t}", session_id=f"s{s}", turn=t, kind="tool" if t else "root",
                    parents=(i - 1,) if t else (), start_ns=None if t else s * 20 * MS, gap_ns=10 * MS,
                    prefix_of=i - 1 if t else (0 if s else -1), prefix_tokens=(12 if t else 4) if i else 0,
                    input_tokens=20 + 10 * t, output_tokens=2, plan_sha256=f"p{i}", **more,
                )
            )  # fmt: skip
    primes = [
        request(len(rows) + k, f"prime-{k}", session_id=f"prime-{k}", kind="prime", phase="warmup", prefix_of=k * turns,
                prefix_tokens=4, input_tokens=4, output_tokens=1)
        for k in range(3)
    ]  # fmt: skip
    return plan(*rows, *primes)


def reply(seen):
    """Two tokens; one request is refused by its stream."""
    if seen.request_id == "s1.0":
        return stream([text("a")])
    return stream([text("a"), text("b", "stop"), last(2)], gap_s=0.002)


def folder_of(path: Path, the_plan, arm: str = "a", workers: int = 2) -> Path:
    """A run folder as the runner makes it before traffic."""
    path.mkdir(exist_ok=True)
    (path / "manifest.json").write_text(json.dumps({"name": "x", "partial": False, "order": [[arm, 1]]}))
    finish.save_plan(path, 1, the_plan)
    finish.save_arm(path, arm, 1, 1.0, None, workers)
    return path


def jobs(folder: Path, url: str, workers: int):
    """A job for each worker."""
    return [
        WorkerJob(folder=str(folder), arm="a", repeat=1, worker=k, workers=workers, target=Target(url=url),
                  writer=WRITER, salt="salt", speed=1.0, on_parent_failure="continue")
        for k in range(workers)
    ]  # fmt: skip


async def here(the_plan, folder: Path, url: str) -> None:
    """The same run in this process."""
    spool = SpoolWriter(finish.spool_path(folder, "a", 1), "a", 1, len(the_plan.requests))
    try:
        await replay(ReplayJob(the_plan, Target(url=url), make_writer(WRITER, the_plan, "salt"), spool))
    finally:
        spool.close()


def rows_of(folder: Path) -> pd.DataFrame:
    """The rows of the finished run."""
    if finish.spools(folder):
        finish.finish_arm(folder, "a", 1)
    return pd.read_parquet(folder / "requests", dtype_backend="pyarrow")


async def test_two_workers_give_the_rows_of_one(tmp_path):
    """Without it more workers could mean other bytes, lost requests, turns that wait for nobody, or two clocks."""
    the_plan = sessions(6)
    one, two = folder_of(tmp_path / "one", the_plan), folder_of(tmp_path / "two", the_plan)
    async with truth_server(reply) as server:
        await here(the_plan, one, server.url)
        first = len(server.seen)
        end = await replay_by_workers(jobs(two, server.url, 2), asyncio.Event())
        by_workers = server.seen[first:]
    a, b = rows_of(one), rows_of(two)
    pd.testing.assert_frame_equal(a[SAME], b[SAME])
    assert sorted(x.body for x in server.seen[:first]) == sorted(x.body for x in by_workers)
    assert (a["outcome"] == "ok").sum() == 14 and a.loc[2, "outcome"] == "truncated"
    assert set(b["worker"]) == {0, 1} and set(a["worker"]) == {0}
    assert (b.groupby("session_id")["worker"].nunique() == 1).all()
    roots = b[b["kind"] == "root"]
    assert roots["scheduled_ns"].tolist() == [s * 20 * MS for s in range(6)], "one t0 for all"
    assert (b.loc[b["kind"] == "prime", "end_ns"] < 0).all(), "what comes before the start has ended by then"
    assert end.status == "complete" and end.counts.done == 15
    health = pd.read_parquet(two / "health", dtype_backend="pyarrow")
    assert set(health["worker"]) == {0, 1}


def slow(seen):
    """A stream that goes on for ever."""
    return stream([text("x")] * 10_000, gap_s=0.02)


def worker_pids(parent: int) -> list[int]:
    """The worker processes of `parent`."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(pid) for pid in children if "runner.worker" in Path(f"/proc/{pid}/cmdline").read_text()]


async def until(condition) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_a_worker_that_is_killed(tmp_path):
    """Without it half the load would vanish in the middle of a run that ends as valid."""
    the_plan = sessions(4)
    folder = folder_of(tmp_path, the_plan)
    first = lambda seen: slow(seen) if seen.request_id.endswith(".0") else reply(seen)  # noqa: E731
    async with truth_server(first) as server:
        running = asyncio.ensure_future(replay_by_workers(jobs(folder, server.url, 2), asyncio.Event()))
        await until(lambda: sum(len(seen.wrote_ns) > 40 for seen in server.seen) == 4)
        os.kill(worker_pids(os.getpid())[0], signal.SIGKILL)
        with pytest.raises(WorldError, match=r"worker \d of 2 was killed by SIGKILL while arm 'a' ran"):
            await running
    assert not worker_pids(os.getpid())
    rows = rows_of(folder)
    assert len(rows) == 11
    killed = rows[rows["error"] == finish.KILLED]
    assert len(killed) == 2 and killed["worker"].nunique() == 1 and (killed["chunks"] > 5).all()
    other = rows[(rows["kind"] == "root") & (rows["worker"] != killed["worker"].iloc[0])]
    assert set(other["outcome"]) == {"cancelled"} and set(other["error"]) == {"stopped while in flight"}
    assert set(rows.loc[rows["kind"] == "tool", "outcome"]) == {"not_sent"}
    assert rows["worker"].notna().all() and rows.groupby("session_id")["worker"].nunique().max() == 1, (
        "what a killed worker had not sent is still its own: figures by worker would lose those rows"
    )


async def test_a_stop_reaches_every_worker(tmp_path):
    """Without it Ctrl-C would leave workers sending, or lose what they had."""
    folder = folder_of(tmp_path, sessions(4))
    stop = asyncio.Event()
    async with truth_server(lambda seen: slow(seen) if "prime" not in seen.request_id else reply(seen)) as server:
        running = asyncio.ensure_future(replay_by_workers(jobs(folder, server.url, 2), stop))
        await until(lambda: sum(len(seen.wrote_ns) > 10 for seen in server.seen) == 4)
        stop.set()
        end = await running
    assert end.status == "interrupted"
    rows = rows_of(folder)
    assert rows["outcome"].tolist() == ["cancelled", "not_sent"] * 4 + ["ok"] * 3
    assert set(rows.loc[rows["outcome"] == "not_sent", "error"]) == {"interrupted"}


PARENT = """
import asyncio, sys
from pathlib import Path
import msgspec
from pddbench.runner.worker import WorkerJob
from pddbench.runner.workers import replay_by_workers
jobs = msgspec.json.decode(sys.stdin.buffer.read(), type=list[WorkerJob])

async def main():
    await replay_by_workers(jobs, asyncio.Event())

asyncio.run(main())
"""


async def test_a_parent_that_is_killed(tmp_path):
    """Without it workers would go on sending load nobody asked for, or their spools could not be finished."""
    folder = folder_of(tmp_path, sessions(4))
    async with truth_server(lambda seen: slow(seen) if "prime" not in seen.request_id else reply(seen)) as server:
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PARENT, stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        parent.stdin.write(msgspec.json.encode(jobs(folder, server.url, 2)))
        parent.stdin.close()
        await until(lambda: sum(len(seen.wrote_ns) > 10 for seen in server.seen) == 4)
        workers = worker_pids(parent.pid)
        assert len(workers) == 2
        with pytest.raises(InputError, match="still going on"):
            recover(folder)
        parent.kill()
        await parent.wait()
        await until(lambda: not any(Path(f"/proc/{pid}/fd").exists() for pid in workers))
    (found,) = recover(folder)
    assert (found.planned, found.sent, found.error) == (11, 7, None)
    rows = rows_of(folder)
    assert rows["outcome"].tolist() == ["cancelled", "not_sent"] * 4 + ["ok"] * 3
    assert (rows.loc[rows["outcome"] == "cancelled", "chunks"] > 5).all()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["partial"] is True
    assert manifest["runs"][0]["workers"] == 2 and manifest["runs"][0]["exact_timer"] is True


async def test_bad_news_of_a_worker_is_a_sentence(tmp_path):
    """Without it a worker without a plan, or on a full disk, would be a traceback or a hang."""
    folder = folder_of(tmp_path, sessions(2))
    (folder / "spool" / "plan.1.bin").unlink()
    with pytest.raises(WorldError, match=r"cannot read .*plan\.1\.bin"):
        await replay_by_workers(jobs(folder, "http://127.0.0.1:9/", 2), asyncio.Event())


def test_how_a_plan_is_split():
    """Without it a session could be torn apart, a worker idle, or the brakes of all together exceed those asked for."""
    the_plan = sessions(7, turns=3)
    parts = split_sessions(the_plan, 3)
    assert sorted(i for part in parts for i in part) == list(range(len(the_plan.requests)))
    owner = {i: k for k, part in enumerate(parts) for i in part}
    for one in the_plan.requests:
        assert all(owner[parent] == owner[one.index] for parent in one.parents)
    assert [sum(1 for i in part if the_plan.requests[i].kind == "prime") for part in parts] == [1, 1, 1]
    assert sorted(sum(1 for i in part if the_plan.requests[i].kind == "root") for part in parts) == [2, 2, 3]
    assert usable_workers(the_plan, 16) == 7 and usable_workers(the_plan, 2) == 2
    assert [share_of_places(7, 3, k) for k in range(3)] == [3, 2, 2] and share_of_places(None, 3, 0) is None
    assert share_of_rate(9.0, 3) == 3.0 and share_of_rate(None, 3) is None
    with pytest.raises(InputError, match="max_concurrency = 2 cannot be split over 3 workers"):
        share_of_places(2, 3, 0)
