"""`pddbench compare`: arms of two run folders, or two arms of one, on the requests both have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pddbench import exitcodes
from pddbench.analyze import trust
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.paired import Pair, pair
from pddbench.analyze.summary import PairSummary, pair_summary
from pddbench.errors import InputError, suggest
from pddbench.runfolder.load import load
from pddbench.text import printable


class Comparison(msgspec.Struct, kw_only=True):
    """What `compare --json` prints: the runs, a pair by name, what could not be compared and why, broken rules."""

    runs: dict[str, str]
    pairs: dict[str, PairSummary]
    not_comparable: list[str]
    invalid: list[str]

    def __repr__(self) -> str:
        return f"Comparison({', '.join(self.runs.values())}: {', '.join(self.pairs)})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from pddbench.report.html.card import comparison_card

        return comparison_card(self).text


def compare_arms(path: Path, arms: Sequence[str], allow: Sequence[str] = ()) -> Comparison:
    """Arms of one run: each of `arms` with the first."""
    return compare_data(Dataset(load(path)), arms, allow)


def compare_data(data: Dataset, arms: Sequence[str], allow: Sequence[str] = ()) -> Comparison:
    """Arms of a run that is loaded: each of `arms` with the first."""
    for arm in arms:
        if arm not in data.arms:
            raise InputError(f"--arms: no arm {arm!r} in {data.run.path}; {suggest(arm, list(data.arms))}")
    if len(set(arms)) < 2:
        raise InputError("--arms: give two different arms, as in --arms baseline,pdd")
    first, *others = dict.fromkeys(arms)
    notes: list[str] = []
    pairs = {other: _summary(data.pair(first, other), other, first, notes) for other in others}
    return Comparison(
        runs={"A": str(data.run.path)},
        pairs=_kept(pairs),
        not_comparable=notes,
        invalid=_invalid([data], allow),
    )


def compare_runs(a: Path, b: Path, allow: Sequence[str] = ()) -> Comparison:
    """Arms of the same name in two runs, `b` minus `a`; requests pair where their plans agree."""
    left, right = Dataset(load(a)), Dataset(load(b))
    common = [arm for arm in left.arms if arm in right.arms]
    if not common:
        raise InputError(f"no arm of the same name in {a} ({', '.join(left.arms)}) and {b} ({', '.join(right.arms)})")
    notes = [f"arm {arm}: only in one run" for arm in {*left.arms, *right.arms} - set(common)] + _facts(left, right)
    pairs = {}
    for arm in common:
        found = pair(left.side(arm), right.side(arm))
        pairs[f"{arm} (B)"] = _summary(found, f"{arm} (B)", f"{arm} (A)", notes)
    return Comparison(
        runs={"A": str(left.run.path), "B": str(right.run.path)},
        pairs=_kept(pairs),
        not_comparable=notes,
        invalid=_invalid([left, right], allow),
    )


def _summary(found: Pair, name: str, against: str, notes: list[str]) -> PairSummary | None:
    """A pair's summary, None when no request is in both; what was left out goes to `notes`."""
    if found.unmatched:
        notes.append(f"{name}: {found.unmatched} requests are on one side only")
    if found.differing:
        notes.append(f"{name}: {found.differing} requests of the same id have other plans, or none noted (plan_sha256)")
    if len(found.a.rows) == 0:
        notes.append(f"{name}: no request in common")
        return None
    return pair_summary(found, against)


def _kept(pairs: dict[str, PairSummary | None]) -> dict[str, PairSummary]:
    return {name: found for name, found in pairs.items() if found is not None}


def _facts(left: Dataset, right: Dataset) -> list[str]:
    """Settings of the two runs that differ and bear on the figures."""
    out = []
    for key in ("trace", "timing", "prompt", "output", "slo", "wan", "time_scale", "idle_cap_s"):
        a, b = (_essence(key, data.run.manifest.get(key)) for data in (left, right))
        if a != b:
            out.append(f"the runs differ in {key}: {a} / {b}")
    return out


def _essence(key: str, value: Any) -> Any:
    """What counts of a manifest entry."""
    if key == "trace" and isinstance(value, dict):
        return value.get("sha256")
    if key == "wan" and isinstance(value, dict):
        return f"{value.get('backend')} {value.get('profile')}"
    return value


def _invalid(runs: Sequence[Dataset], allow: Sequence[str]) -> list[str]:
    out = []
    for data in runs:
        allowed = [*(data.run.manifest.get("allow") or []), *allow]
        for finding in trust.findings(data, allowed):
            if finding.level == "invalid":
                out.append(f"{data.run.path.name}: {finding.rule}: {finding.message}")
    return out


def show(comparison: Comparison, *, as_json: bool) -> int:
    """Print a comparison; returns 98 when a run broke its rules, else 0. InputError when nothing could be compared."""
    if not comparison.pairs:
        raise InputError("nothing to compare: " + "; ".join(comparison.not_comparable))
    if as_json:
        from pddbench.report.answer import print_json

        print_json(msgspec.to_builtins(comparison))
    else:
        _print(comparison)
    return exitcodes.INVALID if comparison.invalid else exitcodes.GOOD


def _print(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.text import Text

    from pddbench.report.table import render_pair

    console = Console(highlight=False)
    for name, folder in comparison.runs.items():
        console.print(Text(f"{name}: {printable(folder)}"))
    for name, found in comparison.pairs.items():
        render_pair(console, name, msgspec.to_builtins(found))
    for note in comparison.not_comparable:
        console.print(Text(f"! not comparable: {note}"))
    for broken in comparison.invalid:
        console.print(Text(f"✗ invalid: {broken}"))
