"""The trust rule `link` and the first line: a link that was not as asked must never pass for one that was."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "analyze"))

from synth import Recipe, make_run

from pddbench.analyze import trust
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.summary import summarise
from pddbench.report.table import wan_words
from pddbench.runfolder.load import load


def findings(rtt_ms, mbit):
    """A verification as it is in a manifest."""
    return {"findings": [{"name": "rtt median", "found": rtt_ms}, {"name": "throughput", "found": mbit}]}


GOOD = {"ok": True, "problems": [], "speed": 2.0, "kv_scale": 100.0,
        "before": findings(15.2, 190.0), "after": findings(15.4, 191.0)}  # fmt: skip


def run_over(folder, backend, links):
    """A run folder whose runs of an arm have these facts about their link."""

    def edit(manifest):
        manifest["wan"] = {"backend": backend, "profile": "national", "asked": "auto", "reason": "netem: not there"}
        manifest["runs"] = [{"arm": arm, "repeat": 0, **({"link": link} if link else {})}
                            for arm, link in links.items()]  # fmt: skip
        for arm in links:
            manifest["arms"][arm]["emulated"] = arm

    return load(str(make_run(folder, Recipe(repeats=1, manifest=edit))))


@pytest.mark.parametrize(
    ("link", "says"),
    [
        (None, "never measured"),
        ({**GOOD, "ok": False, "problems": ["7 s after the start: netem is gone from side a", "x"]}, "netem is gone"),
        ({**GOOD, "ok": False}, "not in the manifest"),
    ],
)
def test_a_link_that_was_not_as_asked_voids_the_run(tmp_path, link, says):
    """A run over 0 ms, or over nothing that anybody looked at, would print plausible numbers (TRAPS 44)."""
    data = Dataset(run_over(tmp_path / "run", "tun", {"baseline": None, "naive": GOOD, "pdd": link}))
    found = [each for each in trust.findings(data) if each.rule == "link"]
    assert [(each.arm, each.level) for each in found] == [("pdd", "invalid")]
    assert says in found[0].message and found[0].advice
    assert [each.level for each in trust.findings(data, ["link"]) if each.rule == "link"] == ["warning"]


def test_a_good_link_and_a_model_pass(tmp_path):
    """Every run would be void."""
    for name, backend, link in (("a", "tun", GOOD), ("b", "model", None)):
        data = Dataset(run_over(tmp_path / name, backend, {"baseline": None, "naive": link, "pdd": link}))
        assert not [each for each in trust.findings(data) if each.rule == "link"]


def test_the_first_line_says_what_carried_it_why_and_what_was_measured(tmp_path):
    """A model could pass for packets, and a link for the one that was asked."""
    run = summarise(run_over(tmp_path / "run", "tun", {"baseline": None, "naive": GOOD, "pdd": GOOD}))["run"]
    assert wan_words(run) == ("WAN: tun, user-space packets (chosen by auto: netem: not there) (national), "
                              "measured RTT 30.8 ms, 9500 Mbit/s of payload")  # fmt: skip
    model = {"wan_backend": "model", "wan_profile": "metro", "wan_asked": "model"}
    assert wan_words(model) == "WAN: model, not packets (metro)"
