"""Trust in the link: over packets it must be as asked before, beside and after the load; events must be reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.finding import Finding
from pddbench.text import printable
from pddbench.wan.steps import not_reached

_PACKETS = ("netem", "tun")
_OVER_THE_LINK = ("naive", "pdd")
_ADVICE = (
    "look at runs[].link in manifest.json; a slow host needs a higher kv_scale or a lower speed, a changed link a "
    "machine that nobody else works on"
)


def link(data: Dataset) -> Iterator[Finding]:
    """The link was not as asked, or nobody looked."""
    manifest = data.run.manifest
    if manifest.get("simulated") or (manifest.get("wan") or {}).get("backend") not in _PACKETS:
        return
    runs = {(run.get("arm"), run.get("repeat")): run for run in manifest.get("runs") or []}
    for arm, part in data.arms.items():
        facts = data.arm_facts(arm)
        if (facts.get("emulated") or facts.get("deployment")) in _OVER_THE_LINK:
            for repeat in sorted(part.rows["repeat"].unique()):
                yield from _of(arm, runs.get((arm, int(repeat))) or {"repeat": int(repeat)})


def events(data: Dataset) -> Iterator[Finding]:
    """The run was over before the link was to change: nothing in it is about that event."""
    manifest = data.run.manifest
    texts = [str(text) for text in (manifest.get("wan") or {}).get("events") or []]
    missed: dict[str, list[str]] = {}
    for run in manifest.get("runs") or []:
        facts = data.arm_facts(str(run.get("arm")))
        over_the_link = (facts.get("emulated") or facts.get("deployment")) in _OVER_THE_LINK
        if over_the_link and run.get("status") != "killed":  # of a killed run nobody knows what its link did
            reached = {float(change["wanted_s"]) for change in run.get("link_changes") or []}
            for text in not_reached(texts, reached):
                missed.setdefault(text, []).append(f"{run.get('arm')}.{run.get('repeat')}")
    if missed:
        said = "; ".join(
            f"{printable(text, 80)!r} in {printable(', '.join(runs), 80)}" for text, runs in missed.items()
        )
        yield Finding(
            rule="wan_events",
            level="warning",
            message=f"[wan] events not reached before the run was over: {said}",
            advice="put the events earlier, or run longer",
        )


def _of(arm: str, run: dict[str, Any]) -> Iterator[Finding]:
    where, found = f"repeat {run.get('repeat')}", run.get("link") or {}
    if not found:
        problems = ["the link was never measured, or the run was killed before it was measured again"]
    else:
        problems = [printable(str(text), 200) for text in found.get("problems") or []]
        if not problems and not found.get("ok"):
            problems = ["the link's measurement is not in the manifest"]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        yield Finding(
            rule="link", level="invalid", arm=arm, message=f"{where}: {problems[0]}{more}", advice=_ADVICE
        )  # fmt: skip
