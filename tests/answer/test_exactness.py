"""Do two arms give the same text, where do they part, and who shows a hand-off section."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.exactness import CRC_BYTES, exactness
from pddbench.analyze.seam_summary import NO_CONTROL
from pddbench.analyze.summary import summarise
from pddbench.replay.stream import running_crc
from pddbench.report.table import render
from pddbench.runfolder.load import load
from tests.analyze.synth import Recipe, make_run


def table_of(folder):
    """The table as plain text."""
    out = io.StringIO()
    render(summarise(load(folder)), Console(file=out, width=100, no_color=True))
    return out.getvalue()


def texts(part_at):
    """Arm b's replies differ from byte `part_at` on in every third request."""

    def edit(arm, repeat, requests, events, server, health):
        for i in range(len(requests["outcome"])):
            text = b"the same words again and again, " * 10
            if arm == "b" and i % 3 == 0:
                text = text[:part_at] + b"other" + text[part_at + 5 :]
            requests["output_sha256"][i] = str(hash(text))
            events["text_crc"][i] = running_crc(text)

    return edit


def test_where_texts_part(tmp_path):
    """A router that swaps a token must show, and where: two thirds the same, the others part in block 2."""
    folder = make_run(tmp_path / "r", Recipe(arms=("a", "b"), sessions=60, repeats=1, edit=texts(150)))
    data = Dataset(load(folder))
    found = exactness(data, "a", "b", data.pair("a", "b"))
    assert (found.compared, found.same) == (240, 160)
    assert found.parts_at["p50"].point == 150 // CRC_BYTES * CRC_BYTES
    assert "160 of 240 the same to the byte" in table_of(folder)


def test_arms_with_salts_of_their_own_are_not_compared(tmp_path):
    """Arms on one server are sent different tokens: equal or not, their texts say nothing."""

    def share(manifest):
        for arm in manifest["arms"].values():
            arm["cache_domain"] = "http://one"

    folder = make_run(tmp_path / "r", Recipe(arms=("a", "b"), sessions=20, repeats=1, manifest=share))
    assert "not comparable" in table_of(folder)


def test_crc_is_that_of_the_prefix():
    """Texts of other lengths and other chunks must agree exactly as far as they are the same."""
    long, short = running_crc(b"x" * 200), running_crc(b"x" * 130)
    assert len(long) == 4 and long[:2] == short[:2] and long[2] != short[2]
    assert running_crc(b"") == []


def plain(arm, repeat, requests, events, server, health):
    """An endpoint that knows nothing of pdd and bundles two tokens a chunk without saying so."""
    for i in range(len(requests["outcome"])):
        for name in ("pipeline", "handoff_token", "handoff_mode", "handoff_bytes", "handoff_rounds", "tokens_p",
                     "tokens_rld", "tokens_md", "kv_wan_bytes", "kv_wan_wire_bytes", "kv_wan_ns"):  # fmt: skip
            requests[name][i] = None
        requests["chunks"][i] = requests["completion_tokens"][i] // 2
        events["stage"][i] = []
        events["chunk_tokens"][i] = [None] * len(events["chunk_tokens"][i])


def no_control(manifest):
    """Real endpoints, none of them known to be free of seams."""
    for arm in manifest["arms"].values():
        arm["emulated"] = None


def test_a_plain_endpoint_has_no_hand_off_section(tmp_path):
    """Bundled chunks of an endpoint without any hand-off once filled that section with refusals."""
    recipe = Recipe(arms=("a", "b"), sessions=40, repeats=1, edit=plain, manifest=no_control)
    text = table_of(make_run(tmp_path / "r", recipe))
    assert "the hand-off" not in text
    assert "not detectable (no arm of this run" in text.replace("\n", " ")


def test_blind_seams_against_a_marked_control(tmp_path):
    """With a control marked seam_free the planted 0.8 s stalls of the other arm are found, without its word."""

    def edit(arm, repeat, requests, events, server, health):
        plain(arm, repeat, requests, events, server, health)
        rng = np.random.default_rng([ord(arm[0]), repeat])
        for i, gaps in enumerate(events["gaps_us"]):
            jitter = np.exp(0.05 * rng.standard_normal(len(gaps)))
            gaps = [int(g * j) for g, j in zip(gaps, jitter, strict=True)]
            if arm == "split" and i % 4 == 0:
                gaps[20] += 800_000
            events["gaps_us"][i] = gaps

    def manifest(facts):
        no_control(facts)
        facts["arms"]["control"]["seam_free"] = True

    recipe = Recipe(arms=("control", "split"), sessions=70, repeats=1, edit=edit, manifest=manifest)
    run = load(make_run(tmp_path / "r", recipe))
    seams = {name: arm["seams"] for name, arm in summarise(run)["arms"].items()}
    assert seams["control"]["source"] == "free" and seams["split"]["source"] == "blind"
    assert abs(seams["split"]["found"]["point"] - 0.25) < 0.03
    assert abs(seams["split"]["stall"]["p50"]["point"] - 0.8) < 0.02
    assert seams["split"]["detectable_s"] < 0.1
    assert NO_CONTROL not in str(seams)
