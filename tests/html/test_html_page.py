"""report.html without a browser: what it holds, what is escaped, how large it is."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from page_kit import fail, hostile, hostile_manifest, make_page

from pddbench.report.html.markup import tag
from pddbench.report.html.shell import for_script
from pddbench.report.html.timeline import _in_flight, _offered_gbit


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_page(tmp_path_factory.mktemp("run"), sessions=40, edit=hostile, manifest=hostile_manifest)


class Elements(HTMLParser):
    """Names and attributes of all elements, the text of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.found, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, name, attrs):
        self.found.append((name, dict(attrs)))

    def handle_endtag(self, name):
        self.found.append(("/" + name, {}))

    def handle_data(self, text):
        if not self.found or self.found[-1][0] not in ("script", "style"):
            return
        if self.texts and self.texts[-1][0] is self.found[-1]:
            self.texts[-1][1] += text  # the parser hands long texts over in pieces
        else:
            self.texts.append([self.found[-1], text])


def test_hostile_text_stays_text(made):
    """A model name or an error from a server must not become an element, a script or a template field."""
    text, _ = made
    elements = Elements(text)
    assert not [attrs for name, attrs in elements.found if name == "img"]
    assert [name for name, _ in elements.found].count("script") == 2
    assert not [key for _, attrs in elements.found for key in attrs if key.startswith("on")]
    (data,) = [part for (_, attrs), part in elements.texts if attrs.get("id") == "data"]
    assert "<" not in data and any(
        "window.pwned" in name for name in json.loads(data)["lanes"]["arms"]["pdd"]["session"]
    )
    assert "\x1b" not in text


def test_policy_allows_only_our_own_script(made):
    """Without the right hashes the browser runs nothing; with a wider policy it runs what was smuggled in."""
    elements = Elements(made[0])
    (policy,) = [
        attrs["content"] for _, attrs in elements.found if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    hashes = {
        name: base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        for (name, attrs), part in elements.texts
        if attrs.get("id") != "data"
    }
    assert f"script-src 'sha256-{hashes['script']}'" in policy and f"style-src 'sha256-{hashes['style']}'" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_needs_no_network_and_is_small(made):
    """One file to send around: a link to the outside would break it, or tell somebody who reads it."""
    text, _ = made
    assert not re.findall(r"""(?:src|href)=["']?(?!data:)[^"' ]*//""", text)
    assert "@import" not in text and "url(" not in text
    assert len(text.encode()) < 2_000_000


def test_tables_are_there_without_a_script(made):
    """Readers that run no script (mail, job pages) still get every figure."""
    text, summary = made
    for word in ("TTFT from due P90", "SLO attainment", "seam stall P50", "Differences", "pdd.ttft.p90 &lt; 2 s"):
        assert word in text
    assert summary["verdict"] in text


def test_json_cannot_end_its_script():
    """`</script>` or `<!--` in a string would end the element in mid-JSON."""
    value = {"a": "</script><!-- & \u2028 >"}
    assert not set("<>&\u2028") & set(for_script(value))
    assert json.loads(for_script(value)) == value


def test_attributes_are_escaped():
    """A quote in an attribute must not start another one."""
    assert tag("p", "<b>", title='" onload="x').text == '<p title="&quot; onload=&quot;x">&lt;b&gt;</p>'


def test_in_flight_is_overlap():
    """The mean number under way in a bin is what of each request lies in it."""
    edges = np.array([0.0, 1.0, 2.0, 3.0])
    sent, end = np.array([0.5, 0.0, np.nan]), np.array([2.5, 1.0, np.nan])
    assert _in_flight(sent, end, edges).tolist() == [1.5, 1.0, 0.5]


def test_seams_are_where_they_were_planted(made):
    """The swim-lane's tick is the time of the first token after the hand-off: first token + 23 gaps + the stall."""
    data = json.loads(next(part for (_, attrs), part in Elements(made[0]).texts if attrs.get("id") == "data"))
    lane = data["lanes"]["arms"]["pdd"]
    taken = [seam - first for seam, first in zip(lane["seam"], lane["first"], strict=True) if seam is not None]
    assert len(taken) > 10
    assert taken == pytest.approx([0.82 + 23 * 0.0201] * len(taken), abs=2e-3)


@pytest.mark.parametrize("recipe", [{"arms": ("baseline",), "sessions": 1, "turns": 1, "tokens": 2, "repeats": 1},
                                    {"arms": ("pdd", "x"), "sessions": 2, "turns": 2, "tokens": 12}])  # fmt: skip
def test_small_runs_have_a_page(recipe, tmp_path):
    """One arm, one session, one request: everything is withheld, and the page says so."""
    text, _ = make_page(tmp_path, **recipe)
    assert "withheld" in text


def test_all_failed_has_a_page(tmp_path):
    """A dead endpoint leaves a page that says failed, not a traceback."""

    def dead(arm, repeat, requests, events, *_):
        for i in range(len(requests["request_id"])):
            fail(requests, i)
        for name in events:
            events[name].clear()

    text, _ = make_page(tmp_path, sessions=3, edit=dead)
    assert "no request succeeded" in text


def test_shares_inside_the_objective_are_the_tables(made):
    """The step in the percentile plot must not say another share than the table."""
    text, summary = made
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    (curve,) = [one for one in data["curves"] if one["metric"] == "ttft_sched"]
    assert curve["slo"] == 2.0
    for arm, part in curve["arms"].items():
        share = summary["arms"][arm]["figures"]["slo_attainment.share"]["point"]
        assert 0 <= share <= part["inside"] <= 1, "all objectives together hold for no more than one of them does"
    assert curve["arms"]["naive"]["inside"] < 1
    assert all(part["inside"] is None for one in data["curves"] if not one["slo"] for part in one["arms"].values())


def test_offered_kv_adds_up():
    """The rates of the bins must be the bytes that were sent."""
    kv = np.array([1e9, np.nan, 5e8, 2.5e8])
    rate = _offered_gbit(kv, np.array([0, 0, 0, 2]), 2.0, 3)
    assert rate.tolist() == [6.0, 0.0, 1.0]
    assert np.isnan(_offered_gbit(np.array([np.nan]), np.array([0]), 1.0, 2)).all(), "no KV known: nothing is drawn"


def packets(manifest):
    """A link of packets in both runs of pdd: right in the first, slow and with a problem in the second."""

    def finding(name, unit, wanted, found):
        low, high = 0.9 * wanted, 1.1 * wanted
        return {"name": name, "unit": unit, "wanted": wanted, "found": found, "low": low, "high": high, "samples": 20,
                "note": "", "ok": low <= found <= high}  # fmt: skip

    manifest["wan"] = {"backend": "tun", "profile": "national", "link": {"one_way_ms": 15.0, "rate_mbit": 10_000.0}}
    manifest["runs"] = []
    for repeat, found in enumerate((30.4, 41.0)):
        facts = {"findings": [finding("rtt median", "ms", 30.0, found)]}
        beside = {"every_s": 1.0, "probes": 7, "lost": 2, "rtt_ms": {"min": 29.9, "p50": 31.5, "max": 77.0}}
        problems = ["3 s after the start: <b>cut</b>"] if repeat else []
        link = {"ok": not problems, "problems": problems, "before": facts, "beside": beside, "after": facts}
        manifest["runs"].append({"arm": "pdd", "repeat": repeat, "link": link})


def test_the_measured_link_is_on_the_page(tmp_path):
    """Over which verified link? A reader must see what was asked, what was found, and what was wrong with it."""
    text, _ = make_page(tmp_path, sessions=4, manifest=packets)
    assert "The link, measured" in text and 'href="#link"' in text
    assert "not as asked in 1 of 2 runs" in text
    for word in ("30.4", "27 to 33", "7 probes, 2 packets lost", "31.5 ms (29.9 to 77)", "&lt;b&gt;cut&lt;/b&gt;"):
        assert word in text, word
    assert "<b>cut" not in text


def test_a_run_without_packets_claims_no_link(made):
    """A model of TCP is verified by nobody: no table, and no word of it."""
    assert "The link, measured" not in made[0] and "verified" not in made[0]
