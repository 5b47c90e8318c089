"""The engine and the client against a server whose truth is known."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from replay_kit import MS, body, plan, request, result, run
from replay_server import Reply, plain, stream, truth_server
from replay_streams import CASES, last, text

from pddbench.replay.engine import LEAD_NS, ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.spool import SpoolWriter
from pddbench.workload.phases import Window

GOOD = [text("a"), text("b", "stop"), last(2)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_known_streams_over_a_real_socket(case, tmp_path):
    """Without it the client could change a stream's outcome, count or times between the socket and the parser."""
    reply = stream(case.pieces, gap_s=0.02, first_s=0.02, clean=case.clean)
    async with truth_server(reply) as server:
        _, spool = await run(plan(request(0)), server.url, tmp_path)
    got, seen = result(spool, 0), server.of("r0")
    assert (got.outcome, got.chunks, got.completion_tokens) == (case.outcome, case.chunks, case.tokens), got.error
    for stamp, piece in ((got.first_token_ns, case.first), (got.second_token_ns, case.second)):
        assert (stamp is None) == (piece is None)
        if piece is not None:
            # never before it was written, and before the piece after the next one: the right piece, not a neighbour
            assert stamp >= seen.wrote_ns[piece]
            assert piece + 2 >= len(seen.wrote_ns) or stamp < seen.wrote_ns[piece + 2]
    sent = spool.request(0).answered.sent_ns
    assert spool.request(0).handed.handed_ns <= sent <= seen.received_ns


@pytest.mark.parametrize(
    ("reply", "outcome", "error"),
    [
        (plain("401 No", b'{"error": {"message": "bad key"}}'), "http_error", "HTTP 401: bad key"),
        (plain("404 No", b'{"detail": "no such model"}'), "http_error", "HTTP 404: no such model"),
        (plain("429 Slow", b"slow \x1b[31mdown"), "http_error", "HTTP 429: slow down"),
        (plain("503 Away"), "http_error", "HTTP 503"),
        (plain("200 OK", b"<html><b>Hi", Content_Type="text/html"), "stream_error", "the answer is text/html"),
        (plain("200 OK", b"{}", Content_Type="application/json"), "stream_error", "the answer is application/json"),
        (Reply(head=b"", chunked=False, close=True), "connection", "closed the connection before it answered"),
        (Reply(head=b"SSH-2.0-x\r\n\r\n", chunked=False, close=True), "connection", "is not HTTP"),
        (stream([text("a")], clean=False), "truncated", "the stream broke off"),
        (stream([text("a")], hang=True), "timeout", "no byte for 0.3 s"),
        (Reply(head=b"", chunked=False, hang=True), "timeout", "no byte for 0.3 s"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_outcomes(reply, outcome, error, tmp_path):
    """Without it a failure would be counted under another name, or hidden by a retry."""
    async with truth_server(reply) as server:
        end, spool = await run(plan(request(0)), server.url, tmp_path, {"stall_timeout_s": 0.3})
    got = result(spool, 0)
    assert got.outcome == outcome
    assert error in got.error
    assert len(server.seen) == 1
    assert (end.status, end.counts.done) == ("complete", 1)


async def test_refused_connection(tmp_path):
    """Without it an unreachable server could be a traceback."""
    async with truth_server(Reply()) as server:
        url = server.url
    _, spool = await run(plan(request(0)), url, tmp_path)
    got = result(spool, 0)
    assert got.outcome == "connection"
    assert got.error.startswith(f"cannot connect to 127.0.0.1:{server.port}: ")
    assert spool.request(0).answered is None


async def test_a_redirect_is_not_followed_and_takes_no_credential(tmp_path, monkeypatch):
    """Without it a credential could travel to another host, or a redirect hide where the load went."""
    monkeypatch.setenv("PDDBENCH_TEST_KEY", "sk-very-secret")
    async with (
        truth_server(stream(GOOD)) as other,
        truth_server(plain("307 There", Location=other.url + "?key=sk-very-secret")) as server,
    ):
        _, spool = await run(plan(request(0)), server.url, tmp_path, {"api_key_env": "PDDBENCH_TEST_KEY"})
    got = result(spool, 0)
    assert got.outcome == "http_error"
    assert f"redirects to {other.url}" in got.error
    assert not other.seen
    assert b"Authorization: Bearer sk-very-secret" in server.of("r0").head
    assert b"very-secret" not in spool.path.read_bytes()


async def test_a_credential_the_server_repeats_is_not_kept(tmp_path, monkeypatch):
    """Without it `Incorrect API key: sk-…` would put the key into the run folder."""
    monkeypatch.setenv("PDDBENCH_TEST_KEY", "sk-very-secret")
    async with truth_server(lambda seen: plain("401 No", b"bad " + seen.head)) as server:
        _, spool = await run(plan(request(0)), server.url, tmp_path, {"api_key_env": "PDDBENCH_TEST_KEY"})
    assert b"very-secret" not in spool.path.read_bytes()
    assert result(spool, 0).outcome == "http_error"


async def test_keep_alive_race(tmp_path):
    """Without it think times around the server's idle limit would fail POSTs (188 of 600 in one tool)."""
    rng = random.Random(1)
    requests = []
    for session in range(40):
        for turn in range(3):
            index = len(requests)
            more = (
                {"parents": (index - 1,), "gap_ns": rng.randint(990, 1020) * MS} if turn else {"start_ns": session * MS}
            )
            requests.append(request(index, session_id=f"s{session}", turn=turn, **more))
    async with truth_server(stream(GOOD), idle_s=1.0) as server:
        _, spool = await run(plan(*requests), server.url, tmp_path)
    assert [result(spool, i).outcome for i in range(len(requests))] == ["ok"] * len(requests)
    assert len(server.seen) == len(requests)


async def test_connections_are_reused_when_fresh(tmp_path):
    """Without it every turn would pay for a handshake, and the ports would run out."""
    requests = [request(i, parents=(i - 1,)) if i else request(0) for i in range(10)]
    async with truth_server(stream(GOOD)) as server:
        _, spool = await run(plan(*requests), server.url, tmp_path, {"keep_alive_s": 60.0})
    assert server.connections == 1
    assert [spool.request(i).answered.reused for i in range(10)] == [False] + [True] * 9


async def test_many_at_once_are_not_queued_in_the_client(tmp_path):
    """Without it a client limit of 100 connections would queue requests and blame the server."""
    async with truth_server(stream(GOOD, first_s=0.5)) as server:
        await run(plan(*[request(i) for i in range(150)]), server.url, tmp_path)
    first_end = min(seen.ended_ns for seen in server.seen)
    assert all(seen.received_ns < first_end for seen in server.seen)


async def test_a_line_of_megabytes(tmp_path):
    """Without it a long line would raise in the reader."""
    async with truth_server(stream([text("x" * (3 << 20)), text("b", "stop"), last(2)])) as server:
        _, spool = await run(plan(request(0)), server.url, tmp_path)
    assert (result(spool, 0).outcome, result(spool, 0).chunks) == ("ok", 2)


async def test_a_body_of_megabytes(tmp_path):
    """Without it prompts above 1 MiB (170K ids) would warn or be cut."""
    async with truth_server(stream(GOOD)) as server:
        from pddbench.replay import engine
        from pddbench.replay.exchange import Target
        from pddbench.replay.spool import SpoolWriter

        spool = SpoolWriter(tmp_path / "x.spool", "a", 1, 1)
        big = b'{"x": "' + b"y" * (3 << 20) + b'"}'
        await engine.replay(engine.ReplayJob(plan(request(0)), Target(url=server.url), lambda i: big, spool))
        spool.close()
    assert server.of("r0").body == big


async def test_order_of_a_dag_and_its_times(tmp_path):
    """Without it a join could start before its last parent ended, or its gap count from the wrong one."""
    requests = [
        request(0),
        request(1, parents=(0,), gap_ns=30 * MS),
        request(2, parents=(0,), gap_ns=0),
        request(3, parents=(1, 2), gap_ns=20 * MS),
    ]
    async with truth_server(stream(GOOD, gap_s=0.01)) as server:
        end, spool = await run(plan(*requests), server.url, tmp_path)
    one = [spool.request(i) for i in range(4)]
    ends = [frames.ended.end_ns for frames in one]
    assert one[0].handed.scheduled_ns == one[0].handed.ready_ns == one[0].handed.due_ns == end.t0_ns == spool.t0_ns
    assert (one[1].handed.ready_ns, one[1].handed.scheduled_ns) == (ends[0], ends[0] + 30 * MS)
    assert one[2].handed.due_ns == ends[0]
    assert one[3].handed.ready_ns == max(ends[1], ends[2])
    assert one[3].handed.due_ns == max(ends[1], ends[2]) + 20 * MS
    for frames in one:
        assert frames.handed.due_ns <= frames.answered.sent_ns
        assert not frames.handed.late_body
    assert server.of("r3").received_ns >= max(server.of("r1").ended_ns, server.of("r2").ended_ns)


@pytest.mark.parametrize(("timing", "start_ms", "lag_ms"), [("trace", 500, 0), ("trace", 1, None), ("none", None, 0)])
async def test_timing_modes(timing, start_ms, lag_ms, tmp_path):
    """Without it `trace` would not keep recorded starts, or send before the parent ended."""
    start = None if start_ms is None else start_ms * MS
    requests = [request(0), request(1, parents=(0,), start_ns=start, gap_ns=10**12)]
    async with truth_server(stream(GOOD, gap_s=0.01)) as server:
        end, spool = await run(plan(*requests, timing=timing), server.url, tmp_path)
    handed, parent_end = spool.request(1).handed, spool.request(0).ended.end_ns
    assert handed.ready_ns == parent_end
    assert handed.scheduled_ns == (parent_end if start is None else end.t0_ns + start)
    assert handed.due_ns == max(handed.scheduled_ns, parent_end)
    assert (handed.due_ns == handed.scheduled_ns) == (lag_ms == 0)


async def test_speed_divides_times(tmp_path):
    """Without it an emulator's speed-up would not speed up the schedule."""
    requests = [request(0), request(1, start_ns=1000 * MS), request(2, parents=(0,), gap_ns=500 * MS)]
    async with truth_server(stream(GOOD)) as server:
        end, spool = await run(plan(*requests), server.url, tmp_path, speed=10.0)
    assert spool.request(1).handed.due_ns == end.t0_ns + 100 * MS
    assert spool.request(2).handed.due_ns == spool.request(0).ended.end_ns + 50 * MS


async def test_warmups_end_before_t0(tmp_path):
    """Without it warm-up traffic would overlap what is measured."""
    requests = [request(0), request(1, phase="warmup", kind="warmup"), request(2, phase="warmup", kind="warmup")]
    async with truth_server(stream(GOOD, first_s=0.05)) as server:
        end, spool = await run(plan(*requests), server.url, tmp_path)
    assert all(spool.request(i).ended.end_ns < end.t0_ns for i in (1, 2))
    assert spool.request(0).handed.due_ns == end.t0_ns
    assert server.of("r0").received_ns > max(server.of("r1").ended_ns, server.of("r2").ended_ns)


@pytest.mark.parametrize("rule", ["continue", "abandon"])
async def test_parent_failure(rule, tmp_path):
    """Without it a failed turn would end its session silently, or a truncated one count as good."""
    requests = [request(0), request(1, parents=(0,)), request(2, parents=(1,)), request(3)]
    cut = stream([text("a")])

    def reply(seen):
        return cut if seen.request_id == "r0" else stream(GOOD)

    async with truth_server(reply) as server:
        end, spool = await run(plan(*requests), server.url, tmp_path, on_parent_failure=rule)
    if rule == "continue":
        assert [result(spool, i).outcome for i in range(4)] == ["truncated", "ok", "ok", "ok"]
        assert spool.request(1).handed.ready_ns == spool.request(0).ended.end_ns
    else:
        assert [spool.request(i).not_sent.reason for i in (1, 2)] == ["parent_failed"] * 2
        assert {seen.request_id for seen in server.seen} == {"r0", "r3"}
        assert (end.counts.not_sent, end.counts.done) == (2, 2)


async def test_stop_records_everything(tmp_path):
    """Without it a signal would lose what was in flight, and what was never sent."""
    stop = asyncio.Event()
    late = request(2, start_ns=3600_000 * MS)
    requests = [request(0), request(1, parents=(0,)), late, request(3, phase="warmup", kind="warmup")]

    def reply(seen):
        if seen.request_id == "r3":
            return stream(GOOD)
        asyncio.get_running_loop().call_later(0.2, stop.set)
        return stream([text("a"), text("b")], hang=True)

    async with truth_server(reply) as server:
        end, spool = await run(plan(*requests), server.url, tmp_path, stop=stop)
    assert (end.status, spool.status) == ("interrupted", "interrupted")
    got = result(spool, 0)
    assert (got.outcome, got.chunks) == ("cancelled", 2)
    assert [spool.request(i).not_sent.reason for i in (1, 2)] == ["interrupted"] * 2
    assert spool.request(2).not_sent.due_ns == end.t0_ns + 3600_000 * MS


async def test_limits_hold_and_are_recorded(tmp_path):
    """Without it a brake would bind unseen, or let more through than asked."""
    requests = [request(i) for i in range(6)]
    async with truth_server(stream(GOOD, gap_s=0.02)) as server:
        _, spool = await run(plan(*requests), server.url, tmp_path, {"max_concurrency": 2})
    seen = sorted(server.seen, key=lambda one: one.received_ns)
    for i, one in enumerate(seen[2:], start=2):
        assert one.received_ns >= sorted(other.ended_ns for other in seen)[i - 2]
    waits = sorted(spool.request(i).handed.throttle_wait_ns for i in range(6))
    assert waits[-1] >= 2 * 20 * MS > waits[0]
    async with truth_server(stream(GOOD)) as server:
        _, spool = await run(plan(*requests), server.url, tmp_path, {"max_start_rate": 20.0}, name="b.1")
    times = sorted(spool.request(i).handed.handed_ns for i in range(6))
    assert times[-1] - times[0] >= 5 * 50 * MS * 0.99
    assert [spool.request(i).handed.handed_ns for i in range(6)] == times, "first come, first served"


async def test_a_failed_body_ends_the_run_and_is_raised(tmp_path):
    """Without it an error of our own would hang the run for ever."""
    from pddbench.replay.engine import ReplayJob, replay
    from pddbench.replay.exchange import Target
    from pddbench.replay.spool import SpoolWriter

    def broken(index):
        if index == 1:
            raise ZeroDivisionError
        return b"{}"

    spool = SpoolWriter(tmp_path / "x.spool", "a", 1, 2)
    requests = [request(0), request(1, parents=(0,), gap_ns=20 * MS), request(2, start_ns=10**15)]
    async with truth_server(stream(GOOD)) as server:
        with pytest.raises(ZeroDivisionError):
            await replay(ReplayJob(plan(*requests), Target(url=server.url), broken, spool))
    spool.close()


async def test_health_is_sampled(tmp_path):
    """Without it a starved client could not be told from a slow server."""
    requests = [request(0), request(1, start_ns=600 * MS)]
    async with truth_server(stream(GOOD)) as server:
        _, spool = await run(plan(*requests), server.url, tmp_path)
    rows = list(spool.health)
    assert len(rows) >= 2
    assert sum(len(row.loop_lag_ns) for row in rows) >= 100
    assert all(row.rss_bytes > 10**7 and row.cpu_share >= 0 and row.run_delay_ns >= 0 for row in rows)


async def test_a_window_ends_the_run_when_all_that_was_due_in_it_has_ended(tmp_path):
    """Without it a measured request would be cut off by the end of the window, or the load stop while it runs."""
    requests = [
        request(0, start_ns=50 * MS), request(1, start_ns=150 * MS), request(2, start_ns=250 * MS),
        request(3, start_ns=3600_000 * MS), request(4, parents=(0,), gap_ns=10**15),
    ]  # fmt: skip
    made = plan(*requests)
    made.window = Window(100 * MS, 200 * MS)

    def reply(seen):
        return stream(GOOD, first_s={"r1": 0.4}.get(seen.request_id, 0.0), hang=seen.request_id == "r2")

    async with truth_server(reply) as server:
        end, spool = await run(made, server.url, tmp_path)
    assert end.status == "complete"
    assert [result(spool, i).outcome for i in (0, 1)] == ["ok", "ok"], "the one in the window ends by itself"
    assert server.of("r2"), "after the window the load goes on until then"
    assert spool.request(2).ended.ending == "cancelled"
    assert [spool.request(i).not_sent.reason for i in (3, 4)] == ["run_ended"] * 2


KEY = "sk-a-key-of-many-characters"
REPEATED = {
    "event": stream([f'data: {{"error": {{"message": "Bearer {KEY}"}}}}\n\n'.encode()]),
    "no json": stream([f"data: {{bad {KEY}\n\n".encode()]),
    "finish": stream([text("a", KEY), last(1)]),
    "not a stream": plain("200 OK", f'{{"error": {{"message": "{KEY}"}}}}'.encode()),
    "escaped": plain("500 No", f'{{"error": {{"message": "{KEY.replace("-", chr(92) + "u002d")}"}}}}'.encode()),
}


@pytest.mark.parametrize("where", REPEATED)
@pytest.mark.parametrize("reader", ["native", "python"])
async def test_a_key_that_the_server_repeats_is_not_kept(tmp_path, monkeypatch, where, reader):
    """Without it a key would stand in rows, reports and logs as soon as a gateway quotes it in any kind of answer."""
    monkeypatch.setenv("PDDBENCH_READER", reader)
    monkeypatch.setenv("PDDBENCH_TEST_KEY", KEY)
    async with truth_server(REPEATED[where]) as server:
        _, spool = await run(plan(request(0)), server.url, tmp_path, {"api_key_env": "PDDBENCH_TEST_KEY"})
    got = result(spool, 0)
    assert KEY not in f"{got.error} {got.finish_reason}"
    assert "*" in f"{got.error} {got.finish_reason}", "what was said is shown, but for the key"
    assert KEY.encode() not in spool.path.read_bytes()


async def test_bodies_of_the_first_seconds_are_made_before_the_clock_starts(tmp_path):
    """Without it a thousand prompts would be made while the first requests are due, and hold up the loop that sends
    them."""  # fmt: skip
    made_ns, zero = {}, []

    def slowly(index):
        made_ns[index] = time.monotonic_ns()
        return body(index)

    requests = [request(i, start_ns=i * MS) for i in range(1500)]
    async with truth_server(stream(GOOD)) as server:
        path = tmp_path / "a.spool"
        spool = SpoolWriter(path, "a", 1, len(requests))
        job = ReplayJob(plan(*requests), Target(url=server.url), slowly, spool, on_zero=zero.append)
        end = await replay(job)
        spool.close()
    assert end.late_bodies == 0 and len(made_ns) == 1500
    assert max(made_ns.values()) < zero[0] - LEAD_NS, "before t0 was even chosen"
