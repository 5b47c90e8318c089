"""Intervals: known answers on seeded populations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pddbench.analyze import intervals
from pddbench.analyze.binomial import beta_quantile, clopper_pearson, t_quantile
from pddbench.analyze.intervals import as_float, quantile_figure, rows_needed, share_figure
from pddbench.analyze.quantiles import quantile


def draw(rng, sessions, strength=0.5):
    """Latencies of sessions of unequal size (1-40) whose rows share a session effect; values ascending, with codes."""
    size = np.clip(np.exp(rng.normal(1.5, 0.8, sessions)).astype(int), 1, 40)
    code = np.repeat(np.arange(sessions), size)
    values = np.exp(strength * rng.standard_normal(sessions)[code] + 0.4 * rng.standard_normal(len(code)))
    order = np.argsort(values)
    return values[order], code[order]


def test_binomial_helpers_against_published_values():
    """Without scipy these are ours: tables of t, and Clopper-Pearson of 8 in 10 and 0 in 20 ("rule of three")."""
    assert t_quantile(0.975, 1) == pytest.approx(12.7062, abs=1e-4)
    assert t_quantile(0.975, 10) == pytest.approx(2.2281, abs=1e-4)
    assert clopper_pearson(8, 10) == pytest.approx((0.4439, 0.9748), abs=1e-4)
    assert clopper_pearson(0, 20) == pytest.approx((0.0, 0.1684), abs=1e-4)
    assert beta_quantile(0.5, 3, 3) == pytest.approx(0.5)


def test_rows_needed_are_the_published_thresholds():
    """The refusal thresholds that README and METRICS.md promise."""
    assert [rows_needed(q) for q in (0.5, 0.9, 0.99, 0.999)] == [6, 36, 368, 3688]


@pytest.mark.parametrize("q", [0.5, 0.9])
def test_coverage_by_session_and_not_by_request(q):
    """95% intervals must hold the truth 93-97% of the time at 300 sessions; by request they are far too narrow."""
    truth = quantile(draw(np.random.default_rng(0), 60_000)[0], q)
    rng = np.random.default_rng(123)
    by_session = by_request = 0
    draws = 300
    for _ in range(draws):
        values, code = draw(rng, 300)
        found = quantile_figure(values, code, 300, q, "s")
        by_session += as_float(found.low) <= truth <= as_float(found.high)
        naive = quantile_figure(values, np.arange(len(values)), len(values), q, "s")
        by_request += as_float(naive.low) <= truth <= as_float(naive.high)
    assert 0.93 <= by_session / draws <= 0.97
    assert by_request / draws < 0.75


def test_share_covers():
    """SLO attainment by session: an interval by request would promise too much."""
    rng = np.random.default_rng(5)
    hit = 0
    for _ in range(200):
        p = rng.beta(8, 2, 150)  # each session has its own chance, mean 0.8
        code = np.repeat(np.arange(150), 5)
        found = share_figure(rng.random(750) < p[code], code, 150)
        hit += as_float(found.low) <= 0.8 <= as_float(found.high)
    assert 0.92 <= hit / 200 <= 0.99


def test_withheld_below_the_threshold():
    """35 effective rows have no upper bound for P90: the figure must be blank and say why."""
    values, code = np.arange(35.0), np.arange(35)
    found = quantile_figure(values, code, 35, 0.9, "s")
    assert found.point is found.low is found.high is None
    assert found.withheld is not None and found.withheld.startswith("n_eff ") and found.withheld.endswith("< 36")
    big = quantile_figure(np.arange(60.0), np.arange(60), 60, 0.9, "s")
    assert big.withheld is None and big.point == 53.0 and as_float(big.low) < 53 < as_float(big.high)
    assert quantile_figure(values, np.zeros(35, dtype=np.int64), 1, 0.5, "s").withheld == "one session"


def test_failures_are_infinite_and_bounds_follow():
    """With 8% failures P90 is finite but its upper bound is not; P95 is infinite itself."""
    values = np.concatenate([np.arange(184.0), np.full(16, np.inf)])
    code = np.arange(200)
    p90 = quantile_figure(values, code, 200, 0.9, "s")
    assert p90.point == 179.0 and p90.high == "inf" and as_float(p90.low) < 179
    p95 = quantile_figure(values, code, 200, 0.95, "s")
    assert p95.point == "inf" and p95.high == "inf" and math.isfinite(as_float(p95.low))


def test_design_effect_of_copies_is_the_session_size():
    """Ten identical rows a session are worth one: the design effect must say 10."""
    rng = np.random.default_rng(3)
    code = np.repeat(np.arange(400), 10)
    found = intervals.spread(np.repeat(rng.random(400) < 0.3, 10), code, 400)
    assert found.deff == pytest.approx(10, rel=0.01)
    assert found.n_eff == pytest.approx(400, rel=0.02)


def test_draws_interval_with_unknown_draws():
    """inf - inf in 10% of the draws leaves no bound on either side; infinite draws give an infinite one."""
    good = np.linspace(0, 1, 1000)
    assert intervals.draws_interval(good) == pytest.approx((0.024, 0.974), abs=0.002)
    lost = np.where(np.arange(1000) % 10 == 0, np.nan, good)
    assert intervals.draws_interval(lost) == (None, None)
    assert intervals.draws_interval(np.where(good > 0.9, np.inf, good))[1] == math.inf
