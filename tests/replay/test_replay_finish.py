"""From spool to Parquet: every planned request one row, with the times and tokens that were."""

from __future__ import annotations

import asyncio
import hashlib

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_kit import MS, body, plan, request
from replay_server import plain, stream, truth_server
from replay_streams import last, text

from pddbench.errors import WorldError
from pddbench.replay import frames
from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.spool import SpoolWriter
from pddbench.runfolder import finish, schema
from pddbench.runfolder.ceiling import ceiling_hits
from pddbench.trace.contexts import contexts, cut
from pddbench.trace.hits import NEVER_NS

GOOD = [text("a", pdd={"stage": "p", "index": 0}), text("b", "stop", pdd={"stage": "d", "index": 1}), last(2)]


async def record(the_plan, folder, url, speed=1.0, block=None, **more):
    """Replay into a run folder and finish it."""
    finish.save_plan(folder, 1, the_plan)
    finish.save_arm(folder, "a", 1, speed, block)
    spool = SpoolWriter(finish.spool_path(folder, "a", 1), "a", 1, len(the_plan.requests))
    try:
        end = await replay(ReplayJob(the_plan, Target(url=url), body, spool, speed, **more))
    finally:
        spool.close()
    finish.finish_arm(folder, "a", 1)
    return end


def columns(path):
    """Names and Arrow types of a Parquet file."""
    return {field.name: field.type for field in pq.read_schema(path)}


async def test_rows_of_a_run(tmp_path):
    """Without it a column could be missing, in the wrong unit, or a request without its row."""
    stop = asyncio.Event()
    requests = [
        request(0, input_tokens=100, cached_tokens_planned=99),
        request(1, parents=(0,), gap_ns=500 * MS, prefix_of=0, prefix_tokens=90, input_tokens=120,
                cached_tokens_planned=90),
        request(2), request(3, start_ns=10**15), request(4, phase="warmup", kind="warmup"),
    ]  # fmt: skip

    def reply(seen):
        if seen.request_id == "r1":
            asyncio.get_running_loop().call_later(0.3, stop.set)
        return plain("429 No", b"slow") if seen.request_id == "r2" else stream(GOOD, gap_s=0.03)

    async with truth_server(reply) as server:
        await record(plan(*requests), tmp_path, server.url, speed=10.0, block=16, stop=stop)
    for table, want in (("requests", schema.REQUESTS), ("events", schema.EVENTS), ("health", schema.HEALTH)):
        path = tmp_path / table / "a.1.parquet"
        assert columns(path) == {field.name: field.type for field in schema.arrow_schema(want)}
    rows = pd.read_parquet(tmp_path / "requests", dtype_backend="pyarrow").set_index("request_id")
    events = pd.read_parquet(tmp_path / "events").set_index("request_id")
    assert list(rows.index) == list(events.index) == ["r0", "r1", "r2", "r3", "r4"]
    assert rows["outcome"].tolist() == ["ok", "ok", "http_error", "not_sent", "ok"]
    assert rows["phase"].tolist() == ["measure"] * 4 + ["warmup"]
    first = rows.loc["r0"]
    assert first["scheduled_ns"] == first["ready_ns"] == first["due_ns"] == 0
    gap_ns = first["second_token_ns"] - first["first_token_ns"]
    assert gap_ns == first["max_gap_ns"] >= 300 * MS * 0.9, "wall 30 ms at speed 10"
    assert events.loc["r0", "gaps_us"].tolist() == [round(gap_ns / 1000)]
    assert events.loc["r0", "stage"].tolist() == ["p", "d"]
    assert (first["tokens_p"], first["tokens_rld"], first["tokens_md"]) == (1, 0, 1)
    assert (first["chunks"], first["completion_tokens"], first["max_gap_token"]) == (2, 2, 1)
    assert first["body_sha256"] == hashlib.sha256(body(0)).hexdigest()
    assert first["output_sha256"] == hashlib.sha256(b"ab").hexdigest()
    second = rows.loc["r1"]
    assert second["scheduled_ns"] - second["ready_ns"] == pytest.approx(500 * MS, abs=20)
    assert second["ready_ns"] == first["end_ns"]
    assert (second["cached_tokens_planned"], second["cached_tokens_possible"], second["cached_tokens_ceiling"]) == (
        80, 80, 80)  # fmt: skip
    assert (first["cached_tokens_planned"], first["cached_tokens_possible"]) == (96, 0)
    assert rows.loc["r2", "error"] == "HTTP 429: slow"
    assert pd.isna(rows.loc["r2", "first_token_ns"])
    assert rows.loc["r3", "error"] == "interrupted"
    assert pd.isna(rows.loc["r3", ["sent_ns", "end_ns", "cached_tokens_possible", "completion_tokens"]]).all()
    assert rows.loc["r4", "end_ns"] < 0, "warm-ups end before t0"
    assert finish.spools(tmp_path) == []
    assert not list((tmp_path / "spool").glob("*.part"))


def written(folder, *given_frames, requests=3):
    """A run folder with a spool of these frames, not finished."""
    the_plan = plan(*[request(i) for i in range(requests)])
    finish.save_plan(folder, 1, the_plan)
    finish.save_arm(folder, "a", 1, 1.0, None)
    spool = SpoolWriter(finish.spool_path(folder, "a", 1), "a", 1, requests)
    for frame in given_frames:
        spool.write(frame)
    spool.close()
    return finish.spool_path(folder, "a", 1)


def handed(index):
    """A request that was handed to the client."""
    return frames.Handed(index, 1005, 1000, 1000, 1000, 0, "b", False)


def test_a_torn_spool(tmp_path):
    """Without it a run that was killed could not be finished, or lose more than its last write."""
    path = written(
        tmp_path, frames.Zero(1000), handed(0), frames.Answered(0, 1010, False, 1020, 200, "text/event-stream", ""),
        frames.Reads(0, [(1030, text("a"))]), handed(1), frames.Reads(0, [(1040, text("b"))]),
    )  # fmt: skip
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    finish.finish_arm(tmp_path, "a", 1)
    rows = pd.read_parquet(tmp_path / "requests", dtype_backend="pyarrow")
    assert rows["outcome"].tolist() == ["cancelled", "cancelled", "not_sent"]
    assert rows["error"].tolist() == [finish.KILLED, finish.KILLED, "run_killed"]
    assert (rows.loc[0, "chunks"], rows.loc[0, "first_token_ns"]) == (1, 30)
    assert pd.isna(rows.loc[:, "end_ns"]).all()


def test_any_cut_of_a_spool_can_be_finished(tmp_path):
    """Without it some unlucky instant of SIGKILL could make a folder unrecoverable."""
    path = written(
        tmp_path, frames.Zero(1000), handed(0), frames.Answered(0, 1010, False, 1020, 200, "text/event-stream", ""),
        frames.Reads(0, [(1030, text("a", "stop"))]), frames.Ended(0, 1050, "eof", None),
        frames.NotSent(1, "interrupted", None, None, None), frames.Health(2000, [1, 2], 0.5, None, None, 1),
    )  # fmt: skip
    whole, opened = path.read_bytes(), path.stat().st_size
    for size in range(0, opened, 13):
        path.write_bytes(whole[:size])
        finish.save_arm(tmp_path, "a", 1, 1.0, None)
        try:
            finish.finish_arm(tmp_path, "a", 1)
        except WorldError as error:
            assert size < 60, f"only a spool without its first frame is lost: {error}"
        else:
            assert len(pd.read_parquet(tmp_path / "requests")) == 3


def test_a_failure_leaves_the_spool(tmp_path, monkeypatch):
    """Without it a full disk while finishing would lose the run."""
    path = written(tmp_path, frames.Zero(1000))
    monkeypatch.setattr(finish._Finisher, "_second_pass", lambda self: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        finish.finish_arm(tmp_path, "a", 1)
    assert path.exists()
    assert not (tmp_path / "requests").exists()


def test_a_spool_cannot_be_written(tmp_path):
    """Without it an unwritable folder would be a traceback."""
    with pytest.raises(WorldError, match="cannot write the spool"):
        SpoolWriter(tmp_path / "absent" / "a.1.spool", "a", 1, 1)


@st.composite
def tries(draw):
    """Small random tries with random times."""
    rows = []
    for i in range(draw(st.integers(1, 7))):
        donor = draw(st.integers(-1, i - 1))
        n = draw(st.integers(1, 6))
        most = min(n, rows[donor].input_tokens + rows[donor].output_tokens) if donor >= 0 else 0
        rows.append(request(i, prefix_of=donor, prefix_tokens=draw(st.integers(0, most)), input_tokens=n))
    times = st.lists(st.integers(0, 9) | st.just(NEVER_NS), min_size=len(rows), max_size=len(rows))
    return rows, draw(times), draw(times)


@given(tries())
def test_ceiling_against_brute_force(case):
    """Without it the bound could be below what a server can really hit, and a good run be called invalid."""
    rows, query, sent = case
    donors = [row.prefix_of for row in rows]
    prompts = []
    for row, path in zip(rows, contexts(rows, donors), strict=True):
        prompts.append([(seg.owner, p) for seg in cut(path, row.input_tokens) for p in range(seg.start, seg.end)])

    def shared(a, b):
        return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))

    want = [
        max([shared(prompts[i], prompts[j]) for j in range(len(rows))
             if j != i and sent[j] < query[i] != NEVER_NS] or [0])
        for i in range(len(rows))
    ]  # fmt: skip
    got = ceiling_hits(rows, donors, np.array(query), np.array(sent))
    assert got.tolist() == want
