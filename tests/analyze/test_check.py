"""The grammar of `check`, and how thresholds come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddbench.analyze import registry
from pddbench.analyze.check import Ref, evaluate, exit_code, parse_check, parse_checks
from pddbench.analyze.dataset import Dataset
from pddbench.errors import InputError
from pddbench.runfolder.load import load

from .synth import Recipe, make_run

ARMS = ["baseline", "naive", "pdd"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return Dataset(load(make_run(tmp_path_factory.mktemp("run"), Recipe())))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("pdd.ttft.p90 < 30 s", 30.0),
        ("pdd.ttft.p99.9<=250ms", 0.25),
        ("pdd.itl.p99 > 20 us", 20e-6),
        ("pdd.slo_attainment.share >= 99 %", 0.99),
        ("pdd.slo_attainment.share >= 0.99", 0.99),
        ("pdd.goodput.rate > 1.5e1 1/s", 15.0),
        ("pdd.kv_wan_bytes.sum < 2 GB", 2e9),
        ("pdd.cost_per_mtok.value < 0.5", 0.5),
        ("pdd.seam_stall.p50 > -.5 s", -0.5),
        ("pdd.hit_served.token_weighted > 90%", 0.9),
    ],
)
def test_values_and_units(text, value):
    """Each documented unit must scale to the metric's own."""
    assert parse_check(text, ARMS).value == pytest.approx(value)


def test_comparison():
    """`k *` may be left out; both sides may name other metrics of the same unit."""
    check = parse_check("pdd.ttft.p90 < 1.2 * baseline.ttft.p90", ARMS)
    assert (check.factor, check.right) == (1.2, Ref("baseline", "ttft", "p90"))
    assert parse_check("pdd.ttft.p99.9 < pdd.e2e.p50", ARMS).factor == 1.0


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("pdd.ttft.p90 < 30", "needs a unit"),
        ("pdd.ttft.p90 < 30 tokens", "unit 'tokens'"),
        ("pdd.ttfft.p90 < 30 s", "did you mean 'ttft'"),
        ("pd.ttft.p90 < 30 s", "did you mean 'pdd'"),
        ("pdd.ttft.p91 < 30 s", "no 'p91'"),
        ("pdd.goodput.p90 < 30 1/s", "no 'p90'"),
        ("pdd.ttft.p90 = 30 s", "not of the form"),
        ("pdd.ttft < 30 s", "not of the form"),
        ("pdd.ttft.p90 < 2 * baseline.goodput.rate", "is in s"),
        ("", "not of the form"),
        ("pdd.ttft.p90 < 1 * 2 s", "not of the form"),
        ("pdd.ttft.p90 < 1e400 s", "not a finite number"),
        ("pdd.ttft.p90 < ٣ s", "not of the form"),
    ],
)
def test_bad_expressions_are_input_errors(text, problem):
    """Whatever cannot be used ends in one sentence before traffic, not in a check that passes by accident."""
    with pytest.raises(InputError, match=problem):
        parse_check(text, ARMS)


@given(st.sampled_from(ARMS), st.sampled_from(registry.keys()), st.sampled_from(["<", "<=", ">", ">="]),
       st.floats(0, 1e6, allow_nan=False), st.sampled_from(["", " ", "  "]))  # fmt: skip
def test_every_name_parses(arm, key, op, number, blank):
    """Every documented name must be accepted, however it is spaced."""
    metric, stat = key.split(".", 1)
    unit = {"tokens": "tokens", "bytes": "B"}.get(registry.METRICS[metric].unit, registry.METRICS[metric].unit)
    check = parse_check(f"{blank}{arm}.{key}{blank}{op}{blank}{number!r} {unit}{blank}", ARMS)
    assert (check.left, check.op, check.value) == (Ref(arm, metric, stat), op, pytest.approx(number))


@given(st.text(alphabet="pd.tf90<>=*1 s-e%", max_size=40))
def test_parser_never_breaks(text):
    """Any text is either a check or one InputError."""
    try:
        parse_check(text, ARMS)
    except InputError as error:
        assert "check" in str(error)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("baseline.ttft.p90 < 600 ms", "pass"),
        ("baseline.ttft.p90 < 461 ms", "undecided"),
        ("baseline.ttft.p90 < 400 ms", "breach"),
        ("baseline.ttft.p90 > 400 ms", "pass"),
        ("baseline.ttft.p90 > 600 ms", "breach"),
        ("baseline.ttft.p99 < 60 s", "withheld"),
        ("baseline.seam_stall.p50 < 60 s", "withheld"),
        ("naive.ttft.p90 < 1.2 * baseline.ttft.p90", "breach"),
        ("pdd.ttft.p90 <= 1.01 * baseline.ttft.p90", "pass"),
        ("naive.ttft.p90 < 3.245 * baseline.ttft.p90", "undecided"),
        ("baseline.cost_per_hour.value <= 16", "pass"),
        ("baseline.cost_per_hour.value < 16", "breach"),
        ("pdd.goodput.rate > 1 1/s", "pass"),
        ("pdd.ok.share >= 90 %", "pass"),
        ("pdd.cost_per_mtok.value < baseline.cost_per_mtok.value", "breach"),
    ],
)
def test_outcomes(data, text, status):
    """Decided by the interval: breach only when its better end violates, pass only when its worse end holds."""
    assert evaluate([parse_check(text, ARMS)], data)[0].status == status


def test_exit_codes(data):
    """99 for a breach, 98 before it for a withheld figure, `warn` never counts, undecided only with strict."""

    def code(strict=False, **checks):
        return exit_code(evaluate(parse_checks(checks, ARMS), data), strict)

    breach, undecided, withheld = "baseline.ttft.p90 < 0.4 s", "baseline.ttft.p90 < 461 ms", "pdd.ttft.p99 < 1 s"
    assert code(**{breach: "fail"}) == 99
    assert code(**{breach: "warn"}) == 0
    assert code(**{breach: "fail", withheld: "fail"}) == 98
    assert code(**{undecided: "fail"}) == 0
    assert code(strict=True, **{undecided: "fail"}) == 99
    with pytest.raises(InputError, match="neither"):
        code(**{breach: "maybe"})
