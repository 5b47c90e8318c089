"""The whole chain against itself: what an emulated deployment with a large cache serves is what was possible.

Trace, plan, prompts, bodies, block hashes, cache, usage, rows: one wrong token anywhere on the way and the two differ.
In virtual time (`simulate`, the live code); `tests/run/test_run.py` has the same over sockets.
"""

from pathlib import Path

import pandas as pd
import pytest

from pddbench.runfolder import finish
from pddbench.runner.preflight import writer_of
from pddbench.runner.prepare import prepare
from pddbench.runner.simulate import spool_arm
from pddbench.trace.canonical import write_trace
from pddbench.trace.model import Trace
from pddbench.trace.quota.generate import generate
from pddbench.trace.quota.presets import pdd_agentic, weka_like
from pddbench.trace.read import read_trace
from pddbench.workload.experiment import Arm, Experiment, Workload
from pddbench.workload.history import Replies

ROOT = Path(__file__).parents[2]


def simulated(trace: Trace, kind: str, folder: Path, **work) -> pd.DataFrame:
    """The rows of a trace replayed on an emulated arm in virtual time."""
    write_trace(trace, folder / "t.trace.jsonl")
    workload = Workload(trace=str(folder / "t.trace.jsonl"), **work)
    prepared = prepare(Experiment(name="x", workload=workload, arm=[Arm(name="a", emulated=kind)]), "model")
    setup, plan = prepared.arms[0], prepared.plan
    replies = Replies(plan) if plan.history == "live" else None
    finish.save_plan(folder, 1, plan)
    spool_arm(folder, "a", 1, setup.spec, plan, writer_of(setup, plan, "salt", replies), setup.chat, replies)
    return pd.read_parquet(folder / "requests")


def check(rows: pd.DataFrame, in_flight: int) -> None:
    """Request by request: exact, but where a donor was in flight, from which more may be served, never too much.

    A donor counts as possible from its first token on (DESIGN 5); a cache has its blocks from the end of its prefill
    on. `in_flight`: how many requests that may concern at most.
    """
    assert (rows["outcome"] == "ok").all()
    served, possible, ceiling = (rows[f"cached_tokens{what}"] for what in ("", "_possible", "_ceiling"))
    settled = possible == ceiling
    assert (served[settled] == possible[settled]).all()
    assert ((possible <= served) & (served <= ceiling)).all()
    assert (~settled).sum() <= in_flight


@pytest.mark.parametrize(("kind", "spec"), [("baseline", pdd_agentic), ("pdd", weka_like)])
def test_a_synthetic_trace_is_served_exactly_what_is_possible(tmp_path, kind, spec):
    """Without it, a generated histogram could be right on paper and another one on the wire."""
    rows = simulated(generate(spec(), 60, 1), kind, tmp_path)
    check(rows, in_flight=3)
    assert (rows["cached_tokens"] > 0).mean() > 0.7, "it is about hits"


def test_a_recorded_trace_is_served_exactly_what_is_possible(tmp_path, data):
    """Without it, a reader's tree could differ from the prompts that are made of it (sub-agents, edits, ids)."""
    for name, in_flight in (("0026", 0), ("0217", 0), ("0553", 1)):
        check(simulated(read_trace(data / "weka" / f"trace_{name}.json"), "baseline", tmp_path), in_flight)


def test_many_sessions_at_once_are_served_exactly_what_is_possible(tmp_path):
    """Without it, the same would only hold while nobody else is there."""
    trace = read_trace(ROOT / "traces" / "agentic-small.trace.jsonl.zst")
    rows = simulated(trace, "naive", tmp_path, time_scale=0.05, limit_requests=200)
    check(rows, in_flight=40)
    assert (rows["cached_tokens_possible"] < rows["cached_tokens_planned"]).any(), "sessions really overlap"


@pytest.mark.parametrize("prompt", ["token_ids", "text"])
def test_live_history_is_sent_as_planned_and_replies_of_prompts_are_not_in_a_prefill_cache(tmp_path, prompt):
    """Without it, live prompts could lose the shared prefix at the first reply, and nobody would see why."""
    trace = read_trace(ROOT / "traces" / "agentic-small.trace.jsonl.zst")
    rows = simulated(trace, "baseline", tmp_path, history="live", limit_requests=80, prompt=prompt)
    assert (rows["outcome"] == "ok").all()
    assert (rows["input_tokens_sent"] == rows["input_tokens_planned"]).all(), "replies have the planned lengths"
    if prompt == "token_ids":
        assert (rows["prompt_tokens"] == rows["input_tokens_sent"]).all()
    short = rows["cached_tokens_possible"] - rows["cached_tokens"]
    parents = rows.groupby("session_id")["output_tokens_planned"].transform("sum")
    assert ((short >= 0) & (short <= parents + 64)).all(), "the emulated P has the KV of prompts, not of replies"
    assert (rows["cached_tokens"] > 0).mean() > 0.7


def test_a_window_leaves_the_rest(tmp_path):
    """Without it, a simulation would go through a whole day for ten minutes of it, or measure the wrong ones."""
    trace = read_trace(ROOT / "traces" / "agentic-small.trace.jsonl.zst")
    rows = simulated(trace, "baseline", tmp_path, duration_s=60.0, warmup_s=20.0, idle_cap_s=2.0)
    measured = rows[rows["phase"] == "measure"]
    assert len(rows) == len(trace.rows) and len(measured) > 20
    assert measured["due_ns"].between(20e9, 80e9, inclusive="left").all()
    assert (measured["outcome"] == "ok").all()
    outside = rows[rows["phase"] == "drain"]
    assert set(outside["outcome"]) <= {"ok", "cancelled", "not_sent"} and (outside["error"] == "run_ended").any()


def test_a_session_whose_reply_is_lost_ends_there_in_virtual_time_too(tmp_path, monkeypatch):
    """Without it, a simulation of live history would stop with a traceback where a live run goes on."""
    from pddbench.runner import simulate

    keep = simulate.keep_reply
    monkeypatch.setattr(
        simulate, "keep_reply", lambda r, index, *rest, **more: index != 3 and keep(r, index, *rest, **more)
    )
    trace = generate(pdd_agentic(), 40, 1)
    rows = simulated(trace, "baseline", tmp_path, history="live", limit_requests=20)
    lost = rows[rows["error"] == "parent_failed"]
    assert len(lost) and set(lost["session_id"]) == {rows["session_id"][3]} and set(lost["outcome"]) == {"not_sent"}
    assert lost["input_tokens_sent"].isna().all()
    assert (rows["outcome"][~rows.index.isin(lost.index)] == "ok").all()
