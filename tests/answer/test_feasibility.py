"""KV against a line, to the published digits."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from pddbench.analyze import economy
from pddbench.analyze import feasibility as f
from pddbench.cli import cli


def test_c18_eighty_prompts_of_64k():
    """C18: even compressed KV: 80 prompts of 64K are about 23 GB, over 180 Gbit/s when all go in a second."""
    one = f.transfer(64_000, 0.0, 4_500, 100e9)
    together = f.burst(one, 80, 1.0, 100e9)
    assert round(together.kv_bytes / 1e9) == 23
    assert together.needed_bit_s > 180e9
    assert together.seconds_on_line == pytest.approx(1.843, abs=0.001)


def test_c17_a_prompt_of_100k():
    """C17: at 50 KB a token a 100K prompt is 5 GB; ten a second are 400 Gbit/s, more than a line of 100 has."""
    one = f.transfer(100_000, 0.0, 50_000, 100e9)
    found = f.feasibility(one, 10, 100e9)
    assert one.kv_bytes == 5e9
    assert found.offered_bit_s == pytest.approx(400e9) and not found.fits
    assert found.hit_needed == pytest.approx(0.75)
    at_that_hit = f.feasibility(f.transfer(100_000, 0.75, 50_000, 100e9), 10, 100e9)
    assert at_that_hit.line_share == pytest.approx(1.0)


def test_c5_a_mean_hit_is_not_a_token_weighted_one():
    """C5: ten times less needs 90% *by tokens*; 87% is 7.7 times."""
    assert f.bytes_saved_by_cache(0.9) == pytest.approx(10)
    assert f.bytes_saved_by_cache(0.87) == pytest.approx(7.69, abs=0.01)


def test_fixed_part_that_never_fits():
    """A model with a fixed part: no hit rate helps when that alone fills the line."""
    one = f.transfer(1000, 0.5, 1000, 1e6, base_bytes=1e6)
    assert f.feasibility(one, 1.0, 1e6, base_bytes=1e6).hit_needed is None


def test_c16_and_c24_to_the_published_digits():
    """C16: +27.8% throughput at 92.9% of the cost is BCR +37.57%, and -27.3% a request, not -37.5% (C24)."""
    gain = economy.bcr_gain(1.278, 0.929)
    assert round(gain, 4) == 1.3757 and round(economy.bcr_gain(1.278, 0.965), 3) == 1.324
    assert round(economy.cost_per_request_change(gain), 3) == -0.273
    assert round(economy.implied_line(88, 0.965, [(43, 1.0), (32, 1.3)]), 2) == 0.32
    assert round(economy.implied_line(88, 0.929, [(43, 1.0), (32, 1.2)]), 2) == 0.35


def test_c16_region():
    """Beyond arithmetic C16 is a region: at its own limit both clusters are just enough, and not beyond it."""
    split = economy.Split()
    limit = economy.rho_limit(1.278, split)
    assert round(limit, 2) == 0.52
    beta = economy.beta_needed(1.278, limit, split)
    assert round(beta * (1 + limit), 2) == 3.30
    assert economy.throughput_ratio(limit, beta, split) == pytest.approx(1.278)
    assert economy.throughput_ratio(limit * 1.1, beta * 2, split) < 1.278
    assert economy.throughput_ratio(limit * 0.9, beta * 0.9, split) < 1.278


def run(*words):
    """The command; its return value and output."""
    done = CliRunner().invoke(cli, ["feasibility", *words], standalone_mode=False)
    return done.return_value, done.output, done.exception


def test_command_says_whether_it_fits():
    """The command of the docs, and its JSON."""
    code, text, _ = run("--kv-bytes", "50000", "--input", "100000", "--rate", "10", "--line-gbit", "100")
    assert code == 0 and "does not fit" in text and "75%" in text
    _, text, _ = run("--kv-bytes", "4500", "--input", "64000", "--burst", "80", "--line-gbit", "100", "--json")
    assert json.loads(text)["burst"]["needed_bit_s"] == pytest.approx(184.32e9)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--input", "10"], "exactly one"),
        (["--model", "deepseek", "--input", "10"], "unknown"),
        (["--kv-bytes", "5"], "length of a prompt"),
        (["--kv-bytes", "5", "--input", "10", "--hit", "90"], "90% is 0.9"),
        (["--kv-bytes", "nan", "--input", "10"], "--kv-bytes"),
        (["--kv-bytes", "5", "--input", "10", "--line-gbit", "0"], "--line-gbit"),
    ],
)
def test_bad_questions_end_in_a_sentence(words, said):
    """What cannot be used is named, before a wrong figure is printed."""
    _, _, error = run(*words)
    assert said in str(error)
