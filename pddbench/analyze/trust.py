"""How far a run's own numbers can be trusted: every rule by name, with what was measured, its limit and what to do.

`invalid` findings end in exit 98 unless `--allow NAME` turns them into warnings; `warning`s are said beside the
figures. (The third class, `withheld`, blanks a single figure and lives with it: `Figure.withheld`.)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from pddbench.analyze import trust_engines, trust_link, trust_rows, trust_timing, trust_warn
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.finding import Finding
from pddbench.errors import InputError, suggest

Rule = Callable[[Dataset], Iterator[Finding]]

RULES: dict[str, Rule] = {
    "send_lag": trust_timing.send_lag,
    "loop_lag": trust_timing.loop_lag,
    "link": trust_link.link,
    "exact": trust_engines.exact,
    "hits": trust_rows.hits,
    "lengths": trust_rows.lengths,
    "prompt_lengths": trust_rows.prompt_lengths,
    "throttle": trust_timing.throttle,
    "client_cpu": trust_timing.client_cpu,
    "emulator_late": trust_timing.emulator_late,
    "salt": trust_rows.salt,
    "bytes": trust_rows.plan_bytes,
    "backlog": trust_timing.backlog,
    "clock": trust_rows.clock,
    "own_failures": trust_rows.own_failures,
}


def check_names(allow: Collection[str]) -> None:
    """InputError when a name given to `--allow` is no rule."""
    for name in allow:
        if name not in RULES:
            raise InputError(f"--allow {name}: no rule of that name; {suggest(name, list(RULES))}")


def findings(data: Dataset, allow: Collection[str] = ()) -> list[Finding]:
    """What all rules found, invalid ones first; those allowed are warnings."""
    check_names(allow)
    found: list[Finding] = []
    for name, rule in RULES.items():
        for finding in rule(data):
            if name in allow:
                finding.level, finding.allowed = "warning", True
            found.append(finding)
    for warn in trust_warn.WARNINGS:
        found.extend(warn(data))
    return sorted(found, key=lambda finding: finding.level != "invalid")
