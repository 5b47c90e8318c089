"""The same small experiment live and simulated: each vouches for the other."""

import pandas as pd
import pytest
from run_kit import BUSY, pddbench, small_rows, write_trace

EXPERIMENT = """
name = "agree"
[workload]
trace = "t.trace.jsonl"
idle_cap_s = 0.5
repeats = 3
[[arm]]
name = "pdd"
emulated = "pdd"
"""


def rows_of(folder):
    """Latencies of a run in seconds, by request: the least of all repeats, since a late host only ever adds."""
    rows = pd.read_parquet(folder / "requests")
    assert (rows["outcome"] == "ok").all()
    rows = rows.assign(
        ttft=(rows["first_token_ns"] - rows["sent_ns"]) / 1e9,
        e2e=(rows["last_token_ns"] - rows["sent_ns"]) / 1e9,
        tpot=(rows["last_token_ns"] - rows["first_token_ns"]) / 1e9 / (rows["completion_tokens"] - 1),
    )
    return rows.groupby("request_id")[["ttft", "e2e", "tpot", "tokens_rld"]].min(), rows


@pytest.mark.slow
def test_live_and_simulated_agree(tmp_path):
    """Breaks when virtual time is another system than the one that is served (medians 5%, P99 15%)."""
    write_trace(tmp_path / "t.trace.jsonl", small_rows(7, tokens=3000, gap_s=0.2, start_gap_s=0.4, output=60))
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    simulated = pddbench("simulate", tmp_path / "e.toml", "--out", tmp_path / "simulated", "--quiet")
    live = pddbench("run", tmp_path / "e.toml", "--wan", "model", "--out", tmp_path / "live", "--quiet", *BUSY)
    assert simulated.returncode == live.returncode == 0, simulated.stderr + live.stdout + live.stderr
    (one, all_one), (two, all_two) = rows_of(tmp_path / "simulated"), rows_of(tmp_path / "live")
    for name in ("ttft", "e2e", "tpot"):
        assert two[name].median() == pytest.approx(one[name].median(), rel=0.05), name
        assert two[name].quantile(0.99) == pytest.approx(one[name].quantile(0.99), rel=0.15), name
    shares = [rows["pipeline"].value_counts(normalize=True) for rows in (all_one, all_two)]
    assert shares[1].get("P-RLD-MD", 0) == pytest.approx(shares[0].get("P-RLD-MD", 0), abs=0.1)
