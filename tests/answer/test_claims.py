"""The claims: every one has a row, verdicts are computed, and a wrong claim comes out as such."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from pddbench.analyze import bathtub
from pddbench.analyze.intervals import Figure
from pddbench.claims import latency, traffic
from pddbench.claims.model import Claim, Found, NotTestable, about, digits, judge, part, verdict, without
from pddbench.claims.page import html_page, markdown_page
from pddbench.claims.scenes import Scenes
from pddbench.claims.table import CLAIMS, measure
from pddbench.cli import cli


@pytest.fixture(scope="module")
def scenes():
    """A tenth of the requests: verdicts of mechanisms, not the published figures."""
    made = Scenes(seed=1, scale=0.1)
    yield made
    made.close()


def test_every_claim_has_a_row():
    """A claim that is left out looks as if it had been checked."""
    assert [claim.id for claim in CLAIMS] == [f"C{n}" for n in range(1, 27)]


def test_a_wrong_claim_differs(scenes):
    """TTFT cut by 90%, put in on purpose, must come out as `differs`; our own figure as a claim must agree."""
    wrong = Claim("W1", "TTFT is cut by 90%", lambda s: latency.ttft_cut(s, (0.895, 0.905)))
    (row,) = measure(scenes, [wrong])
    assert row.verdict == "differs" and row.where == "simulated"
    ours = row.parts[1].found.point  # P90: the median's interval is wide at this size
    right = Claim("R1", "our own", lambda s: latency.ttft_cut(s, (ours - 0.001, ours + 0.001)))
    assert next(measure(scenes, [right])).verdict == "agrees"


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        ("direction", (float("-inf"), 0.0), (0.0, float("inf"))),  # a relay that makes the median wait
        ("threshold", (10.0, float("inf")), (0.5, float("inf"))),  # no relay costs ten seconds, half a second
        ("figure", (4.75, 5.25), (2.25, 2.75)),  # twice the difference claimed, and the one published
    ],
)
def test_wrong_claims_of_every_kind_differ(scenes, kind, wrong, right):
    """A claim of direction, of a threshold or of a figure, put in wrong on purpose, must come out as `differs`."""

    def claim(name, claimed):
        def measured(s):
            pair = s.run("fixed", "fixed-90").pair("baseline", "naive")
            warm = pair.subset((pair.a.rows["kind"] != "root").to_numpy(dtype=bool))
            return Found(where="simulated", parts=[part(kind, claimed, warm.difference("ttft", "p50"))])

        return Claim(name, kind, measured)

    rows = list(measure(scenes, [claim("W", wrong), claim("R", right)]))
    assert [row.verdict for row in rows] == ["differs", "agrees"]


def test_a_wrong_share_differs(scenes):
    """A share claimed as 20 to 30% that is 77% must differ."""
    found = traffic.c4(scenes).parts[2].found
    assert part("above 95%", (0.2, 0.3), found).verdict == "differs"
    assert part("above 95%", (0.7, 0.8), found).verdict == "agrees"


def test_directions_need_the_whole_interval():
    """An interval on both sides of a threshold is no evidence, one so wide that it fits anything neither."""
    inf = float("inf")
    spans = Figure(unit="s", point=0.6, low=0.4, high=0.8)
    assert judge(0.5, inf, spans) == "undecided" and judge(0.9, inf, spans) == "differs"
    assert judge(0.3, inf, spans) == "agrees" and judge(-inf, 0.7, spans) == "undecided"
    assert judge(9.0, 11.0, Figure(unit="", point=6.0, low=3.0, high=10.0)) == "undecided"
    assert judge(0.5, inf, Figure(unit="s", point=0.6, low=0.55, high=None)) == "agrees"
    assert judge(-inf, 0.7, Figure(unit="s", point=0.6, low=0.55, high=None)) == "undecided"  # no upper bound
    one = part("a", (0.5, inf), spans)
    assert (
        verdict([one, part("b", (1.0, 2.0), 1.5)]) == "undecided"
        and verdict([one, part("b", (1, 2), 3.0)]) == "differs"
    )
    ends = {"gone": (-0.1, 0.1), "still there": (0.2, 0.3), "undecided": (0.05, 0.3)}
    for word, (low, high) in ends.items():
        assert without("x", (-0.1, 0.1), Figure(unit="s", point=(low + high) / 2, low=low, high=high)).verdict == word


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (0.0008, 0.0034, "undecided"),  # no sign of nothing, and not below what agrees
        (0.002, 0.004, "still there"),
        (0.0002, 0.0008, "gone"),
        (-0.0002, 0.0014, "gone"),
        (-0.001, 0.02, "undecided"),
        (-0.02, -0.01, "still there"),
    ],
)
def test_nothing_agrees_and_is_gone(low, high, word):
    """Where the range of none reaches into what agrees, one figure was both: the claim's effect, and none of it."""
    found = Figure(unit="share", point=(low + high) / 2, low=low, high=high)
    assert without("x", (-0.005, 0.005), found, agrees=(0.001, float("inf"))).verdict == word
    assert not (word == "gone" and judge(0.001, float("inf"), found) == "agrees")


def test_a_bad_live_folder_is_named_before_anything_runs(tmp_path):
    """`--live` of a folder that is no valid live run must not cost minutes of simulation first, nor overwrite --out."""
    for words, said in (
        (["--live", str(tmp_path / "nope"), "--out", str(tmp_path / "o")], "no such run folder"),
        (["--live", "results/reference"], "simulated run"),
        (["--live", "results/reference", "--full"], "give one of them"),
    ):
        done = CliRunner().invoke(cli, ["claims", *words], standalone_mode=False)
        assert said in str(done.exception) and not done.output
    assert not (tmp_path / "o").exists()


def test_a_result_of_another_kind_is_not_mixed_in(tmp_path):
    """Rows of another size or seed beside each other would look like one measurement; those of the same kind stay."""
    for words in (["--only", "C16"], ["--only", "C24"]):
        CliRunner().invoke(cli, ["claims", *words, "--out", str(tmp_path)], standalone_mode=False)
    rows = json.loads((tmp_path / "claims.json").read_text())["claims"]
    assert [row["id"] for row in rows] == ["C16", "C24"] and all(row["date"] and row["command"] for row in rows)
    for words in (["--full"], ["--seed", "2"]):
        words = ["claims", "--only", "C17", *words, "--out", str(tmp_path)]
        assert "choose another --out" in str(CliRunner().invoke(cli, words, standalone_mode=False).exception)
    (tmp_path / "claims.json").write_text("{}")
    words = ["claims", "--only", "C17", "--out", str(tmp_path)]
    assert "in the way" in str(CliRunner().invoke(cli, words, standalone_mode=False).exception)


def test_a_claim_nothing_can_measure_says_why(scenes):
    """No figure may be made up for what cannot be measured here."""

    def nothing(_):
        raise NotTestable("no such chip here")

    (row,) = measure(scenes, [Claim("N1", "a number of chips", nothing)])
    assert row.verdict == "not testable here" and row.parts == [] and row.note == "no such chip here"


def test_verdicts_are_computed():
    """Intervals that touch the range agree; blank figures tell nothing; one part that differs is enough."""
    assert judge(2.0, 3.0, Figure(unit="s", point=3.2, low=2.9, high=3.5)) == "agrees"
    assert judge(2.0, 3.0, Figure(unit="s", point=3.2, low=3.1, high=3.5)) == "differs"
    assert judge(2.0, 3.0, Figure(unit="s", withheld="n_eff 3 < 36")) == "not testable here"
    good, bad = part("a", (1.0, 2.0), 1.5), part("b", (1.0, 2.0), 3.0)
    assert verdict([good, bad]) == "differs" and verdict([good]) == "agrees" and verdict([]) == "not testable here"
    either = [part(name, (1.0, 2.0), value, alternative=True) for name, value in (("a", 1.5), ("b", 9.0))]
    assert verdict(either) == "agrees" and verdict([*either, bad]) == "differs"
    assert about(10.0) == (9.0, 11.0) and digits(-0.375, 0.001) == (-0.3755, -0.3745)


def test_the_command_writes_rows_and_pages(tmp_path):
    """Arithmetic claims: C16 and C18 come out to the published digits, C24 does not; JSON and pages say the same."""
    words = ["claims", "--only", "C16", "--only", "c18", "--only", "C24", "--out", str(tmp_path / "o")]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None and done.return_value == 0
    rows = {row["id"]: row for row in json.loads((tmp_path / "o/claims.json").read_text())["claims"]}
    assert [rows[name]["verdict"] for name in ("C16", "C18", "C24")] == ["agrees", "agrees", "differs"]
    assert rows["C24"]["parts"][0]["found"]["point"] == pytest.approx(-0.2731, abs=1e-4)
    assert "C24 ≠ differs (arithmetic)" in done.output
    page = (tmp_path / "o/claims.html").read_text()
    assert "default-src 'none'" in page and not re.search(r'(src|href)="', page)
    assert (tmp_path / "o/claims.md").read_text().count("| C") == 3
    bad = CliRunner().invoke(cli, ["claims", "--only", "C99"], standalone_mode=False)
    assert "no such claim" in str(bad.exception)


def test_pages_escape():
    """A note is text: it must not become markup or a further column."""
    claim = Claim("X", "a|b <script>", lambda s: Found(where="arithmetic", note="<b>|"))
    rows = list(measure(None, [claim]))
    assert "<script>" not in html_page(rows) and "a\\|b" in markdown_page(rows)


def test_dips_are_those_of_tail_chunks():
    """C19: where a tail chunk has a costly step of its own the dips lie just below 1 - k x chunk / length."""
    hit = np.arange(0, 0.99, 0.02)
    law = bathtub.Law(fixed_s=0.0, tokens_s=68_000, chunk=16_384, step_s=0.2)
    rate = np.array([1 / law.seconds(65_536, float(h)) for h in hit])
    found = bathtub.dips(hit, bathtub.efficiency(hit, rate, 65_536), 65_536, 16_384)
    assert [dip.tail_chunk for dip in found] == [3, 2, 1]
    assert [round(dip.hit, 2) for dip in found] == [0.24, 0.48, 0.74]
    assert "3 dips" in bathtub.advice(found, 65_536, 16_384)
    smooth = bathtub.Law(fixed_s=0.1, tokens_s=68_000, attention_s=4e-10)
    rate = np.array([1 / smooth.seconds(65_536, float(h)) for h in hit])
    assert bathtub.dips(hit, bathtub.efficiency(hit, rate, 65_536), 65_536, 16_384) == []


def test_revenue_needs_attention_for_a_valley():
    """C20: a linear law is monotone, rising iff p L / mu > (1 - p) c; the attention term makes the bathtub."""
    linear = bathtub.Law(fixed_s=0.3, tokens_s=20_000)
    assert not bathtub.revenue(linear, 65_536, 0.10).is_bathtub
    rising = bathtub.revenue(linear, 65_536, 0.25)
    assert bathtub.rises_with_hit(linear, 65_536, 0.25) == (rising.value[-1] > rising.value[0])
    assert bathtub.rises_with_hit(linear, 65_536, 0.02) is False
    law = bathtub.Law(fixed_s=0.05, tokens_s=68_000, attention_s=4e-10)
    valley = bathtub.revenue(law, 65_536, 0.10)
    assert valley.is_bathtub and 0.2 < valley.valley < 0.8
    rate = np.array([1 / law.seconds(65_536, hit) for hit in valley.hit])
    assert bathtub.measured_revenue(np.array(valley.hit), rate, 65_536, 0.10).valley == valley.valley
