"""Answers in sentences: what the table says below its figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pddbench.report import units


def figure_text(figure: dict[str, Any], signed: bool = False) -> str:
    """A figure with its interval and unit, or why there is none."""
    if figure["withheld"]:
        return f"withheld ({figure['withheld']})"
    scale, unit = units.pick([figure], figure["unit"])
    return f"{units.cell(figure, scale, signed)} {unit}"


def seconds_text(value: float) -> str:
    """Seconds in the unit that reads best."""
    scale, unit = units.pick([{"point": value, "low": None, "high": None}], "s")
    return f"{units.plain(value / scale)} {unit}"


def seam_lines(summary: dict[str, Any]) -> Iterator[str]:
    """Seams found blind, or why none can be; silent where every arm reports its own or is alone."""
    arms = {name: arm.get("seams") for name, arm in summary["arms"].items()}
    for name, seams in arms.items():
        if seams is None or seams["source"] in ("free", "reported") or len(arms) == 1:
            continue
        yield f"seams in {name}, from the gaps alone: " + _seams(seams)


def _seams(seams: dict[str, Any]) -> str:
    if seams["detectable_s"] is None:
        return f"not detectable ({seams['why']})"
    text = (
        f"in {figure_text(seams['found'])} of {seams['streams']:,} replies"
        f" (control {seams['control']}, {seams['control_streams']:,} replies; a stall is found reliably from"
        f" {seconds_text(seams['detectable_s'])} on"
    )
    stall = seams["stall"].get("p50")
    if stall is not None and not stall["withheld"]:
        text += f"; stall P50 of those found {figure_text(stall)}"
    return text + ")"


def exactness_lines(arm: str, pair: dict[str, Any]) -> Iterator[str]:
    """Whether both arms gave the same text."""
    found = pair.get("exactness")
    if found is None or (found["why"] and "not comparable" not in found["why"]):
        return
    if found["why"]:
        yield f"texts of {arm} and {pair['against']}: {found['why']}"
        return
    text = f"texts of {arm} and {pair['against']}: {found['same']:,} of {found['compared']:,} the same to the byte"
    if found["parts_at"]:
        at, token = found["parts_at"]["p50"], found["parts_at_token"]["p50"]
        if not at["withheld"]:
            text += f"; half of the others part within {units.plain(units.value(at['point']) + 64)} bytes"
        if not token["withheld"]:
            text += f" (about token {units.plain(units.value(token['point']))})"
    yield text


_PAYS = 1.05  # an interval less than that much narrower is no gain
BETTER = (("TTFT from due P50", "ttft_sched.p50"), ("TTFT from due P90", "ttft_sched.p90"),
           ("TTFT from due P99", "ttft_sched.p99"), ("E2E from due P50", "e2e_sched.p50"))  # fmt: skip


def better_lines(arm: str, pair: dict[str, Any]) -> Iterator[str]:
    """Is the arm better than the other? Effect, interval, what this run could see, what pairing bought."""
    for label, key in BETTER:
        found = pair.get("better", {}).get(key)
        if found is None or found["verdict"] == "withheld":
            continue
        text = f"{label}: {arm} is {found['verdict']}" if found["verdict"] in ("better", "worse") else (
            f"{label}: no difference seen between {arm} and {pair['against']}"
        )  # fmt: skip
        if found["verdict"] in ("better", "worse"):
            text += f" than {pair['against']}"
        text += f", {figure_text(found['effect'], signed=True)}, ×{figure_text(found['ratio']).strip()}"
        if found["visible"]:
            text += f"; a difference of {seconds_text(found['visible'])} would have been seen"
        if found["pairing"]:
            text += f"; {_bought(found['pairing'])}"
        yield text


def _bought(pairing: float) -> str:
    """What pairing by request did to the width of an interval (unpaired / paired)."""
    if pairing < _PAYS:
        return "pairing bought nothing"
    return f"pairing made the interval {pairing:.2g} times narrower"


def basis_lines(summary: dict[str, Any]) -> Iterator[str]:
    """What the intervals rest on, for the headline's median and P90; each figure's own is in summary.json."""
    for arm, one in summary["arms"].items():
        words = []
        for label, key in (("P50", "ttft_sched.p50"), ("P90", "ttft_sched.p90")):
            found = one["figures"].get(key)
            if found and found.get("deff") is not None and found.get("rows"):
                words.append(f"{label} design effect {found['deff']:.2f}, so {found['n_eff']:.0f} effective rows")
                counts = f"{found['rows']:,} rows in {found['sessions']:,} sessions"
        if words:
            yield f"{arm}'s 95% intervals, TTFT from due: {counts}; {'; '.join(words)}"


def lowest_line(arm: str, against: str, bucket: dict[str, Any]) -> str:
    """The lowest hit bucket in a sentence: where KV must move most."""
    words = []
    for label, metric in (("first token", "ttft_sched"), ("second token", "second_sched")):
        words.append(f"{label} {figure_text(bucket['by_request'][f'{metric}.p50'], signed=True)}")
    text = f"planned hit {bucket['bucket']}% ({bucket['requests']} requests), median difference by request from "
    text += f"{against}: {', '.join(words)}"
    transfer = bucket["kv_wan_s"]
    if not transfer["withheld"]:
        text += f"; {arm}'s KV transfer P50 {figure_text(transfer)}"
    return text + "."


def warmup_lines(summary: dict[str, Any]) -> Iterator[str]:
    """Where a warm-up cut is suggested; nothing when none is, or one was made."""
    if summary["run"].get("warmup_cut_s"):
        return
    for name, arm in summary["arms"].items():
        found = arm.get("warmup")
        if not found or not found["cut_s"]:
            continue
        if not found["settled"]:
            yield f"{name} did not settle within half of the run (MSER-5): run longer"
        elif found["cut_share"] > 0.02:
            yield (
                f"{name} settles after {found['cut_s']:.3g} s ({100 * found['cut_share']:.2g}% of its requests): "
                "--warmup auto leaves them out"
            )
