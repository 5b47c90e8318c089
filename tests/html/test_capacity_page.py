"""The page of a capacity search, and how the page of a run finds the search of its experiment."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from click.testing import CliRunner
from page_kit import EVIL, make_page
from search_kit import make_state, write_search

from pddbench.cli import cli
from pddbench.errors import InputError
from pddbench.report import searched
from pddbench.report.capacity import document
from pddbench.report.html.capacity_page import page


def costs(manifest):
    """Every arm costs what the made-up search says."""
    manifest["name"] = "made"
    for arm in manifest["arms"].values():
        arm["cost_per_hour"] = 16.0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with nothing beside it."""
    folder = tmp_path_factory.mktemp("results") / "made-1"
    text, summary = make_page(folder, sessions=40, manifest=costs)
    return folder, text, summary


def test_a_run_alone_says_how_to_get_a_capacity(run):
    """A run at one load has no capacity and no BCR: the page must not leave a reader looking for them."""
    _, text, _ = run
    assert "pddbench capacity EXPERIMENT" in text and 'href="../' not in text


def test_the_answer_is_on_the_page(run):
    """The sentences of the terminal's table were missing on the page: readers had to work the answer out of cells."""
    _, text, summary = run
    assert "Is naive better than baseline?" in text and "Is pdd better than baseline?" in text
    verdict = summary["paired"]["naive"]["better"]["ttft_sched.p50"]["verdict"]
    assert verdict == "worse" and "✗ worse" in text
    assert "would have been seen" in text and "first token: " in text


def test_the_search_beside_a_run_is_linked(run, tmp_path):
    """Capacity and BCR belong to the experiment: a search of it in the same results folder is shown and linked."""
    folder = tmp_path / "results/made-1"
    shutil.copytree(run[0], folder)
    write_search(tmp_path / "results/made-capacity-1", make_state())
    found = searched.beside(folder, run[2])
    assert found is not None and found.link is None, "a link to a page that is not there is a dead end"
    assert CliRunner().invoke(cli, ["report", str(tmp_path / "results/made-capacity-1")]).exit_code == 0
    done = CliRunner().invoke(cli, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert 'href="../made-capacity-1/report.html"' in text and "BCR" in text
    assert re.search(r"×1\.30 \[1\.\d+, 1\.\d+\]", text), "pdd carries 1.3 times as much for the same money"


@pytest.mark.parametrize("field", ["name", "slo", "cost"])
def test_a_search_of_something_else_is_not_shown(run, tmp_path, field):
    """Another experiment's capacity beside these figures would be a wrong number that looks right."""
    state = make_state()
    if field == "name":
        state.name = "other"
    elif field == "slo":
        state.slo = {"ttft_sched_ms": 1000.0}
    else:
        state.arms["pdd"].cost_per_hour = 20.0
    folder = tmp_path / "made-1"
    folder.mkdir()
    write_search(tmp_path / "capacity", state)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/capacity.json").write_text("{")
    assert searched.beside(folder, run[2]) is None


def test_the_page_of_a_search_has_all_of_it(tmp_path):
    """Rates, intervals, BCR and the price grid were only on the terminal or in JSON."""
    state = make_state(invalid=("send_lag",))
    text = page(document(state))
    for word in ("3 of 3 arms", "sessions a second", "BCR", "If prices were others", "✓ better", "✗ worse",
                 "runs broke a trust rule"):  # fmt: skip
        assert word in text, word
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    arm = data["arms"][0]
    assert arm["rate"] == state.arms["baseline"].estimate.rate and len(arm["runs"]) == 8
    assert [point["invalid"] for point in arm["runs"]].count(["send_lag"]) == 1
    assert len(text.encode()) < 300_000


def test_the_grid_is_that_of_money(tmp_path):
    """The grid on the page and the one that `pddbench money` prints are the same figures."""
    folder = write_search(tmp_path / "c", make_state())
    done = CliRunner().invoke(cli, ["money", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    grids = json.loads(done.output)["grids"]
    assert [one["arm"] for one in grids] == ["naive", "pdd"]
    cell = next(c for c in grids[1]["cells"] if c["price_ratio"] == 1.0 and c["line"] == 0.0)
    assert f">{cell['bcr_ratio']['point']:.2f}<" in page(searched_document(folder))


def searched_document(folder):
    """The document of a search folder."""
    return document(searched.read(folder))


def test_an_unfinished_search_has_a_page():
    """No run yet, or an arm without a knee: words instead of figures, and no traceback."""
    state = make_state()
    state.arms["pdd"].points, state.arms["pdd"].estimate, state.arms["pdd"].stopped = [], None, None
    state.prices = {}
    text = page(document(state))
    assert "the search is not finished" in text and "If prices were others" not in text
    state.arms = {}
    assert "0 of 0 arms" in page(document(state))


def test_hostile_names_stay_text():
    """A currency or experiment name with markup in it is shown, never run."""
    state = make_state(name=EVIL)
    state.currency = "<b>&"
    text = page(document(state))
    assert text.count("<script") == 2 and "<img" not in text and "<b>&" not in text


def test_report_shows_a_search_again(tmp_path):
    """`pddbench report` on a search's folder said that it was no run, although the answer lies there."""
    folder = write_search(tmp_path / "c", make_state())
    done = CliRunner().invoke(cli, ["report", str(folder)])
    assert done.exit_code == 0 and "sessions/s" in done.output, done.output
    assert (folder / "report.html").is_file() and (folder / "capacity.png").is_file()
    done = CliRunner().invoke(cli, ["report", str(folder), "--strict"])
    assert isinstance(done.exception, InputError) and "only --json" in str(done.exception)
