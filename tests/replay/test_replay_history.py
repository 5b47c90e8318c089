"""Live history on the wire: the reply that came is in the next body, and a session without one is given up."""

import json

import pandas as pd
import pytest
from replay_kit import MS, plan, request
from replay_server import stream, truth_server
from replay_streams import last, sse

from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.spool import SpoolWriter, read_spool
from pddbench.runfolder import finish
from pddbench.workload.history import Replies
from pddbench.workload.prompts import BodyWriter, PromptBook

PLANNED = 6


def session(turns=3, gap_ns=0):
    """Turns that each go on from the whole context before, with replies of `PLANNED` tokens."""
    requests, length = [], 20
    for turn in range(turns):
        more = {"parents": (turn - 1,), "prefix_of": turn - 1, "prefix_tokens": length} if turn else {}
        length += 10 if turn else 0
        requests.append(
            request(turn, session_id="s", turn=turn, gap_ns=gap_ns, input_tokens=length, output_tokens=PLANNED, **more)
        )
        length += PLANNED
    made = plan(*requests)
    made.history = "live"
    return made


def saying(*ids, tell=True):
    """A reply of these tokens, two a chunk, with their ids (or without: `tell`)."""
    pieces = []
    for i in range(0, len(ids), 2):
        part = list(ids[i : i + 2])
        choice = {"index": 0, "text": "".join(f" w{token}" for token in part)}
        choice |= {"finish_reason": "stop" if i + 2 >= len(ids) else None} | ({"token_ids": part} if tell else {})
        pieces.append(sse({"choices": [choice]}))
    return stream([*pieces, last(len(ids))])


async def live(made, folder, reply):
    """Replay with live history; the prompts as the server saw them, and the spool of the run."""
    replies = Replies(made)
    book = PromptBook(made, "salt", (0, 1000), replies)
    bodies = BodyWriter(
        book, made, model="m", chat=False, token_ids=True, fields={}, limit_field="max_tokens", min_tokens=False
    )
    finish.save_plan(folder, 1, made)
    finish.save_arm(folder, "a", 1, 1.0, None)
    path = finish.spool_path(folder, "a", 1)
    spool = SpoolWriter(path, "a", 1, len(made.requests))
    async with truth_server(reply) as server:
        target = Target(url=server.url)
        job = ReplayJob(made, target, bodies, spool, on_parent_failure="abandon", replies=replies, needs_ids=True)
        end = await replay(job)
        prompts = {seen.request_id: json.loads(seen.body)["prompt"] for seen in server.seen}
    spool.close()
    assert len(replies) == 0, "replies are forgotten"
    return prompts, read_spool(path), end


async def test_the_next_prompt_holds_the_reply_and_the_rows_its_length(tmp_path):
    """Without it, a reply shorter than planned would change the workload without a trace of it."""
    said = {"r0": (7001, 7002, 7003), "r1": tuple(range(8001, 8009)), "r2": (1, 2)}
    prompts, _, _ = await live(session(), tmp_path, lambda seen: saying(*said[seen.request_id]))
    assert prompts["r1"] == prompts["r0"] + [7001, 7002, 7003] + prompts["r1"][23:]
    assert prompts["r2"][: len(prompts["r1"]) + 8] == prompts["r1"] + list(range(8001, 8009))
    finish.finish_arm(tmp_path, "a", 1)
    rows = pd.read_parquet(tmp_path / "requests")
    assert rows["input_tokens_planned"].tolist() == [20, 36, 52]
    assert rows["input_tokens_sent"].tolist() == [len(prompts[f"r{i}"]) for i in range(3)] == [20, 33, 51]
    assert rows["cached_tokens_possible"].tolist() == [0, 23, 41]
    assert (rows["cached_tokens_ceiling"] >= rows["cached_tokens_possible"]).all()


@pytest.mark.parametrize("bad", [saying(5, 6, tell=False), stream([sse({"choices": [{"index": 0, "text": "a"}]})])])
async def test_a_session_ends_where_its_reply_cannot_be_repeated(tmp_path, bad):
    """Without it, later turns would go on from a reply that was cut off, or that nobody knows the ids of."""
    prompts, spool, _ = await live(session(), tmp_path, lambda seen: bad if seen.request_id == "r1" else saying(1, 2))
    assert set(prompts) == {"r0", "r1"}
    assert spool.request(2).not_sent.reason == "parent_failed"


async def test_encoding_after_the_reply_is_behind_due_when_there_was_no_time_for_it(tmp_path):
    """Without it, the client's own work would hide in the think time, or in front of due."""
    for name, gap_ns in (("none", 0), ("some", 300 * MS)):
        folder = tmp_path / name
        folder.mkdir()
        _, spool, end = await live(session(2, gap_ns), folder, lambda _: saying(1, 2, 3))
        child, sent_ns = spool.request(1).handed, spool.request(1).answered.sent_ns
        assert not gap_ns or (not child.late_body and end.late_bodies == 0)
        assert child.due_ns == spool.request(0).ended.end_ns + gap_ns
        assert sent_ns >= child.due_ns
