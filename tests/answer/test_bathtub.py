"""`pddbench bathtub` makes its sweep itself: stages whole and in order, rates right, intervals over rounds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from pddbench.cli import cli
from pddbench.report.bathtub import _Round, over_rounds
from pddbench.workload.sweep import SweepShape, sweep_trace

EXPERIMENT = """
name = "sweep"
[workload]
trace = "none.jsonl"
[wan]
backend = "model"
[[arm]]
name = "tails"
emulated = "baseline"
chunk_tokens = 2048
chunk_packing = false
roles = { P = { chip = "H20x8", count = COUNT }, D = { chip = "A", count = 4 } }
"""


def command(*words):
    """`pddbench bathtub …`: exit code, output, error."""
    done = CliRunner().invoke(cli, ["bathtub", *map(str, words)], standalone_mode=False)
    return done.return_value, done.output, done.exception


def swept(tmp_path, count, *words):
    """A sweep in virtual time, as it is saved."""
    file = tmp_path / f"{count}.toml"
    file.write_text(EXPERIMENT.replace("COUNT", str(count)))
    out = tmp_path / f"out{count}"
    code, text, error = command(file, "--simulate", "--length", "8192", "--out", out, "--quiet", *words)
    assert error is None and code == 0, text
    return json.loads((out / "bathtub.json").read_text())[0], text


def test_stages_are_whole_and_ordered():
    """A stage that began before the last one ended would mix their rates; a donor that came late would be missed."""
    rows = sweep_trace(SweepShape(length=8192, step=0.1, requests=3)).rows
    by_id = {row.request_id: row for row in rows}
    assert [row.request_id for row in rows[:3]] == ["h00-0", "h00-1", "h00-2"] and not rows[0].prefix_of
    assert by_id["h10-donor"].parents == ("h00-0", "h00-1", "h00-2")
    for n in range(3):
        row = by_id[f"h90-{n}"]
        assert row.parents == (row.prefix_of,) == ("h90-donor",)
        assert row.prefix_tokens == by_id["h90-donor"].input_tokens == 7360  # whole blocks


def test_sweep_in_virtual_time(tmp_path):
    """The command alone must give hits as asked, a queue, stages apart, and the dips where tail chunks begin."""
    one, text = swept(tmp_path, 1, "--step", "0.03", "--requests", "4", "--chunk", "2048")
    assert [round(stage["hit"], 2) for stage in one["stages"]] == [round(0.03 * i, 2) for i in range(34)]
    assert one["saturated"] and one["overlap"] == 0 and one["invalid"] == []
    assert one["stages"][0]["requests_s"]["low"] is None and "without intervals" in text
    assert one["dips"] and all(dip["tail_chunk"] for dip in one["dips"])
    assert all(min(abs(dip["hit"] - place) for place in (0.25, 0.5, 0.75)) < 0.035 for dip in one["dips"])


def test_instances_that_finish_together_count_once(tmp_path):
    """Four instances do four times as much; first to last token alone would say 5.5 times."""
    words = ("--step", "0.12", "--requests", "8")
    one, four = (swept(tmp_path, count, *words)[0]["stages"] for count in (1, 4))
    gain = [b["requests_s"]["point"] / a["requests_s"]["point"] for a, b in zip(one, four, strict=True)]
    assert gain == pytest.approx([4.0] * len(gain), rel=0.03)


def test_intervals_need_rounds():
    """One sweep has no interval, and equal ones (virtual time) must not give one of no width."""
    assert over_rounds(np.array([1.0, 1.2])).low is None
    assert over_rounds(np.array([1.0, 1.0, 1.0])).low is None
    found = over_rounds(np.array([1.0, 1.1, 1.21]))
    assert found.point == pytest.approx(1.1) and found.low < 1.0 < 1.21 < found.high
    assert _Round().hit == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a run folder or an experiment file"),
        (["--base-url", "http://127.0.0.1:1"], "needs --model"),
        (["FILE", "--step", "0.005"], "whole percents"),
        (["FILE", "--length", "64"], "below ten cache blocks"),
        (["FILE", "--cached-price", "2"], "a share of the input price"),
        (["FILE", "--simulate", "--requests", "4"], "arm tails prefills on 4 instances"),
        (["FILE", "--rounds", "99999"], "requests: a larger --step"),
        (["/nowhere.toml"], "nowhere"),
    ],
)
def test_bad_sweeps_end_in_a_sentence(tmp_path, words, said):
    """What cannot be used is said before any traffic."""
    file = tmp_path / "e.toml"
    file.write_text(EXPERIMENT.replace("COUNT", "4"))
    _, _, error = command(*[str(file) if word == "FILE" else word for word in words], "--out", tmp_path / "o")
    assert said in str(error) and not (tmp_path / "o").exists()


def test_waived_rules_are_said(tmp_path, monkeypatch):
    """A broken rule that does not matter here must not vanish without a word, nor make the sweep invalid."""
    from pddbench.analyze import trust
    from pddbench.analyze.finding import Finding

    found = [Finding(rule=rule, level="invalid", message="m", advice="a") for rule in ("send_lag", "backlog")]
    monkeypatch.setattr(trust, "findings", lambda data: found)
    one, text = swept(tmp_path, 1, "--step", "0.12", "--requests", "4")
    assert one["invalid"] == [] and one["waived"] == ["backlog", "send_lag"]
    assert text.count("waived in a sweep: backlog (") == 1 and "; send_lag (" in text
