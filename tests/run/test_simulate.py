"""Virtual time: the same code as live, repeatable to the bit, in the same run folder."""

import json

import pandas as pd
import pytest
from run_kit import pddbench, small_rows, typed, write_trace

import pddbench as package

EXPERIMENT = """
name = "virtual"
[workload]
trace = "t.trace.jsonl"
idle_cap_s = 1.0
warmups = 1
[[arm]]
name = "baseline"
emulated = "baseline"
[[arm]]
name = "naive"
emulated = "naive"
[[arm]]
name = "pdd"
emulated = "pdd"
"""


def simulate(path, out, *flags, text=EXPERIMENT):
    write_trace(path / "t.trace.jsonl", small_rows(12, tokens=3000, gap_s=0.5, start_gap_s=1.0, output=60))
    (path / "e.toml").write_text(text)
    done = typed("simulate", path / "e.toml", "--out", path / out, *flags)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """The same simulation run twice."""
    path = tmp_path_factory.mktemp("simulate")
    return path, simulate(path, "one"), simulate(path, "two")


def test_same_seed_same_bits(twice):
    """Without it, a simulated difference could be noise of the simulator."""
    path, _, _ = twice
    for table in ("requests", "events"):
        one, two = (pd.read_parquet(path / out / table) for out in ("one", "two"))
        pd.testing.assert_frame_equal(one, two)


def test_it_says_that_it_is_simulated(twice):
    """Without it, virtual figures could be taken for measured ones."""
    path, done, _ = twice
    assert "simulated in virtual time" in " ".join(done.stdout.split("\n\n")[0].split())
    assert json.loads((path / "one" / "manifest.json").read_text())["simulated"] is True


def test_physics_and_tokens(twice):
    """Without it, the virtual deployment could lose tokens, or its WAN cost nothing."""
    rows = package.load(str(twice[0] / "one")).requests
    rows = rows[rows["phase"] == "measure"]
    assert (rows["outcome"] == "ok").all() and len(rows) == 3 * 36
    assert (rows.groupby("request_id")["output_sha256"].nunique() == 1).all()
    ttft_s = (rows["first_token_ns"] - rows["sent_ns"]).astype(float) / 1e9
    first = ttft_s[rows["turn"] == 0].groupby(rows["arm"]).median()
    naive = rows[(rows["arm"] == "naive") & (rows["turn"] == 0)]
    assert first["naive"] - first["baseline"] == pytest.approx(naive["kv_wan_ns"].astype(float).median() / 1e9, rel=0.1)
    assert (rows["sent_ns"] == rows["due_ns"]).all()
    pdd = rows[(rows["arm"] == "pdd") & rows["handoff_token"].notna()]
    assert len(pdd) and (pdd["handoff_token"] == pdd["tokens_rld"]).all()


def test_real_endpoints_are_refused(tmp_path):
    """Without it, a user could believe that a real endpoint was simulated."""
    write_trace(tmp_path / "t.trace.jsonl", small_rows(2))
    (tmp_path / "e.toml").write_text(
        EXPERIMENT + '[[arm]]\nname = "mine"\nbase_url = "http://127.0.0.1:1"\nmodel = "m"\n'
    )
    done = pddbench("simulate", tmp_path / "e.toml", "--out", tmp_path / "out")
    assert done.returncode == 2 and "only emulated arms" in done.stderr
