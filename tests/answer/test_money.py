"""Prices: the grid, even prices and equal cost are arithmetic; the bathtub is read off a hit sweep."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from pddbench.analyze import sensitivity
from pddbench.analyze.capacity import Estimate
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.economy import RLD_TOKENS
from pddbench.analyze.sensitivity import Deployment, grid
from pddbench.cli import cli
from pddbench.runfolder.load import load
from pddbench.runner.capacity import ArmSearch, State
from tests.analyze.synth import Recipe, make_run

A = {"P": {"chip": "A", "count": 4}, "D": {"chip": "A", "count": 4}}
AB = {"P": {"chip": "A", "count": 4}, "RLD": {"chip": "A", "count": 1}, "MD": {"chip": "B", "count": 4}}


def found(rate, width=0.05):
    """A measured capacity."""
    return Estimate(target=0.9, rate=rate, low=rate * (1 - width), high=rate * (1 + width), isotonic=rate, runs=12,
                    dispersion=1.0)  # fmt: skip


BASE = Deployment(name="baseline", estimate=found(1.0), roles=A, uses_line=False)
PDD = Deployment(name="pdd", estimate=found(1.5), roles=AB, uses_line=True)


def test_grid_even_prices_and_equal_cost():
    """Costs are linear in a price: at the even price the BCR ratio must be exactly 1."""
    out = grid(PDD, BASE, {"A": 2.0, "B": 2.4}, 0.7)
    cell = next(c for c in out.cells if c.price_ratio == 1.2 and c.line == 0.35)
    assert cell.bcr_ratio.point == pytest.approx(1.5 * 16.0 / (10.0 + 4 * 2.4 + 0.7))
    assert cell.bcr_ratio.low < cell.bcr_ratio.point < cell.bcr_ratio.high
    at = grid(
        PDD, BASE, {"A": 2.0, "B": 2.0 * out.even_price_ratio}, 0.7, ratios=(out.even_price_ratio,), lines=(0.35,)
    )
    assert at.cells[0].bcr_ratio.point == pytest.approx(1.0)
    line = grid(PDD, BASE, {"A": 2.0, "B": 2.4}, 0.7, ratios=(1.2,), lines=(out.even_line,))
    assert line.cells[0].bcr_ratio.point == pytest.approx(1.0)
    assert out.equal_cost_rate.point == pytest.approx(1.0 * 20.3 / 16.0)


def test_no_even_price_is_said():
    """An arm that carries less than its near chips cost alone is even at no price of the others."""
    poor = msgspec.structs.replace(PDD, estimate=found(0.3))
    assert grid(poor, BASE, {"A": 2.0, "B": 2.4}, 0.7).even_price_ratio is None


def test_balance_is_its_slowest_part():
    """With one relay the relay bounds, with many prefill does; the reference is exact at rho = 1."""
    out = sensitivity.balance({0.9: 1.0}, 1.0, 2.0, near=43, far=32, reference=88, relays=(1, 3, 20))
    by = {one.relays: one.throughput_ratio for one in out}
    assert by[1] == pytest.approx(1 / RLD_TOKENS * 2 / 88)
    assert by[3] == pytest.approx(40 * 2 / 88) and by[20] == pytest.approx(23 * 2 / 88)


def state(tmp_path):
    """A finished search of two arms."""
    arms = {one.name: ArmSearch(estimate=one.estimate, roles=one.roles, uses_line=one.uses_line, stopped="budget",
                                cost_per_hour=16.0) for one in (BASE, PDD)}  # fmt: skip
    made = State(name="x", config_sha256="0", measured="simulated", target=0.9, half_width=0.05, budget=16,
                 warmup_s=30.0, run_s=120.0, slo={"ttft_ms": 1.0}, currency="USD", seed=1, arms=arms)  # fmt: skip
    (tmp_path / "capacity.json").write_bytes(msgspec.json.encode(made))
    return tmp_path


def command(*words):
    """A command of pddbench."""
    done = CliRunner().invoke(cli, [str(word) for word in words], standalone_mode=False)
    return done.return_value, done.output, done.exception


def test_the_money_command(tmp_path):
    """What the docs show; the JSON holds the same cells."""
    words = ("money", state(tmp_path), "--price", "A=2", "--price", "B=2.4", "--line", "0.7")
    code, text, error = command(*words, "--input", "65536")
    assert error is None and code == 0
    assert "even at" in text and "equal cost" in text and "fluid bound" in text
    cells = json.loads(command(*words, "--json")[1])["grids"][0]["cells"]
    assert len(cells) == 30
    assert "no price for chip B" in str(command("money", tmp_path, "--price", "A=2")[2])
    assert "must be a number" in str(command("money", tmp_path, "--price", "A=x")[2])
    assert "cannot be read" in str(command("money", tmp_path / "no")[2])


def test_break_even_prices_cover_the_cost(tmp_path):
    """Sold at these prices the tokens must bring in exactly what the window cost."""
    part = Dataset(load(make_run(tmp_path / "r", Recipe(arms=("baseline",), sessions=30, repeats=1)))).arms["baseline"]
    price = {kind: part.point(f"even_price_{kind}", "value") for kind in ("input", "cached", "output")}
    rows = part.rows
    income = (
        (rows["prompt_tokens"] - rows["cached_tokens"]).sum() * price["input"]
        + rows["cached_tokens"].sum() * price["cached"]
        + rows["completion_tokens"].sum() * price["output"]
    ) / 1e6
    assert income == pytest.approx(part.cost_per_hour * part.window_s / 3600)
    assert price["cached"] == pytest.approx(0.1 * price["input"])
    per_session = part.point("cost_per_session", "value")
    assert per_session == pytest.approx(part.cost_per_hour * part.window_s / 3600 / 30)


def swept(arm, repeat, requests, events, server, health):
    """Stages of 64K prompts, saturated: a request takes what a law with tail chunks says."""
    from pddbench.analyze.bathtub import Law

    law, now = Law(fixed_s=0.0, tokens_s=68_000, chunk=16_384, step_s=0.3), 0.0
    hits = np.arange(0, 100, 4) / 100
    per = len(requests["outcome"]) // len(hits)
    for i in range(len(requests["outcome"])):
        stage = min(i // per, len(hits) - 1)
        hit = float(hits[stage])
        if i % per == 0 and stage * per == i:
            begin = now
        requests["session_id"][i] = f"h{round(100 * hit):02d}-{i}"
        requests["request_id"][i] = f"r{i}"
        requests["input_tokens_planned"][i] = requests["prompt_tokens"][i] = 65_536
        for name in ("cached_tokens_planned", "cached_tokens_possible", "cached_tokens_ceiling", "cached_tokens"):
            requests[name][i] = round(65_536 * hit)
        done = now + law.seconds(65_536, hit)
        for name in ("scheduled_ns", "ready_ns", "due_ns", "sent_ns", "first_byte_ns"):
            requests[name][i] = int(begin * 1e9)
        for name in ("first_chunk_ns", "first_token_ns", "second_token_ns", "last_token_ns", "end_ns"):
            requests[name][i] = int(done * 1e9)
        events["request_id"][i] = f"r{i}"
        now = done


def test_a_measured_sweep_shows_its_dips(tmp_path):
    """A sweep of any endpoint: the dips lie where tails of its chunk begin, and the advice says so."""
    folder = make_run(tmp_path / "r", Recipe(arms=("mine",), sessions=50, turns=4, tokens=4, repeats=1, edit=swept))
    code, text, error = command("bathtub", folder, "--chunk", "16384", "--json")
    assert error is None and code == 0
    (sweep,) = json.loads(text)
    assert sweep["saturated"] and len(sweep["stages"]) == 25
    assert [dip["tail_chunk"] for dip in sweep["dips"]] == [3, 2, 1]
    assert (folder / "bathtub.png").exists()
    assert "let tails share a step" in command("bathtub", folder, "--chunk", "16384")[1]


def test_stages_that_overlap_are_refused(tmp_path):
    """Rates of stages that ran at the same time mix: no curve may be read off them."""

    def edit(arm, repeat, requests, *rest):
        swept(arm, repeat, requests, *rest)
        for name in ("scheduled_ns", "ready_ns", "due_ns"):
            requests[name] = [0] * len(requests[name])

    folder = make_run(tmp_path / "r", Recipe(arms=("mine",), sessions=50, turns=4, tokens=4, repeats=1, edit=edit))
    code, text, _ = command("bathtub", folder)
    assert code == 98 and "stages share" in text and "dip" not in text


def test_other_runs_are_no_sweep(tmp_path):
    """A curve over hits that nobody swept would be noise with a shape."""
    folder = make_run(tmp_path / "r", Recipe(arms=("mine",), sessions=10, repeats=1))
    assert "not a hit sweep" in str(command("bathtub", folder)[2])
    assert "a share of the input price" in str(command("bathtub", folder, "--cached-price", "10")[2])


def test_a_price_of_no_chip_is_refused(tmp_path):
    """A misspelt chip was taken silently, and the answer was at the old price."""
    folder = state(tmp_path)
    _, _, error = command("money", folder, "--price", "A=2.0", "--price", "B=2.4", "--price", "ZZ=1")
    assert "--price ZZ: no such chip in the experiment; there are: A, B" in str(error) and error.exit_code == 2
    assert not (folder / "money.json").exists()
    assert command("money", folder, "--price", "A=2.0", "--price", "B=2.4", "--line", "1")[2] is None
