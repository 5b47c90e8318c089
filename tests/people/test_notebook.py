"""Runs in Jupyter: the notebook executes, runs and comparisons show themselves, the reference run is whole."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from pathlib import Path

import pytest

import pddbench
from pddbench.notebook import differences

sys.path.insert(0, str(Path(__file__).parents[1]))
from analyze.synth import Recipe, make_run

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "results" / "reference"
OF_A_MACHINE = re.compile("/(home|root|work|tmp)/")
NOTEBOOK = ROOT / "dashboards" / "analysis.ipynb"


@pytest.fixture(scope="module")
def run():
    return pddbench.load(REFERENCE)


def test_the_notebook_executes():
    """A notebook that no longer runs is the first thing a new user meets."""
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError:
        reason = "nbclient is missing: pip install -e '.[notebook]'"
        pytest.fail(reason) if os.environ.get("CI") == "true" else pytest.skip(reason)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}})
    client.execute()  # raises with the cell and its traceback


def test_the_notebook_is_committed_with_its_outputs():
    """Without outputs it shows nothing where notebooks are only rendered; with a path of some machine it shows too
    much."""
    text = NOTEBOOK.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 8 and all(cell["execution_count"] for cell in cells)
    assert sum(bool(cell["outputs"]) for cell in cells) > 8 and "image/png" in text
    assert "Traceback" not in text and not OF_A_MACHINE.search(text)
    assert len(text) < 400_000


def test_the_reference_run_is_small_and_of_no_machine():
    """It is cloned by everybody, and nobody needs to know where it was made."""
    files = [file for file in REFERENCE.rglob("*") if file.is_file() and file.suffix in (".json", ".parquet")]
    kept = [file for file in files if file.name != "summary.json"]
    assert 7 <= len(kept) <= 12 and sum(file.stat().st_size for file in kept) < 900_000
    text = (REFERENCE / "manifest.json").read_text()
    assert not OF_A_MACHINE.search(text)


def test_the_reference_run_is_a_good_one(run):
    """Docs and notebook must not show an invalid run, or one whose tail is withheld."""
    assert run.summary["verdict"].startswith("valid") and run.summary["run"]["simulated"]
    assert set(run.arms) == {"baseline", "naive", "pdd"}
    assert math.isfinite(run.figures.loc[("pdd", "ttft_sched", "p99"), "high"])


def test_figures_are_those_of_the_summary(run):
    """A notebook that shows other numbers than the table would be believed."""
    for (arm, metric, stat), line in run.figures.iterrows():
        figure = run.summary["arms"][arm]["figures"][f"{metric}.{stat}"]
        if figure["point"] is None:
            assert math.isnan(line["point"])
        else:
            assert line["point"] == float(figure["point"])


def test_a_run_shows_itself(run):
    """What stands under the first cell: verdict, that nothing was sent, figures with intervals."""
    shown = run._repr_html_()
    assert "valid" in shown and "nothing was sent" in shown and "TTFT from due P90" in shown and "[" in shown


def test_a_comparison_shows_itself(run):
    """Paired differences, with what they stand on; as a DataFrame too."""
    found = run.compare("naive", "pdd")
    shown = found._repr_html_()
    assert "pdd − naive, 676 requests that both have" in shown and "TTFT from due" in shown
    assert differences(found).loc[("pdd", "ttft_sched", "p90"), "high"] < 0
    same = pddbench.compare(REFERENCE, REFERENCE)
    assert set(same.pairs) == {"baseline (B)", "naive (B)", "pdd (B)"}
    assert differences(same)["point"].dropna().eq(0).all()
    assert "Comparison(" in repr(same) and len(repr(same)) < 400


def test_hostile_names_are_text(tmp_path):
    """A notebook runs what its outputs hold."""
    evil = "<script>alert(1)</script><img src=x onerror=alert(1)>"

    def manifest(facts):
        facts["name"] = evil
        facts["cost"]["currency"] = "<b>"

    run = pddbench.load(make_run(tmp_path, Recipe(manifest=manifest)))
    shown = run._repr_html_() + run.compare(*run.arms[:2])._repr_html_()
    assert "<script" not in shown and "<img" not in shown and "<b>/" not in shown


def test_a_capacity_search_shows_itself():
    """BCR was missing in Jupyter, where people compute with it; figures are those of capacity.json."""
    search = pddbench.load_capacity(REFERENCE.parent / "reference-capacity")
    shown = search._repr_html_()
    assert "BCR" in shown and "simulated" in shown and "[" in shown
    (pdd,) = [one for one in search.document["answers"] if one["arm"] == "pdd"]
    line = search.figures.loc[("pdd", "bcr_ratio")]
    assert (line["point"], line["high"]) == (pdd["against_first"]["point"], pdd["against_first"]["high"])
    assert search.figures.loc[("pdd", "cost_ratio"), "point"] == pytest.approx(1 / line["point"])
    assert math.isnan(search.figures.loc[("baseline", "bcr_ratio"), "point"])
    assert set(search.runs["arm"]) == {"baseline", "naive", "pdd"} and search.runs["used"].all()
    assert len(search.curves) > 100


def test_the_reference_search_is_of_the_reference_run(run):
    """Page and notebook show both together: objectives, arms and costs must be the same, and bounds must exist."""
    from pddbench.report import searched

    found = searched.beside(REFERENCE, run.summary)
    assert found is not None and found.folder == "reference-capacity"
    assert all(arm.estimate.low and arm.estimate.high for arm in found.state.arms.values())
    text = (REFERENCE.parent / "reference-capacity/capacity.json").read_text()
    assert not OF_A_MACHINE.search(text) and len(text) < 150_000
