"""The answer of a finished run: summary.json, plots, the table on the terminal, checks, and the exit code."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from pddbench import exitcodes
from pddbench.analyze import stationarity
from pddbench.analyze.check import Check, CheckResult, evaluate, exit_code, parse_checks
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.summary import build, to_dict
from pddbench.errors import InputError
from pddbench.report import earlier as before
from pddbench.report import units
from pddbench.runfolder.load import load


def answer(
    path: Path,
    allow: Collection[str] = (),
    *,
    strict: bool = False,
    as_json: bool = False,
    ci: Path | None = None,
    earlier: tuple[Path, str] | None = None,
    warmup: str | None = None,
) -> int:
    """Summarise the run in `path`: write summary.json, plots and report.html, print table and checks.

    Returns 0, 1, 98 or 99. With `as_json` the summary, with a key `checks`, is printed instead of the table. Files for
    a CI job go to the folder `ci`. `earlier` is another run's summary.json and the tolerance: what must not be worse.
    `warmup` is what to cut (`cut_dataset`).
    """
    if ci is not None:
        ci_folder(ci)
    data = cut_dataset(path, warmup)
    summary = build(data, allow)
    plain = to_dict(summary)
    results = evaluate(own_checks(data), data)
    against = None if earlier is None else before.compare(plain, *earlier)
    results += [] if against is None else before.results(against)
    unwritten = _try_write(data, plain)
    if not unwritten:
        write_page(data, plain, results)
    if ci is not None:
        from pddbench.report.ci import write_ci

        write_ci(ci, plain, results, strict)
    if as_json:
        print_json(plain | {"checks": msgspec.to_builtins(results)})
    else:
        from rich.console import Console

        from pddbench.report.table import render

        console = Console(highlight=False)
        render(plain, console)
        if against is not None:
            click.echo(before.headline(against))
        print_checks(results)
    if unwritten:
        raise unwritten
    return exitcodes.worst([summary.exit_code, exit_code(results, strict)])


def cut_dataset(path: Path, warmup: str | None) -> Dataset:
    """The run in `path` without its warm-up: `auto` as MSER-5 suggests (the latest of all arms), or seconds."""
    data = Dataset(load(path))
    if warmup is None:
        return data
    if warmup != "auto":
        try:
            cut_s = float(warmup)
        except ValueError:
            cut_s = -1.0
        if not 0 <= cut_s < float("inf"):
            raise InputError(f"--warmup {warmup}: seconds, or auto")
    else:
        found = [stationarity.warmup(part.rows) for part in data.arms.values()]
        cut_s = max((one.cut_s or 0.0 for one in found), default=0.0)
    cut = Dataset(data.run, warmup_s=cut_s)
    if any(part.rows.empty for part in cut.arms.values()):
        raise InputError(f"--warmup {warmup}: leaves no request of an arm to measure")
    return cut


def _try_write(data: Dataset, summary: dict[str, Any]) -> InputError | None:
    """Write before printing (`| head` may end us), but show the answer before complaining about a read-only folder."""
    try:
        write(data, summary)
    except InputError as error:
        return error
    return None


def own_checks(data: Dataset) -> list[Check]:
    """The thresholds the experiment came with."""
    manifest = data.run.manifest
    table = manifest.get("check") or (manifest.get("config") or {}).get("check") or {}
    return parse_checks(table, data.run.arms)


def write(data: Dataset, summary: dict[str, Any]) -> None:
    """Write summary.json and the plots into the run folder. InputError when summary.json cannot be written."""
    from pddbench.report import extras

    folder = data.run.path
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2)
    try:
        (folder / "summary.json").write_bytes(text + b"\n")
    except OSError as error:
        raise InputError(f"{folder}: cannot be written to ({error.strerror})") from error
    extras.make(folder, ("ttft.png", "ttft.svg"), lambda: _plot("plot", "plot_dataset", data))
    extras.make(folder, ("hits.png", "hits.svg"), lambda: _plot("plot_hits", "plot_hits", data))


def _plot(module: str, function: str, data: Dataset) -> None:
    """Call a plotting function; matplotlib is only imported here, and may itself be what fails."""
    getattr(importlib.import_module(f"pddbench.report.{module}"), function)(data, data.run.path)


def write_page(data: Dataset, summary: dict[str, Any], results: Sequence[CheckResult]) -> None:
    """Write report.html into the run folder."""
    from pddbench.report import extras
    from pddbench.report.html.page import page

    file = data.run.path / "report.html"
    extras.make(data.run.path, (file.name,), lambda: file.write_text(page(data, summary, results), encoding="utf-8"))


def ci_folder(folder: Path) -> None:
    """Make the folder for CI files, before anything takes time."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--ci {folder}: cannot be made ({error.strerror})") from error


def print_json(value: Any) -> None:
    """A value as indented JSON on stdout."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_checks(results: Iterable[CheckResult]) -> None:
    """One line a threshold: how it came out, and on which interval."""
    for result in results:
        click.echo(check_line(result))


def check_line(result: CheckResult) -> str:
    """`breach: pdd.ttft.p90 < 1 s (1.32 [1.20, 1.41] s)`."""
    if result.reason:
        return f"{result.status}: {result.text} ({result.reason})"
    figure = msgspec.to_builtins(result.figure)
    scale, unit = units.pick([figure], figure["unit"])
    what = "difference " if "*" in result.text or (result.limit == 0 and result.figure.deff is None) else ""
    warn = " (only a warning)" if result.severity == "warn" and result.status != "pass" else ""
    return f"{result.status}: {result.text} ({what}{units.cell(figure, scale)} {unit}){warn}"
