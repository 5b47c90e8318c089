"""Capacity: void runs are counted and not used, a killed search goes on, curves have ceilings, hits are varied."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from pddbench.analyze.capacity import Estimate, RunPoint, estimate, finished
from pddbench.errors import InputError
from pddbench.report.hits import lines, over_hits
from pddbench.report.money import json_schema as money_schema
from pddbench.runner.capacity import VOID, ArmSearch, Point, SearchOptions, judge, take_up, used
from pddbench.runner.capacity_hits import HitRow, Hits
from pddbench.workload.rehit import planned_hit, with_hit
from tests.analyze.test_report import conforms
from tests.answer.test_capacity import EXPERIMENT, ROOT, runs, small_trace
from tests.answer.test_money import command


def point(rate, invalid=()):
    """A run of 300 requests that all met the objectives."""
    return Point(rate=rate, good=[100] * 3, total=[100] * 3, sessions=50, seed=1, requests_a_session=2.0,
                 invalid=list(invalid))  # fmt: skip


def test_void_runs_are_counted_and_not_used():
    """A busy machine must neither move the capacity nor end a search for good, and must not be asked for ever."""
    options = SearchOptions(voids=2, budget=9)
    found = ArmSearch(points=[point(1.0), point(2.0, ["send_lag"])])
    judge(found, options)
    assert found.stopped is None and [one.rate for one in used(found)] == [1.0]
    found.points.append(point(2.0, ["emulator_late"]))
    judge(found, options)
    assert found.stopped.startswith(VOID) and "2 runs" in found.stopped and "emulator_late" in found.stopped
    take_up(found, options)
    assert found.stopped is None
    found.points += [point(2.0, ["send_lag"])] * 2
    judge(found, options)
    assert found.stopped.startswith(VOID)


def test_a_ceiling_is_no_slope():
    """Prompts that miss at any load (here 4%) must not flatten the curve and move the knee."""
    rates = np.array([0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.05, 1.1, 1.2])
    share = 0.96 / (1 + np.exp(-25 * (np.log(1.06) - np.log(rates))))
    points = [RunPoint(float(x), (round(1000 * p),) * 3, (1000,) * 3) for x, p in zip(rates, share, strict=True)]
    found = estimate(points, 0.9)
    truth = 1.06 * np.exp(-np.log(0.9 / 0.06) / 25)
    assert found.rate == pytest.approx(truth, rel=0.01)
    assert found.ceiling == pytest.approx(0.96, abs=0.011)
    assert found.half_width < 0.05


def test_queues_that_have_not_settled_are_said():
    """Runs whose last third is worse than their first below the knee are too short: longer ones say less capacity."""
    short = [RunPoint(r, (100, 97, 90 - i), (100,) * 3) for i, r in enumerate((1.0, 1.1, 1.2, 1.3))]
    above = runs((1.5, 0.6), (1.6, 0.4))
    assert estimate([*short, *above], 0.9).settling < -0.05
    assert estimate([*runs((1.0, 0.98), (1.1, 0.97), (1.2, 0.96), (1.3, 0.95)), *above], 0.9).settling is None


def test_few_requests_at_hardly_any_load_end_the_search():
    """50% of 22 and 46% of 13 requests are no reason to halve the rate until there is no request at all."""
    points = [RunPoint(0.25, (13, 13, 14), (22, 22, 22)), RunPoint(0.06, (4, 4, 3), (7, 7, 8)),
              RunPoint(0.03, (2, 2, 2), (4, 4, 5)), RunPoint(0.5, (3, 3, 2), (33, 33, 33))]  # fmt: skip
    assert "misses the target at any load" in finished(points, estimate(points, 0.9), 0.05, 16)


def test_hits_are_varied_without_changing_lengths(tmp_path):
    """A hit rate that came with shorter prompts would show the prompts' effect, not the cache's."""
    from pddbench.trace.read import read_trace

    trace = read_trace(small_trace(tmp_path / "t.trace.jsonl"))
    now = planned_hit(trace)
    for hit in (0.0, now / 2, now, now + 0.01):
        made = with_hit(trace, hit)
        assert planned_hit(made) == pytest.approx(hit, abs=2e-3)
        assert [r.input_tokens for r in made.rows] == [r.input_tokens for r in trace.rows]
        assert all(r.prefix_of is not None or not r.prefix_tokens for r in made.rows)
    with pytest.raises(InputError, match="at most"):
        with_hit(trace, 0.9)


def test_hits_and_their_money(tmp_path):
    """The command of the docs: capacities at two hits, the best count of relays anew, money at other prices."""
    file = tmp_path / "e.toml"
    text = EXPERIMENT.format(trace=small_trace(tmp_path / "t.trace.jsonl"))
    pdd = (
        text[text.index("[[arm]]") :]
        .replace("baseline", "pdd")
        .replace("D =", "MD =")
        .replace('"A", count = 1 } }', '"B", count = 1 } }')
    )
    file.write_text(text + pdd)
    out = tmp_path / "c"
    words = ("capacity", file, "--simulate", "--hits", "0.1,0.3", "--relays", "2", "--run-s", "10", "--warmup-s", "2",
             "--start-rate", "0.5", "--budget", "4", "--out", out, "--quiet")  # fmt: skip
    code, _, error = command(*words)
    assert error is None and code == 0
    rows = json.loads((out / "hits.json").read_text())["rows"]
    assert {(round(row["hit"], 1), row["arm"]) for row in rows} == {
        (hit, arm) for hit in (0.1, 0.3) for arm in ("baseline", "pdd", "pdd-rld2")
    }
    for hit in (0.1, 0.3):
        best = [row for row in rows if round(row["hit"], 1) == hit and row["best"] and row["of"] == "pdd"]
        assert len(best) <= 1
    code, said, error = command("money", out, "--price", "B=5")
    assert error is None and "over the hit rate" in said
    saved = json.loads((out / "money.json").read_text())
    published = json.loads((ROOT / "pddbench/report/money.schema.json").read_text())
    assert published == money_schema() and conforms(saved, published, published)
    assert saved["prices"] == {"A": 2.0, "B": 5.0} and saved["line"] == 0.7
    _, _, error = command("money", out, "--line", "inf")
    assert "not a finite number" in str(error)


def test_constant_arrivals_are_not_measured_anew(tmp_path):
    """A run with another seed is the same run there: to call it a second measurement was untrue."""
    file = tmp_path / "e.toml"
    text = EXPERIMENT.format(trace=small_trace(tmp_path / "t.trace.jsonl"))
    pdd = text[text.index("[[arm]]") :].replace("baseline", "pdd").replace("D =", "MD =")
    file.write_text((text + pdd).replace('"poisson"', '"constant"'))
    out = tmp_path / "c"
    words = ("capacity", file, "--simulate", "--hits", "0.3", "--relays", "2", "--run-s", "10", "--warmup-s", "2",
             "--start-rate", "0.5", "--budget", "3", "--seed", "7", "--out", out, "--quiet")  # fmt: skip
    code, said, error = command(*words)
    assert error is None and code == 0
    found = json.loads((out / "hits.json").read_text())
    assert found["seeded"] is False and not any(row["anew"] for row in found["rows"])
    assert not list(out.rglob("anew")) and "measured anew" not in said
    assert "--seed: with arrival = 'constant' a seed changes nothing" in said


def hit_table(*estimates, seeded=True):
    """What is said of an arm each at one hit: `a` the first, then `b`."""
    rows = [
        HitRow(hit=0.5, arm=name, of=name, best=one.rate is not None, anew=False, estimate=one, uses_line=False,
               roles={"P": {"chip": "A", "count": 1}}, cost_per_hour=2.0, requests_a_session=3.0, runs=4,
               input_tokens_a_session=900.0, cached_tokens_a_session=450.0, output_tokens_a_session=30.0)
        for name, one in zip("ab", estimates, strict=True)
    ]  # fmt: skip
    found = Hits(seeded=seeded, name="x", measured="simulated", target=0.9, slo={}, currency="USD", prices={"A": 2.0},
                 line=0.0, first="a", rows=rows)  # fmt: skip
    return "\n".join(lines(over_hits(found, found.prices, 0.0), "USD"))


def test_withheld_intervals_make_no_best():
    """Points without any interval were starred, and "even at none" was said of arms that were never compared."""

    def rate(at, low, high, why=None):
        return Estimate(target=0.9, rate=at, low=low, high=high, isotonic=at, runs=4, dispersion=1.0, why=why)

    bare = hit_table(rate(1.0, None, None), rate(1.2, None, None))
    assert "*a" not in bare and "*b" not in bare and "at none of" not in bare and "earns least" not in bare
    assert "none is best" in bare and "left out of the best at 50.0%: b (its interval is withheld)" in bare
    some = hit_table(rate(1.0, 0.9, 1.1), rate(None, None, None, "too few runs"))
    assert "*a" in some and "left out of the best at 50.0%: b (too few runs)" in some and "none is best" not in some
    once = hit_table(rate(1.0, 0.9, 1.1), rate(1.2, 1.1, 1.3), seeded=False)
    assert "were not measured a second time" in once and "measured anew" not in once
    both = hit_table(rate(1.0, 0.9, 1.1), rate(1.2, 1.1, 1.3))
    assert "*a" in both and "*b" in both and "left out" not in both and "b even with a: at none of these hits" in both


def test_a_killed_search_goes_on(tmp_path):
    """SIGKILL between two runs must lose none of those that were saved."""
    file, out = tmp_path / "e.toml", tmp_path / "c"
    file.write_text(EXPERIMENT.format(trace=small_trace(tmp_path / "t.trace.jsonl")))
    words = [sys.executable, "-m", "pddbench", "capacity", str(file), "--simulate", "--out", str(out), "--run-s", "10",
             "--warmup-s", "2", "--start-rate", "0.4", "--half-width", "0.001", "--quiet", "--budget"]  # fmt: skip
    with subprocess.Popen([*words, "500"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        while child.poll() is None and not (out / "capacity.json").exists():
            time.sleep(0.02)
        os.kill(child.pid, signal.SIGKILL)
    before = json.loads((out / "capacity.json").read_text())["arms"]["baseline"]["points"]
    assert 1 <= len(before) < 500
    subprocess.run([*words, str(len(before) + 1)], check=True, stdout=subprocess.DEVNULL)
    after = json.loads((out / "capacity.json").read_text())["arms"]["baseline"]["points"]
    assert after[: len(before)] == before and len(after) == len(before) + 1
