"""Measure the client: CPU a chunk, error of its stamps, send lag, pacer drift. A script, not a test.

    python tests/replay/measure_replay.py --streams 160 --rate 25 --seconds 10 [--no-uvloop]

The server runs in its own process and writes its clock into every chunk, so that the truth is in the stream itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from replay_kit import body, plan, request
from replay_server import SSE_HEAD, Seen, TruthServer

from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.pace import NS, Pacer
from pddbench.replay.spool import SpoolWriter, read_spool
from pddbench.replay.sse import SseParser


class ClockServer(TruthServer):
    """Streams chunks at a rate, each holding the time at which it was written."""

    rate, n = 25.0, 100

    async def _answer(self, reply, seen: Seen, writer) -> bool:
        pacer, start = self.pacer, time.monotonic_ns()
        writer.write(SSE_HEAD)
        for k in range(self.n):
            await pacer.until(start + int((k + 1) * NS / self.rate))
            finish = '"length"' if k == self.n - 1 else "null"
            piece = (
                b'data: {"id":"cmpl-1","object":"text_completion","model":"m","choices":[{"index":0,"text":"%d",'
                b'"finish_reason":%b}],"pdd":{"stage":"d","index":%d}}\n\n' % (time.monotonic_ns(), finish.encode(), k)
            )
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        end = b'data: {"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":%d}}\n\ndata: [DONE]\n\n' % self.n
        writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(end), end))
        self.seen.clear()
        return True


async def serve(rate: float, n: int) -> None:
    """The server process."""
    server = ClockServer(lambda seen: None)
    server.rate, server.n = rate, n
    server.pacer = Pacer(asyncio.get_running_loop())
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=4096, limit=1 << 24)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


async def measure(options: argparse.Namespace, port: int, folder: Path) -> dict:
    """Replay sessions of streams so that `--streams` are open on average, and compare stamps with the server's."""
    life_s = options.n / options.rate
    total = int(options.streams * options.seconds / life_s)
    gap_ns = int(life_s / options.streams * NS)
    the_plan = plan(*[request(i, start_ns=i * gap_ns) for i in range(total)])
    path = folder / "a.1.spool"
    spool = SpoolWriter(path, "a", 1, total)
    cpu, wall = time.process_time(), time.monotonic()
    url = f"http://127.0.0.1:{port}/v1/completions"
    await replay(ReplayJob(the_plan, Target(url=url, keep_alive_s=options.keep_alive), body, spool))
    cpu, wall = time.process_time() - cpu, time.monotonic() - wall
    spool.close()
    return compare(read_spool(path), total, options.n) | {
        "cpu_us_per_chunk": round(cpu / (total * options.n) * 1e6, 1),
        "cpu_share": round(cpu / wall, 3),
        "chunks_per_s": round(total * options.n / wall),
        "requests": total,
    }


def compare(spool, total: int, n: int) -> dict:
    """Our stamps against the clock in each chunk."""
    first, every, lag, seen = [], [], [], 0
    for index in range(total):
        frames = spool.request(index)
        lag.append(frames.answered.sent_ns - frames.handed.due_ns)
        parser, errors = SseParser(), []
        for number, (t_ns, data) in enumerate(frames.reads):
            for event in parser.feed(data, number):
                if event.data.startswith(b'{"id"'):
                    errors.append(t_ns - int(json.loads(event.data)["choices"][0]["text"]))
        seen += len(errors)
        first.append(errors[0])
        every += errors
    lags = [value for row in spool.health for value in row.loop_lag_ns]
    return {
        "chunks_seen": seen,
        "chunks_sent": total * n,
        **{
            f"{name}_ms_p50_p99_max": quantiles(values)
            for name, values in (("ttft_error", first), ("error", every), ("send_lag", lag), ("loop_lag", lags))
        },
    }


def quantiles(values) -> list[float]:
    """P50, P99, maximum in ms."""
    data = np.array(values) / 1e6
    return [round(float(np.quantile(data, q, method="inverted_cdf")), 3) for q in (0.5, 0.99, 1)]


async def drift(rate: float, seconds: float) -> list[float]:
    """How late a pacer calls back at an even rate."""
    pacer, late, done = Pacer(asyncio.get_running_loop()), [], asyncio.Event()
    start, n = time.monotonic_ns() + 10**8, int(rate * seconds)
    for k in range(n):
        due = start + int(k * NS / rate)
        pacer.call_at(due, lambda due=due: late.append(time.monotonic_ns() - due))
    pacer.call_at(start + math.ceil(seconds * NS), done.set)
    await done.wait()
    pacer.close()
    return quantiles(late)


def main() -> None:
    """One JSON line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=160)
    parser.add_argument("--rate", type=float, default=25.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--keep-alive", type=float, default=0.5)
    parser.add_argument("--no-uvloop", action="store_true")
    parser.add_argument("--serve", action="store_true")
    options = parser.parse_args()
    factory = None
    if not options.no_uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        if options.serve:
            runner.run(serve(options.rate, options.n))
            return
        command = [sys.executable, __file__, "--serve", "--rate", str(options.rate), "--n", str(options.n)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server, tempfile.TemporaryDirectory() as folder:
            try:
                out = runner.run(measure(options, int(server.stdout.readline()), Path(folder)))
            finally:
                server.kill()
        out["pacer_drift_ms_p50_p99_max_at_1000_per_s"] = runner.run(drift(1000, 3))
    print(json.dumps({"loop": "asyncio" if options.no_uvloop else "uvloop", **out}))


if __name__ == "__main__":
    main()
