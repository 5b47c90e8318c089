"""What surrounds the answer must not cost it, and warnings must not say what did not happen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.trust_warn import hits_differ
from pddbench.report import answer, plot, plot_hits
from pddbench.report.html import page
from pddbench.runfolder.load import load

sys.path.insert(0, str(Path(__file__).parents[1]))
from analyze.synth import Recipe, fail, make_run

DRAWN = {"ttft.png": (plot, "plot_dataset"), "hits.png": (plot_hits, "plot_hits"), "report.html": (page, "page")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"), Recipe(sessions=12, repeats=1))


@pytest.mark.parametrize("file", DRAWN)
@pytest.mark.parametrize("error", [ValueError("no finite value"), OSError(28, "No space left on device")])
def test_a_failing_picture_is_one_warning(run, monkeypatch, capsys, file, error):
    """An hour of measurement must not end in a traceback of a plotting library."""
    for module, function in DRAWN.values():
        monkeypatch.setattr(module, function, lambda *_: "<p>drawn</p>")
    good = answer.answer(run)
    table = capsys.readouterr().out

    def broken(*_):
        raise error

    (run / file).touch()
    monkeypatch.setattr(*DRAWN[file], broken)
    assert answer.answer(run) == good
    out, err = capsys.readouterr()
    assert out == table
    assert err.count("warning:") == 1 and f"{file}: " in err and "Traceback" not in err
    assert not (run / file).exists(), "an old picture beside new figures"
    assert (run / "summary.json").exists()


def test_missing_hits_of_failures_are_not_blamed_on_running_donors(tmp_path):
    """A user would look for a slow cache where requests had failed."""

    def spoil(arm, repeat, requests, *_):
        for i in range(len(requests["request_id"])):
            if arm == "pdd" or (arm == "naive" and i % 2):
                fail(requests, i)
            requests["cached_tokens_possible"][i] = requests["cached_tokens"][i] = 0

    found = {one.arm: one for one in hits_differ(Dataset(load(make_run(tmp_path / "r", Recipe(edit=spoil)))))}
    assert set(found) == {"baseline", "naive"}, "an arm without any answer has no hits to speak of"
    assert "requests failed" in found["naive"].advice and "requests failed" not in found["baseline"].advice
