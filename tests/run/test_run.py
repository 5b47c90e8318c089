"""The main job as a user runs it: three live arms, one folder, one table."""

import json

import numpy as np
import pandas as pd
import pytest
from run_kit import BUSY, emulator, get_json, pddbench, small_rows, typed, write_trace

import pddbench as package
from pddbench.runfolder.schema import EVENTS, HEALTH, REQUESTS, SERVER

EXPERIMENT = """
name = "three"
[workload]
trace = "t.trace.jsonl"
idle_cap_s = 1.0
repeats = 2
[slo]
ttft_sched_ms = 4000
[emulator]
speed = 8.0
threshold_s = 0.4
[cost]
chips = { A = 2.0, B = 2.4 }
line = 0.7
[[arm]]
name = "baseline"
emulated = "baseline"
[[arm]]
name = "naive"
emulated = "naive"
[[arm]]
name = "pdd"
emulated = "pdd"
[check]
"pdd.ttft.p50 < 30 s" = "fail"
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A finished run of three emulated arms, 12 sessions of 3 turns, twice."""
    path = tmp_path_factory.mktemp("run")
    write_trace(path / "t.trace.jsonl", small_rows(12, tokens=3000, gap_s=0.5, start_gap_s=1.0, output=60))
    (path / "e.toml").write_text(EXPERIMENT)
    done = pddbench("run", path / "e.toml", "--out", path / "out", *BUSY)
    assert done.returncode == 0, done.stdout + done.stderr
    return path / "out", done


def test_folder_has_its_contracted_shape(ran):
    """Without it, notebooks and CI jobs that read the folder break."""
    out, _ = ran
    names = {f"{arm}.{repeat}.parquet" for arm in ("baseline", "naive", "pdd") for repeat in (1, 2)}
    for table, columns in (("requests", REQUESTS), ("events", EVENTS), ("server", SERVER), ("health", HEALTH)):
        assert {p.name for p in (out / table).iterdir()} == names
        assert list(pd.read_parquet(out / table).columns) == list(columns)
    assert not (out / "spool").exists()
    assert {"manifest.json", "summary.json"} <= {p.name for p in out.iterdir()}
    assert any(p.suffix == ".png" for p in out.iterdir()) and any(p.suffix == ".svg" for p in out.iterdir())


def test_every_planned_request_has_one_row(ran):
    """Without it, lost requests make a deployment look good."""
    run = package.load(str(ran[0]))
    counts = run.requests.groupby(["arm", "repeat"])["request_id"].agg(["size", "nunique"])
    assert (counts == 36).all().all()
    assert (run.requests["outcome"] == "ok").all()
    assert (run.requests["completion_tokens"] == run.requests["output_tokens_planned"]).all()


def test_arms_got_the_same_work_and_gave_the_same_tokens(ran):
    """Without it, arms could be compared on different bytes, and a lost or doubled token at a hand-off pass unseen."""
    rows = package.load(str(ran[0])).requests
    for column in ("plan_sha256", "body_sha256", "output_sha256"):
        assert (rows.groupby(["request_id", "repeat"])[column].nunique() == 1).all(), column
    assert (rows.groupby("request_id")["body_sha256"].nunique() == 2).all(), "each repeat has a fresh salt"


def test_order_is_physical(ran):
    """Without it, an arm may be named naive and show no WAN at all."""
    rows = package.load(str(ran[0])).requests
    ttft_s = (rows["first_token_ns"] - rows["sent_ns"]).astype(float) / 1e9
    first = ttft_s[rows["turn"] == 0].groupby(rows["arm"]).median()
    kv_s = rows.loc[(rows["arm"] == "naive") & (rows["turn"] == 0), "kv_wan_ns"].astype(float).median() / 1e9
    assert kv_s > 0.3
    assert first["naive"] - first["baseline"] == pytest.approx(kv_s, rel=0.35)
    assert abs(first["pdd"] - first["baseline"]) < kv_s / 2


def test_pdd_routes_by_transfer_time_and_hands_over(ran):
    """Without it, no hand-off happens and every figure about it is empty."""
    rows = package.load(str(ran[0])).requests
    pdd = rows[rows["arm"] == "pdd"]
    assert set(pdd["pipeline"]) == {"P-MD", "P-RLD-MD"}
    relayed = pdd[pdd["pipeline"] == "P-RLD-MD"]
    assert (relayed["tokens_rld"] > 0).all()
    assert (relayed["tokens_rld"] + relayed["tokens_md"] == relayed["completion_tokens"]).all()
    handed = relayed[relayed["handoff_token"].notna()]
    assert len(handed) and (handed["handoff_token"] == handed["tokens_rld"]).all()


def test_served_hits_are_between_possible_and_planned(ran):
    """Without it, a warm cache or a wrong salt passes for a fast deployment."""
    rows = package.load(str(ran[0])).requests
    assert (rows["cached_tokens"] <= rows["cached_tokens_ceiling"]).all()
    assert (rows["cached_tokens_possible"] <= rows["cached_tokens_planned"]).all()
    settled = rows["cached_tokens_possible"] == rows["cached_tokens_ceiling"]
    assert settled.mean() > 0.9 and (rows["cached_tokens"] == rows["cached_tokens_possible"])[settled].all()
    later = rows[rows["turn"] > 0]
    assert (later["cached_tokens"] == later["cached_tokens_planned"]).all()


def test_manifest_says_what_was_run(ran):
    """Without it, a result cannot be traced back to its seeds, salts, order and scales."""
    manifest = json.loads((ran[0] / "manifest.json").read_text())
    arms = ["baseline", "naive", "pdd"]
    assert manifest["order"] == [[arm, 1] for arm in arms] + [[arm, 2] for arm in arms[::-1]]
    assert len(set(manifest["salts"].values())) == 2
    assert manifest["wan"]["backend"] == "model" and manifest["wan"]["link"]["one_way_ms"] == 15
    assert manifest["created_utc"].endswith("+00:00") and manifest["partial"] is False
    assert manifest["arms"]["pdd"]["cost_per_hour"] == pytest.approx(4 * 2.0 + 2.0 + 4 * 2.4 + 0.7)


def test_table_says_what_it_is(ran):
    """Without it, emulated, sped-up figures could be taken for real ones."""
    out = ran[1].stdout
    head = " ".join(out.split("\n\n")[0].split())
    assert "WAN: model, not packets" in head and "emulator speed 8" in head
    for words in ("TTFT", "largest gap", "seam stall", "goodput per cost", "by request", "verdict"):
        assert words in out, out
    assert "BCR" not in out


def test_check_and_report_read_the_folder(ran):
    """Without it, a CI gate on a finished run does not work."""
    out, _ = ran
    assert typed("check", out, "--that", "pdd.ttft.p50 < 30 s", *BUSY).returncode == 0
    assert typed("check", out, "--that", "naive.ttft.p50 < 1 ms", *BUSY).returncode == 99
    assert typed("check", out, "--that", "naive.ttft.p50 < 1 parsec").returncode == 2
    report = typed("report", out, "--json", *BUSY)
    assert set(json.loads(report.stdout)["arms"]) == {"baseline", "naive", "pdd"}


def test_gaps_and_stamps_agree(ran):
    """Without it, the gap lists and the request rows could tell two stories."""
    run = package.load(str(ran[0]))
    both = run.requests.merge(run.events, on=["request_id", "arm", "repeat"])
    span_us = (both["last_token_ns"] - both["first_token_ns"]).astype(float) / 1e3
    total_us = both["gaps_us"].map(lambda gaps: float(np.sum(gaps)))
    assert np.allclose(span_us, total_us, atol=50)


def test_dry_run_sends_nothing(tmp_path):
    """Without it, a user cannot see what a run would cost."""
    write_trace(tmp_path / "t.trace.jsonl", small_rows(4))
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    done = typed("run", tmp_path / "e.toml", "--dry-run", "--json", "--out", tmp_path / "out")
    facts = json.loads(done.stdout)
    assert (facts["requests"], facts["sessions"], len(facts["runs"])) == (12, 4, 6)
    assert facts["wan_bytes_planned"]["baseline"] == 0 < facts["wan_bytes_planned"]["pdd"]
    assert sum(facts["hit_buckets_planned"]) == 12
    assert not (tmp_path / "out").exists()


def test_replay_against_a_live_emulator(tmp_path):
    """Without it, `replay` may not work against an endpoint it did not start; chat and token ids both."""
    trace = write_trace(tmp_path / "t.trace.jsonl", small_rows(6))
    with emulator("pdd", "--speed", "10") as url:
        assert get_json(f"{url}/models")["data"][0]["pdd"]["speed"] == 10
        flags = ["--trace", trace, "--model", "any", "--goodput", "ttft:5000", "--num-warmups", 2, *BUSY]
        ids = pddbench("replay", *flags, "--base-url", url, "--out", tmp_path / "ids", "--serve", ":0")
        assert ids.returncode == 0, ids.stdout + ids.stderr
        assert "live: http://127.0.0.1:" in ids.stderr
        assert "] endpoint, repeat 1: 18/18 done, 0 in flight" in ids.stderr, "the run was watched to its end"
        chat = pddbench("replay", *flags, "--base-url", url.removesuffix("/v1"), "--endpoint", "/v1/chat/completions",
                        "--request-rate", 20, "--out", tmp_path / "chat")  # fmt: skip
        assert chat.returncode == 0, chat.stdout + chat.stderr
    for name in ("ids", "chat"):
        rows = package.load(str(tmp_path / name)).requests
        assert (rows["phase"] == "warmup").sum() == 2
        measured = rows[rows["phase"] == "measure"]
        assert len(measured) == 18 and (measured["outcome"] == "ok").all()
        assert (measured["prompt_tokens"] == measured["input_tokens_planned"]).all()
    head = ids.stdout.split("\n\n")[0]
    assert "speed 10" in " ".join(head.split())


@pytest.mark.parametrize(
    ("file", "flags", "speed", "requests"),
    [
        ("weka/trace_0142.json", ["--idle-cap", 2, "--time-scale", 0.025], 160, 30),
        ("mooncake/conversation_first1500.jsonl", ["--limit-requests", 60, "--time-scale", 0.1], 40, 60),
    ],
)
def test_public_traces_replay(tmp_path, data, file, flags, speed, requests):
    """Without it, the traces people have do not run end to end."""
    with emulator("pdd", "--speed", str(speed)) as url:
        done = pddbench("replay", "--trace", data / file, "--base-url", url, "--model", "any",
                        "--out", tmp_path / "out", *flags, *BUSY)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = package.load(str(tmp_path / "out")).requests
    assert len(rows) == requests and (rows["outcome"] == "ok").all()
