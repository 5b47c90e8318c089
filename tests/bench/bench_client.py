"""One Python client of the bench in a process of its own: `ours` (the engine, whole, with its native reader),
`python` (the same with the reader in Python), `two` (the load by two worker processes), or `line` (a plain aiohttp
loop).

Arguments: kind, port, streams, rate, life. The plan: 2 x streams requests, evenly over 2 x life s, each of which lives
`life` s at `rate` events a second. One JSON line: errors against the server's own stamps, CPU an event, memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import msgspec


def plan_of(streams, life):
    """Offsets of the requests, ns."""
    return [round(k * life / streams * 1e9) for k in range(2 * streams)]


def headers(rate, life):
    """What the server is asked for."""
    return {"x-ttft-us": "20000", "x-itl-us": str(int(1e6 / rate)), "x-ntok": str(int(life * rate))}


def quantiles(values_ns):
    """P50, P99 and largest in ms; None without values."""
    ordered = sorted(values_ns)
    if not ordered:
        return None
    return [round(ordered[min(len(ordered) - 1, int(len(ordered) * q))] / 1e6, 3) for q in (0.5, 0.99, 1.0)]


def truth_ns(data):
    """The server's stamp of an event; None for others."""
    at = data.find(b'"ns":"')
    return int(data[at + 6 : at + 25]) if at >= 0 else None


def rss_kb():
    """Resident memory now, kB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1024


def planned(streams, rate, life):
    """The plan as a run has it."""
    from pddbench.workload.plan import Plan, PlannedRequest
    from pddbench.workload.requests import Requests

    requests = [
        PlannedRequest(
            index=i, request_id=f"r{i}", session_id=f"s{i}", turn=0, kind="root", phase="measure", parents=(),
            start_ns=start, gap_ns=0, prefix_of=-1, prefix_tokens=0, input_tokens=10, output_tokens=int(rate * life),
            cached_tokens_planned=0, plan_sha256="",
        )
        for i, start in enumerate(plan_of(streams, life))
    ]  # fmt: skip
    return Plan(Requests(requests).sealed(), "think", "")


def target_of(port, rate, life):
    """The server and what it is asked for."""
    from pddbench.replay.exchange import Target

    return Target(url=f"http://127.0.0.1:{port}/v1/completions", headers=headers(rate, life))


async def ours(port, streams, rate, life, folder):
    """The engine with its spool, health, pacing and bodies, as a run uses it."""
    from pddbench.replay.engine import ReplayJob, replay
    from pddbench.replay.spool import SpoolWriter

    plan, path = planned(streams, rate, life), Path(folder) / "a.spool"
    n = len(plan.requests)
    spool = SpoolWriter(path, "a", 1, n)
    memory, peak = rss_kb(), []
    cpu = time.process_time()
    job = ReplayJob(plan, target_of(port, rate, life), lambda i: b" " * 400, spool,
                    progress=lambda counts: peak.append(rss_kb()))  # fmt: skip
    start = time.monotonic()
    await replay(job)
    wall = time.monotonic() - start
    spool.close()
    cpu = time.process_time() - cpu
    return judge([path], n) | {
        "wall_s": round(wall, 3), "cpu_s": cpu, "kb_stream": round((max(peak) - memory) / streams, 1)
    }  # fmt: skip


async def two(port, streams, rate, life, folder):
    """The same load by two workers."""
    from pddbench.runfolder.spooled import save_plan, spool_path
    from pddbench.runner.worker import WorkerJob
    from pddbench.runner.workers import replay_by_workers
    from pddbench.runner.writer import WriterSettings

    plan = planned(streams, rate, life)
    save_plan(Path(folder), 1, plan)
    settings = {
        "model": "m", "chat": False, "token_ids": True, "fields": {}, "limit_field": "max_tokens", "min_tokens": False,
        "words": (), "overhead_tokens": 0, "turn_overhead_tokens": 0, "token_id_range": (1000, 30000),
    }  # fmt: skip
    writer = msgspec.convert(settings, WriterSettings)  # as a worker gets it: plain data
    jobs = [
        WorkerJob(folder=folder, arm="a", repeat=1, worker=k, workers=2, target=target_of(port, rate, life),
                  writer=writer, salt="", speed=1.0, on_parent_failure="continue")
        for k in range(2)
    ]  # fmt: skip
    start = time.monotonic()
    await replay_by_workers(jobs, asyncio.Event())
    wall = time.monotonic() - start
    found = judge([spool_path(Path(folder), "a", 1, k) for k in range(2)], len(plan.requests))
    return found | {"wall_s": round(wall, 3), "cpu_s": found["health_cpu_s"]}


def judge(paths, n):
    """Our stamps against the truth, from the spools."""
    from pddbench.replay.kernel import on_our_clock
    from pddbench.replay.spools import Spools
    from pddbench.replay.sse import SseParser

    spools = Spools(paths, range(len(paths)), n)
    user, kernel, drift, events, failed = [], [], [], 0, 0
    for i in range(n):
        one, clock, _ = spools.request(i)
        failed += one.ended.ending != "eof"
        drift.append(one.answered.sent_ns - one.handed.due_ns)
        parser, first = SseParser(), True
        reads = on_our_clock(one.reads, clock)
        for number, read in enumerate(reads):
            for event in parser.feed(read[1], number):
                truth = truth_ns(event.data)
                if truth is None:
                    continue
                events += 1
                if first:
                    user.append(reads[number][0] - truth)
                    if len(reads[number]) > 2:
                        kernel.append(reads[number][2] - truth)
                first = False
    return {
        "events": events, "failed": failed, "drift_ms": quantiles(drift), "ttft_user_ms": quantiles(user),
        "ttft_kernel_ms": quantiles(kernel), "kernel_missing": n - len(kernel),
        "loop_lag_ms": quantiles([lag for _, row in spools.health for lag in row.loop_lag_ns]),
        "health_cpu_s": health_cpu_s(spools),
    }  # fmt: skip


def health_cpu_s(spools):
    """CPU seconds of all workers by their own samples, from t0 to the end: without starting and preparing."""
    total, last = 0.0, {}
    for worker, row in spools.health:
        total += row.cpu_share * (row.t_ns - last.get(worker, spools.t0_ns)) / 1e9
        last[worker] = row.t_ns
    return total


async def line(port, streams, rate, life, folder):
    """What a usual client does: a task a request, lines, JSON, a stamp after each."""
    import aiohttp

    user, drift, events = [], [], 0
    url, extra, start = (
        f"http://127.0.0.1:{port}/v1/completions",
        headers(rate, life),
        time.monotonic_ns() + 100_000_000,
    )
    memory, cpu = rss_kb(), time.process_time()

    async def one(session, due):
        nonlocal events
        drift.append(time.monotonic_ns() - due)
        first = True
        async with session.post(url, data=b" " * 400, headers=extra) as response:
            async for raw in response.content:
                data = raw.strip()
                if not data or data == b"data: [DONE]":
                    continue
                t = time.monotonic_ns()
                chunk = json.loads(data[6:])
                if chunk["choices"]:
                    events += 1
                    if first:
                        user.append(t - int(chunk["ns"]))
                    first = False

    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        tasks = []
        for offset in plan_of(streams, life):
            wait = (start + offset - time.monotonic_ns()) / 1e9
            if wait > 0:
                await asyncio.sleep(wait)
            tasks.append(asyncio.ensure_future(one(session, start + offset)))
        await asyncio.gather(*tasks)
    return {
        "events": events, "drift_ms": quantiles(drift), "ttft_user_ms": quantiles(user), "ttft_kernel_ms": None,
        "wall_s": round((time.monotonic_ns() - start) / 1e9, 3), "cpu_s": time.process_time() - cpu,
        "kb_stream": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / streams, 1),
    }  # fmt: skip


def main():
    """Run one and print its line."""
    kind, port, streams, rate, life = sys.argv[1], *map(float, sys.argv[2:])
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.environ["PDDBENCH_READER"] = "python" if kind == "python" else "native"
    from pddbench.runner.execute import in_loop

    with tempfile.TemporaryDirectory() as folder:
        work = {"ours": ours, "python": ours, "two": two, "line": line}[kind]
        out = in_loop(lambda: work(int(port), int(streams), rate, life, folder))
    out["cpu_share"] = round(out["cpu_s"] / out["wall_s"], 3)
    out["cpu_us_event"] = round(out.pop("cpu_s") / out["events"] * 1e6, 2)
    print(json.dumps(out))


if __name__ == "__main__":
    main()
