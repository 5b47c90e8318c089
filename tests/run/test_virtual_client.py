"""What a client in virtual time does besides sending: it gives up, and stops at the end of a window, as a live one."""

import hashlib

import pandas as pd
import pytest
from run_kit import BUSY, pddbench, small_rows, typed, write_trace

# Over 4 Mbit/s the KV of 3,000 tokens needs minutes: P's first token comes, and nothing after it.
STALLS = """
name = "stalls"
[workload]
trace = "t.trace.jsonl"
idle_cap_s = 0.5
stall_timeout_s = 2.0
[emulator]
first_token_from_p = true
[wan]
one_way_ms = 15
rate_mbit = 4
[[arm]]
name = "naive"
emulated = "naive"
"""
OUTCOMES = ["outcome", "error", "http_status", "chunks", "tokens_p", "tokens_md", "completion_tokens", "pipeline",
            "phase"]  # fmt: skip
TIMES = [f"{name}_ns" for name in ("scheduled", "ready", "due", "sent", "first_token", "last_token", "end")]


def rows_of(path, out, text, *flags, rows=None, command="simulate"):
    """The `requests` of an experiment, by request."""
    write_trace(path / "t.trace.jsonl", rows or small_rows(2, turns=2, tokens=3000, gap_s=0.2, start_gap_s=0.4))
    (path / "e.toml").write_text(text)
    run = typed if command == "simulate" else pddbench
    done = run(command, path / "e.toml", "--out", path / out, "--quiet", *flags)
    assert (path / out / "requests").is_dir(), done.stdout + done.stderr
    return pd.read_parquet(path / out / "requests").sort_values("request_id").reset_index(drop=True)


def agree(one, two, within_ns):
    """The same outcomes, and times no further apart than that."""
    pd.testing.assert_frame_equal(one[OUTCOMES], two[OUTCOMES], check_dtype=False)
    for name in TIMES:
        pd.testing.assert_series_equal(one[name].astype(float), two[name].astype(float), rtol=0, atol=within_ns)


@pytest.mark.slow
def test_a_stalled_answer_is_left_as_live(tmp_path):
    """Without it, a simulated client waits for ever, and its tail is one that nobody live would ever see."""
    counted = rows_of(tmp_path, "counted", STALLS)
    assert set(counted["outcome"]) == {"timeout"} and set(counted["error"]) == {"no byte for 2 s"}
    assert (counted["end_ns"] - counted["last_token_ns"] == 2_000_000_000).all() and (counted["chunks"] == 1).all()
    agree(counted, rows_of(tmp_path, "made", STALLS, "--by-token"), 3)
    live = rows_of(tmp_path, "live", STALLS, "--wan", "model", *BUSY, command="run")
    agree(counted, live, 1e9)


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("failed", ["continue", "abandon"])
def test_an_answer_without_an_end_is_left_at_its_limit(tmp_path, chunk, failed):
    """Without it, the limit of a request would hold live only; counted and made tokens must see the same."""
    text = STALLS.replace("stall_timeout_s = 2.0", f'request_limit_s = 2.5\non_parent_failure = "{failed}"')
    text = text.replace("one_way_ms = 15\nrate_mbit = 4", "one_way_ms = 1\nrate_mbit = 10000")
    text = text.replace("[wan]", f"tokens_per_chunk = {chunk}\n[wan]")
    counted, made = (
        rows_of(tmp_path, out, text, *flags, rows=small_rows(6, tokens=3000, output=90))
        for out, flags in (("counted", []), ("made", ["--by-token"]))
    )
    late = counted[counted["outcome"] == "timeout"]
    assert set(late["error"]) == {"no end within 2.5 s"}
    assert ((late["end_ns"] - late["sent_ns"]) == 2_500_000_000).all() and (late["chunks"] > 2).all()
    assert ((counted["error"] == "parent_failed").any()) == (failed == "abandon")
    agree(counted, made, 3)


@pytest.mark.parametrize("failed", ["continue", "abandon"])
def test_a_window_ends_a_counted_run(tmp_path, failed):
    """Without it, a window of a minute costs the simulation of a day, and what comes after it counts as measured."""
    text = STALLS.replace("stall_timeout_s = 2.0", f'duration_s = 4.0\non_parent_failure = "{failed}"')
    text = text.replace("rate_mbit = 4", "rate_mbit = 10000")
    rows = small_rows(12, turns=6, tokens=3000, start_gap_s=1.0, output=80)
    counted, made = (
        rows_of(tmp_path, out, text, *flags, rows=rows) for out, flags in (("counted", []), ("made", ["--by-token"]))
    )
    agree(counted, made, 3)
    measured, rest = (counted[(counted["phase"] == "measure") == inside] for inside in (True, False))
    assert (measured["due_ns"] < 4e9).all() and (measured["outcome"] == "ok").all()
    left = rest[rest["outcome"] == "cancelled"]
    assert set(left["error"]) == {"stopped while in flight"} and left["end_ns"].max() < 12e9
    assert (rest["error"] == ("parent_failed" if failed == "abandon" else "run_ended")).any()


def test_results_are_those_of_this_seed(tmp_path):
    """Without it, something done for speed could change figures: every change of this sum must be meant."""
    text = STALLS.replace("stall_timeout_s = 2.0\n", "").replace("rate_mbit = 4", "rate_mbit = 1000")
    text += '[[arm]]\nname = "pdd"\nemulated = "pdd"\nhandoff = "catch_up"\nroles = { MD = { chip = "B", count = 1, '
    text += 'kv_tokens = 9000, cache_tokens = 20000 } }\n[[arm]]\nname = "baseline"\nemulated = "baseline"\n'
    rows = rows_of(tmp_path, "out", text, rows=small_rows(12, turns=4, tokens=3000, output=90))
    rows = rows.sort_values(["arm", "request_id"]).drop(columns="error")
    found = hashlib.sha256(rows.to_csv(index=False).encode()).hexdigest()[:16]
    assert found == "eae3f9d901b347fe"
