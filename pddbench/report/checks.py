"""What `pddbench check` prints and returns."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import click
import msgspec

from pddbench import exitcodes
from pddbench.analyze import trust
from pddbench.analyze.check import CheckResult, evaluate, exit_code, parse_check
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.finding import Finding
from pddbench.analyze.summary import build, to_dict
from pddbench.report import earlier
from pddbench.report.answer import own_checks, print_checks, print_json
from pddbench.runfolder.load import load


def check_run(
    path: Path,
    expressions: Collection[str],
    allow: Collection[str] = (),
    *,
    strict: bool,
    as_json: bool,
    baseline: Path | None = None,
    tolerance: str = "10%",
) -> int:
    """Evaluate the run's own thresholds, `expressions`, and the main figures against those of an earlier run.

    Prints one line each; returns 0, 1, 98 or 99.
    """
    data = Dataset(load(path))
    checks = own_checks(data) + [parse_check(text, data.run.arms) for text in expressions]
    allowed = [*(data.run.manifest.get("allow") or []), *allow]
    broken = [finding for finding in trust.findings(data, allowed) if finding.level == "invalid"]
    results = evaluate(checks, data)
    found = None
    if baseline is not None:
        found = earlier.compare(to_dict(build(data, allow)), baseline, tolerance)
        results += earlier.results(found)
    codes = [exit_code(results, strict)] + [exitcodes.INVALID for _ in broken]
    codes += [exitcodes.WORLD_FAILED for part in data.arms.values() if not part.rows["ok"].any()]
    code = exitcodes.worst(codes)
    if as_json:
        plain = {"checks": results, "invalid": broken, "exit_code": code, "earlier": found}
        print_json(msgspec.to_builtins(plain))
    else:
        if found is not None:
            click.echo(earlier.headline(found))
        _say(results, broken, strict)
    return code


def _say(results: list[CheckResult], broken: list[Finding], strict: bool) -> None:
    print_checks(results)
    if not results:
        click.echo("no thresholds: give --that EXPR, or a [check] table in the experiment")
    undecided = sum(result.status == "undecided" and not result.reason for result in results)
    if undecided and not strict:
        click.echo(f"warning: {undecided} undecided: the interval holds the limit; more sessions would tell", err=True)
    for finding in broken:
        arm = f" ({finding.arm})" if finding.arm else ""
        click.echo(f"invalid: {finding.rule}{arm}: {finding.message}; {finding.advice}", err=True)
