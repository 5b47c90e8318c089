"""The capacity search: on an arm whose knee is known, resumable, and saying why it stopped."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pddbench.analyze import capacity
from pddbench.analyze.capacity import Estimate, RunPoint, estimate, finished, isotonic, next_rate, point_of, ratio
from pddbench.cli import cli
from pddbench.report.capacity import json_schema
from pddbench.trace.canonical import write_trace
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.read import read_trace
from pddbench.workload.cycle import cycled
from tests.analyze.test_report import conforms
from tests.answer.queue_arm import covers, knee, search

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "traces/agentic-small.trace.jsonl.zst"


def test_searches_cover_the_known_knee():
    """A small version of the bench (100 searches): an interval that misses the knee promises what an arm cannot do."""
    found = [search(seed, budget=10, half_width=0.1) for seed in range(8)]
    assert sum(covers(one) for one in found) >= 7
    assert np.median([abs(one.rate / knee(0.9) - 1) for one in found]) < 0.04


def runs(*rows):
    """Runs of 300 requests with the given attainment."""
    return [RunPoint(rate, (int(share * 100),) * 3, (100,) * 3) for rate, share in rows]


def test_every_run_counts_and_none_is_final():
    """One unlucky run far below the knee must not end the search there, as it does in a bisection."""
    good = runs((1.0, 1.0), (2.0, 0.98), (2.4, 0.93), (2.6, 0.88), (3.0, 0.5), (4.0, 0.1))
    unlucky = [*good, RunPoint(1.5, (80, 90, 95), (100, 100, 100))]
    assert estimate(good, 0.9).rate == pytest.approx(2.5, rel=0.05)
    found = estimate(unlucky, 0.9)
    assert found.low is None or found.low < 2.5 < found.high
    assert next_rate(unlucky, 0.9, 1.0) > 1.9


def test_nothing_is_said_without_a_knee_between_the_runs():
    """All runs above or below the target leave the knee unknown: blank, with the reason."""
    found = estimate(runs((1, 1.0), (2, 1.0), (3, 0.99), (4, 0.98)), 0.9)
    assert found.rate is None and "not between them" in found.why
    assert next_rate(runs((1, 1.0)), 0.9, 1.0) == 2.0
    assert next_rate(runs((1, 0.1)), 0.9, 1.0) == 0.5
    assert estimate(runs((1, 1.0), (2, 0.0)), 0.9).why == "2 runs < 4"


def test_an_arm_that_misses_at_any_load_is_said_to(tmp_path):
    """Halving the rate for ever would end in two lucky requests and a capacity of nothing with an interval."""
    points = runs((1.0, 0.8), (0.5, 0.81), (0.25, 0.8))
    assert "misses the target at any load" in finished(points, estimate(points, 0.9), 0.05, 16)
    assert finished(runs((1.0, 0.2), (0.5, 0.5), (0.25, 0.8)), estimate(points, 0.9), 0.05, 16) is None


def test_isotonic_pools_neighbours():
    """Without a curve: 60% beside 80% at a lower rate are pooled, and the crossing is interpolated."""
    points = runs((1.0, 1.0), (2.0, 0.8), (4.0, 0.9), (8.0, 0.0))
    assert isotonic(points, 0.925) == pytest.approx(math.exp(math.log(8) / 4), rel=1e-6)
    assert isotonic(runs((1.0, 1.0)), 0.9) is None


def test_thirds_that_differ_widen_the_interval():
    """A run whose thirds are 100, 100 and 40% is no 240 independent requests in 300."""
    calm = [point_of(r, np.arange(300) % 10 < k) for r, k in ((1, 10), (2, 9), (2.2, 9), (2.5, 8), (3, 6), (4, 3))]
    wild = [RunPoint(p.rate, (p.total[0], p.total[1], max(0, sum(p.good) - 200)), p.total) for p in calm]
    assert capacity.thirds_dispersion(wild) > 5 * capacity.thirds_dispersion(calm)


def test_ratio_of_two_arms():
    """BCR against another arm: 2% and 3% combine to 3.6%, and a missing bound stays missing."""

    def one(rate, width):
        return Estimate(target=0.9, rate=rate, low=rate / (1 + width), high=rate * (1 + width), isotonic=None, runs=9,
                        dispersion=1.0)  # fmt: skip

    found = ratio(one(2.0, 0.02), one(1.0, 0.03))
    assert found.point == pytest.approx(2.0)
    assert math.log(found.high / 2) == pytest.approx(math.hypot(math.log(1.02), math.log(1.03)))
    assert ratio(Estimate(target=0.9, rate=1.0, low=None, high=1.1, isotonic=None, runs=4, dispersion=1.0),
                 one(1.0, 0.1)).low is None  # fmt: skip


def test_cycled_keeps_the_mix():
    """More sessions of one trace: own contexts for every copy, shared prefixes still shared, no id twice."""
    trace = read_trace(TRACE)
    sessions = {row.session_id for row in trace.rows}
    twice = cycled(trace, 2 * len(sessions))
    assert len(twice.rows) == 2 * len(trace.rows)
    assert len({row.request_id for row in twice.rows}) == len(twice.rows)
    by_id = {row.request_id: row for row in twice.rows}
    for row in twice.rows[len(trace.rows) :]:
        if row.prefix_of is not None:
            donor = by_id[row.prefix_of]
            own = donor.session_id == row.session_id
            assert own or "#" not in donor.session_id
        assert all(parent in by_id for parent in row.parents)
    assert len({row.session_id for row in cycled(trace, 5).rows}) == 5


EXPERIMENT = """
name = "tiny"
[workload]
trace = "{trace}"
arrival = "poisson"
session_rate = 1.0
idle_cap_s = 1.0
[slo]
ttft_sched_ms = 2000
[cost]
chips = {{ A = 2.0, B = 2.4 }}
line = 0.7
[[arm]]
name = "baseline"
emulated = "baseline"
roles = {{ P = {{ chip = "A", count = 1 }}, D = {{ chip = "A", count = 1 }} }}
"""


def small_trace(path):
    """Forty sessions of two turns of a few hundred tokens."""
    rows = [Row(f"s{s}t{t}", f"s{s}", t, 300 + 200 * t, 8, parents=(f"s{s}t{t - 1}",) if t else (), start_s=float(s),
                gap_s=0.5, prefix_of=f"s{s}t{t - 1}" if t else None, prefix_tokens=300 * t)
            for s in range(40) for t in range(2)]  # fmt: skip
    write_trace(Trace(Header(), rows), path)
    return path


def command(*words):
    """`pddbench capacity …`: exit code, output, error."""
    done = CliRunner().invoke(cli, ["capacity", *map(str, words)], standalone_mode=False)
    return done.return_value, done.output, done.exception


def test_the_command_stops_says_why_and_goes_on(tmp_path):
    """A budget that ran out must be said, and a second call with more must use the runs there are. What is saved is
    what the published schema promises to other tools."""
    file = tmp_path / "e.toml"
    file.write_text(EXPERIMENT.format(trace=small_trace(tmp_path / "t.trace.jsonl")))
    words = [file, "--simulate", "--out", tmp_path / "c", "--run-s", "10", "--warmup-s", "2", "--start-rate", "0.4",
             "--quiet"]  # fmt: skip
    code, text, error = command(*words, "--budget", "2")
    assert error is None and code == 0
    assert "budget of 2 runs used up" in text.replace("\n", " ")
    first = json.loads((tmp_path / "c/capacity.json").read_text())["arms"]["baseline"]["points"]
    code, text, error = command(*words, "--budget", "4", "--json")
    assert error is None
    found = json.loads(text)
    assert found["arms"]["baseline"]["points"][:2] == first and len(found["arms"]["baseline"]["points"]) == 4
    assert found["measured"] == "simulated" and found["answers"][0]["cost_per_hour"] == 4.0
    assert (tmp_path / "c/capacity.png").stat().st_size > 1000
    published = json.loads((ROOT / "pddbench/report/capacity.schema.json").read_text())
    assert published == json_schema()
    saved = json.loads((tmp_path / "c/capacity.json").read_text())
    assert saved == found and conforms(saved, published, published)
    assert sorted(saved["answers"][0]) == sorted(published["$defs"]["Answer"]["properties"])
    _, _, error = command(*words, "--target", "0.8")
    assert "another experiment, target" in str(error)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "90"], "90% is 0.9"),
        (["--arm", "nobody"], "no such arm"),
        (["--splits", "2"], "--splits needs --simulate"),
        (["--run-s", "0"], "--run-s"),
    ],
)
def test_bad_searches_end_in_a_sentence(tmp_path, words, said):
    """What cannot be used is said before any traffic."""
    file = tmp_path / "e.toml"
    file.write_text(EXPERIMENT.format(trace=TRACE))
    _, _, error = command(file, "--out", tmp_path / "c", *words)
    assert said in str(error)


def test_no_objectives_no_capacity(tmp_path):
    """Without an SLO there is no knee to look for."""
    file = tmp_path / "e.toml"
    file.write_text(EXPERIMENT.format(trace=TRACE).replace("[slo]\nttft_sched_ms = 2000\n", ""))
    _, _, error = command(file, "--simulate", "--out", tmp_path / "c")
    assert "needs objectives" in str(error)
