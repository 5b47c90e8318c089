"""Each way to get a false number, planted: it is either measured right, or ends as 98 with its name.

`docs/instrument.md` has the list as a table, with what was seen.
"""

from __future__ import annotations

import asyncio
import math
import random
import struct
import time

import pytest
from faults_kit import Arm, named, play, starved
from replay_kit import MS, plan, request
from replay_server import stream
from replay_streams import chat, last, text, usage

from pddbench import exitcodes
from pddbench.analyze import own_lag
from pddbench.analyze.check import evaluate, parse_checks
from pddbench.calibrate.measure import _Errors, served
from pddbench.replay import frames
from pddbench.replay.kernel import KernelClock
from pddbench.replay.spool import SpoolWriter, read_spool
from pddbench.runfolder import finish
from pddbench.runfolder.load import load

GOOD = [text("a"), text("b", "length"), last(2)]
OUR_OWN = {"send_lag", "loop_lag", "client_cpu"}  # may fire beside the planted one on a busy machine


def seconds(frame, a, b="due_ns"):
    """A column minus another, s."""
    return ((frame[a] - frame[b]) / 1e9).tolist()


@pytest.mark.slow
async def test_client_starved_of_cpu(tmp_path):
    """Without it a client that gets a quarter of a core would report its own waiting as the server's TTFT."""
    requests = [request(i, start_ns=i * 40 * MS, output_tokens=25) for i in range(60)]
    headers = {"x-ttft-us": "50000", "x-itl-us": "20000", "x-ntok": "25"}
    with served() as (port, _), starved(neighbours=3):
        url = f"http://127.0.0.1:{port}/v1/completions"
        arm = Arm(plan(*requests), stream(GOOD), url, {"headers": headers})
        _, summary = await play(tmp_path, {"a": arm})
    spool = read_spool(tmp_path / "a.spool")
    clock = KernelClock([(sample.t_ns, sample.offset_ns) for sample in spool.clock_offsets])
    errors = _Errors()
    for one in requests:
        errors.add(spool.request(one.index), clock)
    spool.close()
    assert errors.events == 60 * 25
    worst_ms = sorted(errors.used)[-2] / 1e6
    print(f"starved: used error {worst_ms:.2f} ms, own {sorted(errors.user)[-2] / 1e6:.2f} ms, {named(summary)}")
    if not named(summary) & OUR_OWN:
        assert worst_ms < 5 and sorted(errors.drift)[-2] / 1e6 < 6, "not said, so it must be right"
    else:
        assert summary.exit_code == exitcodes.INVALID


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["native", "python"])
async def test_a_loop_that_is_late_between_sends(tmp_path, monkeypatch, reader):
    """Without it a busy loop would void runs whose times are all right, or stamps of the kernel be taken for right
    while they are not."""
    monkeypatch.setenv("PDDBENCH_READER", reader)

    async def hog():
        await asyncio.sleep(0.4)  # all are sent by then, no token has come
        while True:
            time.sleep(0.012)  # noqa: ASYNC251  # it is to block
            await asyncio.sleep(0.02)

    requests = [request(i, start_ns=i * 5 * MS, output_tokens=12) for i in range(60)]
    headers = {"x-ttft-us": "500000", "x-itl-us": "60000", "x-ntok": "12"}
    hogging = asyncio.ensure_future(hog())
    try:
        with served() as (port, _):
            arm = Arm(plan(*requests), stream(GOOD), f"http://127.0.0.1:{port}/v1/completions", {"headers": headers})
            runs = [{"arm": "a", "repeat": 1, "exact_timer": True, "workers": 1}]
            data, summary = await play(tmp_path, {"a": arm}, runs=runs)
    finally:
        hogging.cancel()
    spool = read_spool(tmp_path / "a.spool")
    clock = KernelClock([(sample.t_ns, sample.offset_ns) for sample in spool.clock_offsets])
    errors = _Errors()
    for one in requests:
        errors.add(spool.request(one.index), clock)
    spool.close()
    used, own = sorted(errors.used), sorted(errors.user)
    if reader == "python":  # the thread in C does not wait for the loop
        assert own[-2] > 5 * MS, "the loop was late"
    assert used[len(used) // 2] < MS, "but the kernel was not"
    print(f"late loop, {reader} reader: used error {used[-2] / MS:.2f} ms, own {own[-2] / MS:.2f} ms, {named(summary)}")
    connected = own_lag.connect_lag_s(data, "a") <= 0.005 or math.isnan(own_lag.connect_lag_s(data, "a"))
    if set(data.run.requests["stamps"]) == {"kernel"} and connected:
        assert "loop_lag" not in named(summary) and "loop_lag" in named(summary, "warning")


async def test_a_send_path_that_overruns_the_schedule(tmp_path):
    """Without it requests that leave late, because we were slow, would carry the blame to the server."""

    def slow(index):
        time.sleep(0.05)
        return b"{}"

    # children's bodies are wanted only when the parent is sent: 40 of them at once, 50 ms each
    requests = [request(0)] + [request(i, parents=(0,)) for i in range(1, 41)]
    data, summary = await play(tmp_path, {"a": Arm(plan(*requests), stream(GOOD), bodies=slow)})
    assert "send_lag" in named(summary)
    assert summary.exit_code == exitcodes.INVALID
    lag = data.arms["a"].rows["ttft_sched"] - data.arms["a"].rows["ttft"]
    assert lag.max() > 1.0, "and the headline counts from due, so it shows there too"


async def test_a_turn_that_overruns_its_schedule(tmp_path):
    """Without it a turn that had to wait for its parent would look late, or its waiting be forgotten."""
    requests = [request(0), request(1, parents=(0,), start_ns=50 * MS)]
    reply = stream(GOOD, first_s=0.3)
    data, summary = await play(tmp_path, {"a": Arm(plan(*requests, timing="trace"), reply)}, timing="trace")
    rows = data.run.requests
    assert rows["due_ns"][1] == rows["ready_ns"][1] > rows["scheduled_ns"][1]
    assert data.arms["a"].rows["session_lag"].max() >= 0.25
    assert not named(summary) - OUR_OWN


def test_wrong_unit(tmp_path):
    """Without it a trace in seconds, read as milliseconds, would be replayed a thousand times too fast in silence."""
    import json

    from pddbench.trace.read import read_trace

    path = tmp_path / "t.jsonl"
    lines = [{"timestamp": i * 2, "input_length": 100, "output_length": 5, "hash_ids": [i]} for i in range(200)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    said = " ".join(read_trace(path, "mooncake").header.assumptions)
    assert "read as milliseconds" in said
    path.write_text("".join(json.dumps(line | {"timestamp": line["timestamp"] // 50}) + "\n" for line in lines))
    assert "implausibly fast: if they are seconds, multiply them by 1000" in " ".join(
        read_trace(path, "mooncake").header.assumptions
    )


async def test_role_chunk(tmp_path):
    """Without it the role chunk that a server sends at once would be the first token."""
    pieces = [chat({"role": "assistant", "content": ""}), chat({"content": "a"}), chat({"content": "b"}, "length"),
              last(2)]  # fmt: skip
    data, _ = await play(tmp_path, {"a": Arm(plan(request(0)), stream(pieces, gap_s=0.15))})
    row = data.run.requests.iloc[0]
    assert row["first_token_ns"] - row["first_chunk_ns"] > 100 * MS
    assert data.arms["a"].rows["ttft"].iloc[0] >= 0.15


async def test_truncation(tmp_path):
    """Without it a stream that was cut off would be a success with the requested length."""
    requests = [request(i) for i in range(4)]

    def reply(seen):
        return stream([text("a")]) if seen.request_id == "r0" else stream(GOOD)

    data, _ = await play(tmp_path, {"a": Arm(plan(*requests), reply)})
    assert data.run.requests["outcome"].tolist() == ["truncated", "ok", "ok", "ok"]
    assert data.run.requests["chunks"][0] == 1, "what had come is kept"
    assert data.arms["a"].rows["ttft"].max() == float("inf")


async def test_bundled_tokens(tmp_path):
    """Without it chunk gaps would pass for inter-token latency."""
    pieces = [text("ab"), text("cd"), text("ef", "length"), last(6)]
    requests = [request(i, output_tokens=6) for i in range(4)]
    data, summary = await play(tmp_path, {"a": Arm(plan(*requests), stream(pieces, gap_s=0.01))})
    assert "bundled" in named(summary, "warning")
    figure = data.arms["a"].figure("itl", "p50")
    assert figure.withheld is not None
    assert data.run.requests["completion_tokens"].tolist() == [6] * 4


@pytest.mark.slow
async def test_keep_alive_race(tmp_path):
    """Without it think times around the server's idle limit would fail POSTs (188 of 600 in one tool)."""
    from replay_kit import result, run
    from replay_server import truth_server

    rng = random.Random(1)
    requests = []
    for session in range(200):
        for turn in range(3):
            index = len(requests)
            more = (
                {"parents": (index - 1,), "gap_ns": rng.randint(990, 1020) * MS}
                if turn
                else {"start_ns": session * 5 * MS}
            )
            requests.append(request(index, session_id=f"s{session}", turn=turn, **more))
    async with truth_server(stream(GOOD), idle_s=1.0) as server:
        _, spool = await run(plan(*requests), server.url, tmp_path)
    assert [result(spool, i).outcome for i in range(600)] == ["ok"] * 600
    assert len(server.seen) == 600, "and none was sent twice"


async def test_arms_with_other_bytes(tmp_path):
    """Without it two arms that got different work would be compared."""
    arms = {name: Arm(plan(request(0, plan_sha256=name)), stream(GOOD)) for name in ("a", "b")}
    _, summary = await play(tmp_path, arms)
    assert "bytes" in named(summary)
    assert summary.exit_code == exitcodes.INVALID


async def test_warm_cache_from_the_last_run(tmp_path):
    """Without it seeded prompts that hit what the last run left would look like a fast server (+86% in one tool)."""
    served_hits = usage(2, prompt=1000, prompt_tokens_details={"cached_tokens": 900})
    pieces = [text("a"), text("b", "length", usage=served_hits), last(2)[-14:]]
    requests = [request(i, input_tokens=1000) for i in range(3)]
    _, summary = await play(tmp_path, {"a": Arm(plan(*requests), stream(pieces))})
    assert "hits" in named(summary)
    assert summary.exit_code == exitcodes.INVALID


async def test_no_salt(tmp_path):
    """Without it a run could be served from what another one left in the cache."""
    _, summary = await play(tmp_path, {"a": Arm(plan(request(0)), stream(GOOD))}, salts={})
    assert "salt" in named(summary)


async def test_dropped_events(tmp_path):
    """Without it a proxy that loses chunks would make a stream look complete."""
    pieces = [text("a"), text("c"), text("d", "length"), last(4)]  # the second of four was lost
    requests = [request(i, output_tokens=4) for i in range(4)]
    data, summary = await play(tmp_path, {"a": Arm(plan(*requests), stream(pieces))})
    assert data.run.requests["chunks"].tolist() == [3] * 4
    assert data.run.requests["completion_tokens"].tolist() == [4] * 4
    assert "bundled" in named(summary, "warning")
    assert data.arms["a"].figure("itl", "p50").withheld is not None


def stepped_run(folder, step_ns):
    """A run of two requests by hand: CLOCK_REALTIME is set `step_ns` forward between them."""
    offset, at = 10**18, 10**12
    path = finish.spool_path(folder, "a", 1)
    (folder / "spool").mkdir()
    finish.save_plan(folder, 1, plan(request(0), request(1)))
    finish.save_arm(folder, "a", 1, 1.0, 1)
    spool = SpoolWriter(path, "a", 1, 2)
    spool.write(frames.Zero(at))
    for i in range(12):
        spool.write(frames.ClockOffset(at + i * 250 * MS, offset + (step_ns if i >= 6 else 0)))
    for index, start in ((0, at + 300 * MS), (1, at + 1260 * MS)):  # the second lies between samples 5 and 6
        spool.write(frames.Handed(index, start, start, start, start, 0, "b", False))
        spool.write(frames.Answered(index, start, False, start + 5 * MS, 200, "text/event-stream", ""))
        reads = []
        for k, piece in enumerate(GOOD):
            arrived = start + (10 + 20 * k) * MS
            stamp = struct.pack("@ll", *divmod(arrived + offset + (step_ns if index else 0), 10**9))
            reads.append((arrived + MS, piece, stamp))  # we were 1 ms late
        spool.write(frames.Reads(index, reads))
        spool.write(frames.Ended(index, start + 100 * MS, "eof", None))
    spool.write(frames.Closed("complete"))
    spool.close()
    finish.finish_arm(folder, "a", 1)
    import pandas as pd

    return pd.read_parquet(folder / "requests", dtype_backend="pyarrow")


@pytest.mark.parametrize("step_ns", [3_600 * 10**9, -5 * MS, 300_000 * 10])
def test_clock_step(step_ns, tmp_path):
    """Without it a clock that is set during the run would move TTFT by as much as it was moved."""
    rows = stepped_run(tmp_path, step_ns)
    assert rows["stamps"].tolist() == ["kernel", "user"]
    assert (rows["first_token_ns"] - rows["sent_ns"]).tolist() == [10 * MS, 11 * MS]
    assert rows["kernel_first_token_ns"].isna().tolist() == [False, True]
    assert (rows["user_first_token_ns"] - rows["sent_ns"]).tolist() == [11 * MS] * 2
    assert rows["max_gap_ns"].tolist() == [20 * MS] * 2


def test_clock_that_drifts_is_no_step(tmp_path):
    """Without it a clock that NTP slews would lose us the kernel's stamps."""
    offset = [(i * 250 * MS, 10**18 + i * 100_000) for i in range(5)]
    clock = KernelClock(offset)
    assert clock.steps == 0
    arrived = 375 * MS
    raw = struct.pack("@ll", *divmod(arrived + 10**18 + 150_000, 10**9))
    assert abs(clock.monotonic_ns(raw, arrived + 100) - arrived) <= 1
    assert KernelClock([]).monotonic_ns(raw, arrived) is None


async def test_throttle_that_binds(tmp_path):
    """Without it a brake would turn the planned load into another one unseen."""
    requests = [request(i) for i in range(6)]
    arm = Arm(plan(*requests), stream(GOOD), target={"max_start_rate": 20.0})
    _, summary = await play(tmp_path, {"a": arm})
    assert "throttle" in named(summary)
    assert summary.exit_code == exitcodes.INVALID


async def test_output_shorter_than_asked(tmp_path):
    """Without it an endpoint that ignores the pinned length would look fast."""
    requests = [request(i, output_tokens=50) for i in range(3)]
    _, summary = await play(tmp_path, {"a": Arm(plan(*requests), stream(GOOD))})
    assert "lengths" in named(summary)
    assert summary.exit_code == exitcodes.INVALID


async def test_too_few_samples(tmp_path):
    """Without it a P99 of twelve requests would be printed, and gate a release."""
    requests = [request(i) for i in range(12)]
    data, _ = await play(tmp_path, {"a": Arm(plan(*requests), stream(GOOD))})
    assert data.arms["a"].figure("ttft", "p99").withheld is not None
    (result,) = evaluate(parse_checks({"a.ttft.p99 < 10 s": "fail"}, ["a"]), data)
    assert result.status == "withheld"
    from pddbench.analyze.check import exit_code

    assert exit_code([result], strict=False) == exitcodes.INVALID
    assert load(tmp_path).arms == ["a"]
