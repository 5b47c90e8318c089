"""The experiments of workloads/claims: each mechanism has its effect, and without the mechanism the effect is gone."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from pddbench.runner.counted import table
from pddbench.runner.prepare import arm_setup
from pddbench.runner.simulate import counted_run, simulate_frame
from pddbench.trace.read import read_trace
from pddbench.workload.load import load_experiment
from pddbench.workload.plan import make_plan

CLAIMS = Path(__file__).parents[2] / "workloads" / "claims"


@cache
def trace_of(path):
    return read_trace(Path(path))


def simulated(name, *, observer=None, trace=None, arms=None, **work):
    """Each arm of a claim's experiment in virtual time: its run, and its rows with a few more columns."""
    experiment = load_experiment(CLAIMS / f"{name}.toml")
    for key, value in work.items():
        setattr(experiment.workload, key, value)
    plan = make_plan(trace or trace_of(experiment.workload.trace), experiment.workload)
    runs, rows = {}, {}
    for arm in experiment.arm:
        if arms is not None and arm.name not in arms:
            continue
        runs[arm.name] = run = counted_run(arm_setup(arm, experiment, "model"), plan, experiment)
        rows[arm.name] = frame = table(run, arm.name, 1).to_pandas()
        frame["ttft"] = (frame["first_token_ns"] - frame["due_ns"]) / 1e9
        frame["ttst"] = (frame["second_token_ns"] - frame["first_token_ns"]) / 1e9
        frame["seam"] = [seam_s(run, i, at) for i, at in enumerate(frame["handoff_token"])]
        assert (frame["outcome"] == "ok").all()
    return runs, rows


def seam_s(run, index, token):
    """The gap before the first token of MD, seconds."""
    if not token >= 1:
        return np.nan
    times = run.chunks(index).ns
    return (times[int(token)] - times[int(token) - 1]) / 1e9


def bystander_gaps(run, frame):
    """Gaps of streams on MD that had nothing handed over: all after each stream's own seam, seconds."""
    out = []
    for i, token in enumerate(frame["handoff_token"]):
        if token >= 0:
            out.append(np.diff(run.chunks(i).ns[int(token) :]) / 1e9)
    return np.concatenate(out)


def wan_bytes(frame):
    return frame["kv_wan_bytes"].sum()


def rld_share(frame):
    return frame["tokens_rld"].sum() / frame["completion_tokens"].sum()


def test_c05_drc_saves_what_hits_at_md():
    """Without it, DRC would be said to save ten times whatever the hits: it saves 1 / (1 - token-weighted hit)."""
    _, rows = simulated("c05", limit_requests=700)
    hit = rows["drc"]["cached_tokens"].sum() / rows["drc"]["prompt_tokens"].sum()
    assert wan_bytes(rows["off"]) / wan_bytes(rows["drc"]) == pytest.approx(1 / (1 - hit), rel=0.02)
    trace = trace_of(str(CLAIMS / "traces" / "pdd-agentic.trace.jsonl.zst"))
    alone = [msgspec.structs.replace(row, prefix_of=None, prefix_tokens=0) for row in trace.rows[:300]]
    _, rows = simulated("c05", trace=msgspec.structs.replace(trace, rows=alone))
    assert wan_bytes(rows["off"]) == wan_bytes(rows["drc"])  # nothing hits, nothing is saved


def test_c06_two_paths():
    """Without it, the relay's fabric would look no faster than the WAN, or the two ways would add up."""
    _, rows = simulated("c06")
    _, base = simulated("c07", arms=["baseline"])
    seen = rows["pdd"][rows["pdd"]["turn"] > 0]
    to_rld = seen["ttft"].median() - base["baseline"].loc[seen.index, "ttft"].median()
    to_md = seen["kv_wan_ns"].median() / 1e9
    assert 0.01 < to_rld < 0.2  # tens of milliseconds
    assert 10 < to_md / to_rld < 500
    slow = rows["off"].loc[seen.index, "ttft"].median() - base["baseline"].loc[seen.index, "ttft"].median()
    assert to_md / slow < 1.1  # a fabric like a WAN flow: no faster


def test_c07_the_relay_hides_the_transfer():
    """Without it, pdd could be slow, naive fast, or P's first token could hide naive's wait."""
    _, rows = simulated("c07")
    ttft = {name: frame["ttft"].median() for name, frame in rows.items()}
    wait_s = rows["naive"]["kv_wan_ns"].median() / 1e9
    assert ttft["pdd"] - ttft["baseline"] < 0.05
    assert ttft["naive"] - ttft["baseline"] == pytest.approx(wait_s, rel=0.05)
    assert ttft["naive_first"] < ttft["baseline"]
    assert rows["naive_first"]["ttst"].median() == pytest.approx(wait_s, rel=0.05)
    assert ttft["off"] == pytest.approx(ttft["naive"])
    assert rld_share(rows["off"]) == 0


def test_c09_who_makes_the_tokens():
    """Without it, the relay's share could be a free figure: it is transfer time / RLD's time a token."""
    _, rows = simulated("c09")
    for name in ("rld4", "rld1"):
        seen = rows[name][rows[name]["turn"] > 0]
        per_token_s = (seen["kv_wan_ns"].median() / 1e9) / seen["handoff_token"].median()
        assert 0.0223 < per_token_s < 0.035
        assert 0.06 < seen["tokens_rld"].sum() / seen["completion_tokens"].sum() < 0.11
    assert rld_share(rows["rld1"]) < rld_share(rows["rld4"])  # a fuller batch makes fewer tokens meanwhile
    assert rld_share(rows["off"]) == 0


def test_c10_c11_ids_against_kv():
    """Without it, a hand-off of KV could look as steady as one of ids, or ids as quick as KV on an open connection."""
    _, busy = simulated("c10")
    _, idle = simulated("c10", session_rate=0.002, limit_requests=120)
    seam = {name: frame.loc[frame["turn"] > 0, "seam"].dropna() for name, frame in busy.items()}
    alone = {name: frame.loc[frame["turn"] > 0, "seam"].dropna() for name, frame in idle.items()}
    assert seam["direct_warm"].median() < seam["ids"].median()
    assert alone["direct_warm"].mean() < alone["ids"].mean()
    bytes_ = {name: frame["handoff_bytes"].sum() for name, frame in busy.items()}
    assert bytes_["direct"] / bytes_["ids"] > 3000
    # on a shared line KV waits for others now and then, ids do not
    assert seam["direct"].std() > 3 * seam["ids"].std()
    assert alone["direct"].std() < 0.1 * seam["direct"].std()  # off: nobody to wait for


def test_c11_ids_do_not_feel_the_line():
    """Without it, cross traffic could be said to leave the hand-off alone without having been tried."""
    tails = {}
    for rate in (0.01, 0.06):
        _, rows = simulated("c11", session_rate=rate)
        tails[rate] = {name: frame.loc[frame["turn"] > 0, "seam"].quantile(0.99) for name, frame in rows.items()}
    rtt_s = 0.03
    assert abs(tails[0.06]["ids"] - tails[0.01]["ids"]) < rtt_s
    assert tails[0.06]["direct"] - tails[0.01]["direct"] > 4 * rtt_s


def test_c12_a_burst_of_ids_is_felt_by_bystanders():
    """Without it, one-shot would be free for the other streams on MD, or dear although recomputation costs nothing."""
    runs, rows = simulated("c12")
    worst = {name: bystander_gaps(runs[name], rows[name]).max() for name in runs}
    eager = rows["slow"]["handoff_token"].max()
    assert worst["slow"] > 0.8 * eager * 1e-3  # the largest burst, 1 ms an id
    assert worst["off"] < worst["roofline"] < worst["slow"]
    assert worst["off"] < 0.06  # only the batch's own growth


def test_c13_catch_up_trades_bursts_for_rounds():
    """Without it, catch-up could bring rounds and no relief, or relief where there is nothing to catch up."""
    runs, rows = simulated("c13")
    gaps = {name: np.quantile(bystander_gaps(runs[name], rows[name]), 0.999) for name in runs}
    assert gaps["catch64"] < 0.9 * gaps["one_shot"]
    assert rows["catch64"]["handoff_rounds"].mean() > 1.5
    assert rld_share(rows["one_shot"]) < rld_share(rows["catch64"]) < rld_share(rows["one_shot"]) + 0.05
    assert rows["off"]["handoff_rounds"].max() == 1
    assert gaps["off"] == pytest.approx(gaps["one_shot"])


def test_c13_the_mode_follows_the_load_of_rld():
    """Without it, dynamic would be one of the two modes under another name."""
    modes = {}
    for rate, limit in ((0.01, 200), (2.0, 480)):
        _, rows = simulated("c13", session_rate=rate, limit_requests=limit, arms=["dynamic"])
        modes[rate] = rows["dynamic"]["handoff_mode"].value_counts(normalize=True).to_dict()
    assert modes[0.01] == {"catch_up": 1.0}
    assert modes[2.0].get("one_shot", 0) > 0.3


def test_c14_a_third_pipeline_starves_md():
    """Without it, ending on RLD what misses at MD would look like a saving: it makes MD miss ever after."""
    _, rows = simulated("c14", limit_requests=800)
    assert rld_share(rows["three"]) > 3 * rld_share(rows["off"])
    to_rld = {name: (frame["pipeline"] == "P-RLD").mean() for name, frame in rows.items()}
    assert to_rld["off"] == 0
    assert to_rld["three"] > 2 * to_rld["three_by_p"] > 0  # by P's hit the loop is open: only the misses themselves
    assert rows["three"]["ttft"].quantile(0.9) > 2 * rows["off"]["ttft"].quantile(0.9)  # a small RLD is overloaded
    # the look-alike in the right policy: what is under way is sent again
    assert wan_bytes(rows["blind"]) > 2 * wan_bytes(rows["off"])


def test_c15_singular_traffic_stays_at_home():
    """Without it, the filter's saving could be the share of the requests, or come without any singular traffic."""
    _, rows = simulated("c15", limit_requests=800)
    singular = rows["off"]["kind"] == "singular"
    assert 0.02 < singular.mean() < 0.08
    for name in ("oracle", "predictor"):
        assert wan_bytes(rows[name]) < (1 - 3 * singular.mean()) * wan_bytes(rows["off"])
    trace = trace_of(str(CLAIMS / "traces" / "pdd-agentic.trace.jsonl.zst"))
    # the price: what builds on a prompt whose KV stayed at home misses at MD
    donors = rows["oracle"]["request_id"].map({row.request_id: row.prefix_of for row in trace.rows})
    home = rows["oracle"].loc[rows["oracle"]["pipeline"] == "P-RLD", "request_id"]
    following = donors.isin(home) & (rows["oracle"]["pipeline"] != "P-RLD")
    assert following.any() and wan_bytes(rows["oracle"][following]) > 1.3 * wan_bytes(rows["off"][following])
    others = [msgspec.structs.replace(row, input_tokens=min(row.input_tokens, 131_000)) for row in trace.rows]
    others = [
        msgspec.structs.replace(row, prefix_tokens=min(row.prefix_tokens, row.input_tokens - 1)) for row in others
    ]
    _, rows = simulated("c15", trace=msgspec.structs.replace(trace, rows=others[:400]))
    assert wan_bytes(rows["oracle"]) == wan_bytes(rows["off"]) == wan_bytes(rows["predictor"])


def stage_s(frame):
    """Prefill seconds a prompt at each hit of the saturated sweep (after the stage's cold donor)."""
    out = []
    for percent in range(0, 100, 2):
        ends = np.sort(frame.loc[frame["request_id"].str.startswith(f"h{percent:02d}"), "first_token_ns"].to_numpy())
        out.append((ends[-1] - ends[0]) / 1e9 / (len(ends) - 1))
    return np.array(out)


def dips(efficiency):
    """Hits (percent) at which the efficiency is lower than on either side."""
    inner = range(1, len(efficiency) - 1)
    return [
        2 * i for i in inner if efficiency[i] < efficiency[i - 1] - 1e-4 and efficiency[i] < efficiency[i + 1] - 1e-4
    ]


def test_c19_tail_chunks_dip_at_whole_chunks():
    """Without it, dips could be anywhere, or stay although nothing is chunked."""
    _, rows = simulated("c19")
    times = {name: stage_s(frame) for name, frame in rows.items()}
    efficiency = times["off"] / times["tails"]
    assert dips(efficiency) == [24, 48, 74]  # 64K in chunks of 16K
    assert (np.diff(1 / times["tails"]) > 0).all()  # requests a second rise all the same
    trace = trace_of(str(CLAIMS / "traces" / "saturated-sweep.trace.jsonl.zst"))
    rng = np.random.default_rng(1)
    scales = dict(zip([row.request_id for row in trace.rows], rng.uniform(0.6, 1.4, len(trace.rows)), strict=True))

    def scaled(row):
        scale = scales[row.request_id]
        length = int(row.input_tokens * scale)
        shared = int(row.prefix_tokens * min(scale, scales[row.prefix_of])) // 64 * 64 if row.prefix_of else 0
        return msgspec.structs.replace(row, input_tokens=length, prefix_tokens=shared)

    _, rows = simulated("c19", trace=msgspec.structs.replace(trace, rows=[scaled(row) for row in trace.rows]))
    mixed = stage_s(rows["off"]) / stage_s(rows["tails"])
    steps = {
        name: values[[12, 24, 37]] - values[[13, 25, 38]] for name, values in (("one", efficiency), ("mixed", mixed))
    }
    assert (steps["one"] < -0.003).all()  # from a dip to the next point: a step less
    assert (np.abs(steps["mixed"]) < 0.5 * np.abs(steps["one"])).all()  # off: lengths that vary by 40% smear it


def test_c20_the_bathtub_needs_dear_attention():
    """Without it, a falling curve of revenue could pass for the bathtub."""
    rows = simulate_frame(load_experiment(CLAIMS / "c20.toml"))
    hit = np.arange(0, 100, 2) / 100
    earned = {
        name: ((1 - hit) + 0.1 * hit) * 65_536 / stage_s(frame) for name, frame in rows.groupby("arm", sort=False)
    }
    assert (np.diff(earned["measured"]) < 0).all()  # its fixed cost a request makes it fall to the end
    lowest = int(earned["h200"].argmin())
    assert 0.4 < hit[lowest] < 0.8 and earned["h200"][-1] > 2 * earned["h200"][0]
