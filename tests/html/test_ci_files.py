"""`report --ci`: what a CI job reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest
from click.testing import CliRunner
from page_kit import Recipe, fail, make_run

from pddbench.analyze.trust import RULES
from pddbench.cli import cli
from pddbench.errors import InputError
from pddbench.report.ci import plain_md

CHECKS = {"pdd.ttft.p90 < 1 ms": "fail", "pdd.ttft.p50 < 100 s": "fail", "naive.ttft.p90 < 1 ms": "warn",
          "naive.ttft.p50 < 150 s": "fail", "baseline.ttst.p99.9 < 1 s": "fail"}  # fmt: skip


def spoil(arm, repeat, requests, *_):
    """Lengths that are wrong in one arm, an infinite tail in another."""
    if arm == "pdd":
        requests["completion_tokens"][3] = 1
    if arm == "naive":
        for i in range(0, 240, 6):
            fail(requests, i)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    recipe = Recipe(sessions=60, edit=spoil, manifest=lambda m: m.update(check=CHECKS, name="a | <b>`x`</b>"))
    folder = make_run(tmp_path_factory.mktemp("run"), recipe)
    out = tmp_path_factory.mktemp("out") / "deep" / "ci"
    done = CliRunner().invoke(cli, ["report", str(folder), "--ci", str(out)], standalone_mode=False)
    assert done.return_value == 98, done.exception
    assert (folder / "report.html").stat().st_size > 100_000
    return out


def test_all_files_are_there(out):
    """The workflow names each of them."""
    names = ["customBiggerIsBetter.json", "customSmallerIsBetter.json", "junit.xml", "summary.json", "summary.md"]
    assert sorted(file.name for file in out.iterdir()) == names


def test_junit_tells_breaches_from_warnings(out):
    """A breach fails its case, a warning one does not; the broken trust rule fails, the others pass."""
    cases = {case.get("name"): [child.tag for child in case] for case in Xml.parse(out / "junit.xml").iter("testcase")}
    assert cases["pdd.ttft.p90 < 1 ms"] == ["failure"]
    assert cases["pdd.ttft.p50 < 100 s"] == ["system-out"]
    assert cases["naive.ttft.p90 < 1 ms"] == ["system-out"]
    assert cases["baseline.ttst.p99.9 < 1 s"] == ["error"]
    assert cases["lengths"] == ["failure"] and cases["salt"] == []
    assert set(RULES) <= set(cases)


def test_junit_counts_add_up(out):
    """CI shows the counts of the suite, not the cases."""
    for suite in Xml.parse(out / "junit.xml").getroot():
        assert int(suite.get("tests")) == len(suite)
        assert int(suite.get("failures")) == len(list(suite.iter("failure")))


def test_benchmark_files_have_their_form(out):
    """github-action-benchmark needs name, unit and a number; what is infinite or withheld must not be a number."""
    for name in ("customSmallerIsBetter.json", "customBiggerIsBetter.json"):
        entries = json.loads((out / name).read_text())
        assert len({entry["name"] for entry in entries}) == len(entries) > 5
        assert all(isinstance(entry["value"], float | int) and entry["unit"] for entry in entries)
    smaller = {entry["name"]: entry for entry in json.loads((out / "customSmallerIsBetter.json").read_text())}
    assert "naive TTFT from due P99" not in smaller and smaller["pdd TTFT from due P50"]["unit"] == "ms"


def test_page_is_plain(out):
    """A run's name must not become markup on the job's page; verdict and checks stand on it."""
    text = (out / "summary.md").read_text()
    assert text.startswith("### a \\| \\`x\\`: invalid: lengths")
    assert "❌ breach: pdd.ttft.p90" in text and "| TTFT from due P90, " in text
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("|")}
    assert widths == {5}


def test_markdown_signs_are_escaped():
    """Links, images, mentions, HTML and workflow commands must stay text."""
    assert plain_md("::error:: [x](y) @me <b> a|b") == "error: : \\[x\\](y) \\@me a\\|b"


def test_unwritable_is_said_first(tmp_path):
    """A bad path must fail before anything takes time."""
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli, ["report", "/nowhere", "--ci", str(tmp_path / "file" / "x")], standalone_mode=False)
    assert isinstance(done.exception, InputError) and "--ci" in str(done.exception)


def test_action_and_workflow_use_what_exists():
    """The workflow and the action name files that `report --ci` writes."""
    root = Path(__file__).parents[2]
    for file in (root / "action.yml", root / ".github/workflows/benchmark.yml"):
        assert "summary.md" in file.read_text()
