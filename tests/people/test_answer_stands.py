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


@pytest.mark.parametrize(
    ("module", "function", "file"),
    [(plot, "plot_dataset", "ttft.png"), (plot_hits, "plot_hits", "hits.png"), (page, "payload", "report.html")],
)
@pytest.mark.parametrize("error", [ValueError("no finite value"), OSError(28, "No space left on device")])
def test_a_failing_picture_is_one_warning(tmp_path, monkeypatch, capsys, module, function, file, error):
    """An hour of measurement must not end in a traceback of a plotting library."""
    run = make_run(tmp_path / "run", Recipe(sessions=12, repeats=1))
    good = answer.answer(run)
    table = capsys.readouterr().out

    def broken(*_):
        raise error

    (run / file).touch()
    monkeypatch.setattr(module, function, broken)
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
            requests["cached_tokens_possible"][i] = 0

    found = {one.arm: one for one in hits_differ(Dataset(load(make_run(tmp_path / "r", Recipe(edit=spoil)))))}
    assert set(found) == {"baseline", "naive"}, "an arm without any answer has no hits to speak of"
    assert "requests failed" in found["naive"].advice and "requests failed" not in found["baseline"].advice
