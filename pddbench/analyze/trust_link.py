"""The trust rule `link`: a run over packets needs a link that was as asked before, beside and after the load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.finding import Finding
from pddbench.text import printable

_PACKETS = ("netem", "tun")
OVER_THE_LINK = ("naive", "pdd")
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
        if (facts.get("emulated") or facts.get("deployment")) in OVER_THE_LINK:
            for repeat in sorted(part.rows["repeat"].unique()):
                yield from _of(arm, runs.get((arm, int(repeat))) or {"repeat": int(repeat)})


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
