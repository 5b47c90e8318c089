"""The experiments of workloads/claims, small: each claim's effect by interval, and gone without its mechanism."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from pddbench.claims import bathtub, docs, live, mechanisms
from pddbench.claims.conduct import read_result
from pddbench.claims.experiments import Bench, workloads
from pddbench.claims.mechanisms import MECHANISMS
from pddbench.claims.recipes import RECIPES
from pddbench.claims.table import CLAIMS
from pddbench.trace.read import read_trace


@pytest.fixture(scope="module")
def bench():
    made = Bench("small")
    yield made
    made.close()


def verdicts(found):
    return {part.name: part.verdict for part in found.parts}


def gone(found):
    """With the mechanism off the effect is gone, by interval."""
    assert found.off and {part.verdict for part in found.off} == {"gone"}
    return True


@pytest.mark.parametrize("name", ["C6", "C7", "C11", "C12", "C15"])
def test_the_effect_is_there_and_gone_without_its_mechanism(bench, name):
    """Without it, a claim could agree by construction: its effect must vanish with what is said to cause it."""
    found = MECHANISMS[name].simulated(bench)
    assert set(verdicts(found).values()) == {"agrees"} and gone(found)
    assert all(part.found.low is not None for part in found.parts if part.found.unit == "s")
    assert found.hangs_on and "requests" in found.size


def test_c05_saves_what_hits_at_md(bench):
    """Without it, DRC would be said to save ten times whatever the hits: it saves 1 / (1 - token-weighted hit)."""
    found = MECHANISMS["C5"].simulated(bench)
    saved, law = found.parts
    assert law.verdict == "agrees" and gone(found)
    assert saved.found.low < saved.found.point < 9 and saved.verdict != "agrees"  # 84% by tokens here, not 90%


def test_c09_who_makes_the_tokens(bench):
    """Without it, the relay's share could be a free figure: a fuller batch makes fewer tokens meanwhile."""
    found = MECHANISMS["C9"].simulated(bench)
    assert set(verdicts(found).values()) == {"differs"} and gone(found)
    data = bench.data("c09")
    alone, four = (data.arms[name].point("rld_tokens", "share") for name in ("pdd", "rld4"))
    assert alone < four


def test_c10_ids_against_kv(bench):
    """Without it, a hand-off of KV could look as steady as one of ids, or be quicker on a new connection too."""
    found = MECHANISMS["C10"].simulated(bench)
    mean, spread, *protocol = found.parts
    assert mean.verdict == spread.verdict == "agrees" and gone(found)
    assert {part.verdict for part in protocol} == {"differs"}  # bytes an id are the claim's protocol's, not ours
    arms = bench.data("c10").arms
    assert arms["direct"].point("seam_stall", "mean") > arms["direct_warm"].point("seam_stall", "mean")


def test_c13_catch_up_trades_bursts_for_rounds(bench):
    """Without it, catch-up could bring relief where there is nothing to catch up, or rounds and no relief."""
    found = MECHANISMS["C13"].simulated(bench)
    relief = [part.verdict for part in found.parts if part.name.startswith("ITL P99.9")]
    assert relief == ["agrees", "agrees"] and gone(found)
    rows = bench.data("c13").arms["catch64"].rows
    assert rows["handoff_rounds"].mean() > 1.5


def test_c13_the_mode_follows_the_load_of_rld(bench):
    """Without it, dynamic would be one of the two modes under another name."""
    modes = {}
    for rate, limit in ((0.01, 200), (2.0, 480)):
        data = bench.data("c13", session_rate=rate, limit_requests=limit, arms=["dynamic"])
        mode = data.run.requests.loc[data.run.requests["arm"] == "dynamic", "handoff_mode"]
        modes[rate] = mode.value_counts(normalize=True).to_dict()
    assert modes[0.01] == {"catch_up": 1.0}
    assert modes[2.0].get("one_shot", 0) > 0.3


def test_c14_a_third_pipeline_starves_md(bench):
    """Without it, ending on RLD what misses at MD would look like a saving: it makes MD miss ever after."""
    found = mechanisms.c14(bench)
    gap, share, collapse, swing = found.parts
    assert gap.verdict == share.verdict == "agrees" and gone(found)
    assert collapse.found.point > 2 and swing.verdict == "differs"  # it steps and does not swing
    data = bench.data("c14", seed=1).arms
    by_p, by_md = ((data[name].rows["pipeline"] == "P-RLD").mean() for name in ("p_2", "md_2"))
    assert by_md > 2 * by_p > 0  # by P's hit the loop is open: only the misses themselves
    blind = bench.data("c14-blind", limit_requests=800).arms
    assert blind["blind"].point("kv_wan_bytes", "sum") > 2 * blind["two_8"].point("kv_wan_bytes", "sum")


def test_c15_the_price_of_the_filter(bench):
    """Without it, the filter would look free: what builds on a prompt whose KV stayed at home misses at MD."""
    data = bench.data("c15").arms
    trace = bench.trace("c15", 1)
    donors = {row.request_id: row.prefix_of for row in trace.rows}
    rows = data["oracle"].rows.set_index("request_id")
    home = set(rows.index[rows["pipeline"] == "P-RLD"])
    after = [name for name in rows.index if donors[name] in home and name not in home]
    before = data["singular_off"].rows.set_index("request_id")
    assert after and rows.loc[after, "kv_wan_bytes"].sum() > 1.3 * before.loc[after, "kv_wan_bytes"].sum()


def test_c19_tail_chunks_dip_below_whole_chunks(bench):
    """Without it, dips could be anywhere, or stay although lengths vary: the finder finds those three and no other."""
    found = mechanisms.c19(bench)
    assert "dips by interval at 24%, 48%, 74% hit (3 where" in found.note and "vary by 20% at none" in found.note
    assert [part.verdict for part in found.parts] == ["agrees"] * 4 + ["differs", "agrees"]  # 48% is not near 40%
    assert [part.verdict for part in found.off] == ["gone", "gone", "undecided"]  # at 74% something is left


def test_c19_nothing_dips_by_chance():
    """Without it, a finder of dips by interval could find them in noise: 48 places are looked at."""
    rng = np.random.default_rng(3)
    hits = sum(bool(bathtub.dips(list(1 + 0.01 * rng.normal(size=(6, len(bathtub.HIT)))))) for _ in range(300))
    assert hits <= 0.08 * 300


def test_c20_the_bathtub_needs_dear_attention(bench):
    """Without it, a falling curve of revenue could pass for the bathtub."""
    found = mechanisms.c20(bench)
    flat = [part.name for part in found.parts if part.verdict != "agrees"]
    assert flat == ["revenue at 98% hit / lowest, measured law, cached at 10%"]  # its fixed cost a request
    assert gone(found)


def test_shipped_traces_are_those_of_the_recipes():
    """Without it, an experiment could be run on another trace than the one its recipe says."""
    files = [*(workloads() / "traces").glob("*.zst"), *(workloads() / "live" / "traces").glob("*.zst")]
    assert len(files) == 4
    for file in files:
        made = RECIPES[file.name.removesuffix(".trace.jsonl.zst")](1)
        assert msgspec.json.encode(read_trace(file).rows) == msgspec.json.encode(made.rows)


def test_every_experiment_can_be_read(monkeypatch):
    """Without it, a full-size or live file could break unnoticed, since the ordinary tests do not run them."""
    from pddbench.runner.prepare import arm_setup
    from pddbench.workload.load import load_experiment

    files = sorted(workloads().rglob("*.toml"))
    assert len(files) >= 30
    for file in files:
        experiment = load_experiment(file)
        name = experiment.workload.trace.rsplit("/", 1)[1].removesuffix(".trace.jsonl.zst")
        assert name in RECIPES, file
        for arm in experiment.arm:
            arm_setup(arm, experiment, "model")


def test_an_arm_is_simulated_once(bench):
    """Without it, full-size experiments that share arms would cost twice the time."""
    first = bench.data("c10").run.path / "requests" / "direct.1.parquet"
    second = bench.data("c11").run.path / "requests" / "direct.1.parquet"
    assert first.stat().st_ino == second.stat().st_ino


def test_a_run_shows_each_claim_whose_arms_it_has(bench):
    """Without it, a live run could be measured by other rules than the simulated one, or for a claim it cannot show."""
    texts = {claim.id: claim.text for claim in CLAIMS}
    rows = {row.id: row for row in live.measure_live([bench.data("c07")], texts)}
    assert list(rows) == ["C7", "C8", "C9"]
    assert {row.where for row in rows.values()} == {"emulated"}
    assert [part.found for part in rows["C7"].parts] == [
        part.found for part in MECHANISMS["C7"].simulated(bench).parts
    ] and rows["C7"].off


def test_docs_are_made_from_the_results():
    """Without it, the published table could say what nobody measured, or leave out a claim."""
    full, run = (read_result(docs.DOCS / "claims" / f"{kind}.json") for kind in ("full", "live"))
    text = (docs.DOCS / "claims.md").read_text(encoding="utf-8")
    assert docs.page(text, full, run) == text, "python -m pddbench.claims.docs"
    assert list(full) == [f"C{n}" for n in range(1, 27)]
    left = [(row.id, part.name[:24]) for row in full.values() for part in row.off if part.verdict != "gone"]
    assert left == [("C19", "efficiency lost at 74% h")]
    assert {"C7", "C11"} <= set(run) and all(row.date for row in (*full.values(), *run.values()))
