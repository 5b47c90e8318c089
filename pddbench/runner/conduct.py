"""The flow of `pddbench run` and `pddbench replay`, from an experiment to an exit code."""

from __future__ import annotations

import shutil
import signal
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec

from pddbench import exitcodes
from pddbench.errors import InputError, PddbenchError
from pddbench.runner import consent, describe, manifest
from pddbench.runner.order import fresh_salts
from pddbench.runner.prepare import Prepared, prepare
from pddbench.runner.progress import Progress
from pddbench.runner.signals import Ended, Stop, catching
from pddbench.text import printable
from pddbench.workload.experiment import Experiment

MOST_GAPS = 40_000_000


@dataclass(frozen=True)
class RunOptions:
    """What the command line says about a run, besides the experiment itself."""

    out: Path | None = None
    force: bool = False
    dry_run: bool = False
    wan: str | None = None
    yes: bool = False
    max_cost: float | None = None
    allow: tuple[str, ...] = ()
    strict: bool = False
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False
    serve: str | None = None
    simulated: bool = False
    by_token: bool = False
    no_gaps: bool = False


def conduct(experiment: Experiment, options: RunOptions) -> int:
    """Prepare, agree, run every arm, save, answer; returns the exit code. Raises `PddbenchError`."""
    from pddbench.analyze.check import parse_checks
    from pddbench.analyze.trust import check_names

    experiment.allow = [*experiment.allow, *options.allow]
    check_names(experiment.allow)
    parse_checks(experiment.check, [arm.name for arm in experiment.arm])
    if options.simulated and experiment.workload.repeats > 1:
        experiment.workload.repeats = 1
        click.echo("note: in virtual time every repeat is the same, and would count twice: one is run", err=True)
    prepared = prepare(experiment, options.wan)
    if options.simulated and any(setup.spec is None for setup in prepared.arms):
        raise InputError("only emulated arms can be simulated: leave the arms with a base_url or an engine out")
    if options.simulated:
        _check_size(prepared, options)
    if options.serve is not None:
        from pddbench.live.server import address

        address(options.serve)  # what cannot be used is said in a dry run too
    if options.dry_run:
        _show_plan(prepared, options, to_stderr=False)
        return exitcodes.GOOD
    _show_plan(prepared, options, to_stderr=True)
    consent.ask(prepared, yes=options.yes, max_cost=options.max_cost)
    if options.quiet and options.verbose:
        raise InputError("--quiet and --verbose exclude each other: give one of them")
    listener = _listener(options.serve)
    folder = make_folder(options.out or default_folder(experiment.name), options.force)
    return _run_and_answer(prepared, folder, options, _progress(prepared, folder, options, listener))


def _listener(address: str | None) -> socket.socket | None:
    """The socket of `--serve`, bound before any traffic, and where it is for a browser."""
    if address is None:
        return None
    from pddbench.live import server

    listener = server.bind(address)
    where = server.url(listener)
    click.echo(f"live: {where} (Prometheus: {where}metrics)", err=True)
    return listener


def _progress(prepared: Prepared, folder: Path, options: RunOptions, listener: socket.socket | None) -> Progress:
    """What will show the run."""
    from pddbench.live.board import Announced

    announced = Announced(
        name=printable(prepared.experiment.name, 80),
        runs=prepared.order,
        folder=str(folder.resolve()),
        requests=prepared.plan.count_measured,
        planned_s=prepared.duration_s() / max(1, len(prepared.order)),
        speed=prepared.speed,
        simulated=options.simulated,
    )
    return Progress(announced, quiet=options.quiet, verbose=options.verbose, listener=listener)


def _check_size(prepared: Prepared, options: RunOptions) -> None:
    """A simulation makes tokens faster than their gaps can be analysed: about 90 bytes each."""
    tokens = prepared.tokens()[1] * len(prepared.arms)
    if tokens > MOST_GAPS and not options.no_gaps:
        raise InputError(
            f"{tokens / 1e6:,.0f} million tokens: the gaps between them would take {tokens * 90 / 1e9:,.0f} GB to "
            "analyse; leave them out with --no-gaps (TTFT, largest gap and all else stay), or use --limit-requests"
        )
    if options.no_gaps and options.by_token:
        raise InputError("--no-gaps and --by-token exclude each other: give one of them")


def _show_plan(prepared: Prepared, options: RunOptions, *, to_stderr: bool) -> None:
    """The plan for a person on stderr before a run; on stdout, JSON if asked, for a dry run."""
    if not to_stderr and options.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(describe.planned(prepared)), indent=2).decode())
    elif not (to_stderr and options.quiet):
        for line in describe.lines(prepared):
            click.echo(line, err=to_stderr)


def default_folder(name: str) -> Path:
    """`results/<name>-<UTC>` under the current folder."""
    return Path("results") / f"{name}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}"


def _taken(folder: Path) -> bool:
    try:
        return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except (OSError, ValueError) as error:
        raise InputError(f"cannot use {str(folder)[:80]} as --out: {error}") from None


def _nothing_in_it(folder: Path) -> bool:
    """A run folder whose run failed before any load (a refused preflight): there is nothing to lose."""
    if not (folder / manifest.FILE).is_file():
        return False
    kept = [*(folder / "requests").glob("*"), *(folder / "spool").glob("*.spool")]
    return not kept


def make_folder(folder: Path, force: bool) -> Path:
    """A new, empty run folder. An existing one is an error (2) unless `force`, which replaces run folders only."""
    if _taken(folder):
        if not force and not _nothing_in_it(folder):
            raise InputError(f"{folder} already exists: choose another --out, or --force to replace that run")
        if not (folder / manifest.FILE).is_file():
            raise InputError(f"{folder} exists and is not a run folder: --force replaces run folders only")
        shutil.rmtree(folder)
    try:
        (folder / "spool").mkdir(parents=True, exist_ok=True)
        for name in ("requests", "events", "server", "health"):
            (folder / name).mkdir(exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    return folder


def _run_and_answer(prepared: Prepared, folder: Path, options: RunOptions, progress: Progress) -> int:
    """Traffic and what comes of it: the manifest exists from the first moment and is completed at the end."""
    from pddbench.runner.execute import execute, execute_simulated
    from pddbench.runner.simulate import simulated_salts

    work = prepared.experiment.workload
    salts = simulated_salts(work.repeats, work.seed) if options.simulated else fresh_salts(work.repeats)
    facts: dict[str, Any] = manifest.build(prepared, salts) | {"simulated": options.simulated}
    manifest.write(folder, facts)
    with catching() as stop:
        if options.simulated:
            by_token, gaps = options.by_token, not options.no_gaps
            execute_simulated(prepared, folder, facts, salts, stop, progress, by_token=by_token, gaps=gaps)
        else:
            execute(prepared, folder, facts, salts, stop, progress)
        facts["finished_utc"] = manifest.utc_now()
        manifest.write(folder, facts)
        if stop.exit_code is not None and _nothing_in_it(folder):
            name = signal.Signals(stop.exit_code - 128).name
            click.echo(f"pddbench: stopped by {name} before any request was sent: there is nothing to report", err=True)
            return stop.exit_code
        try:
            return _answer(folder, options, stop)
        except Ended:
            click.echo(
                f"pddbench: stopped before the answer was complete; all rows are in {folder}: "
                f"`pddbench report {folder}` makes it again",
                err=True,
            )
            return stop.exit_code or exitcodes.SIGINT


def _answer(folder: Path, options: RunOptions, stop: Stop) -> int:
    """Table and report of the run; a signal that stopped it earlier decides the exit code. Raises `Ended`."""
    from pddbench.report.answer import answer

    signal_code = stop.exit_code
    stop.answering = True
    try:
        code = answer(folder, strict=options.strict, as_json=options.as_json)
    except PddbenchError as error:
        if signal_code is None:
            raise
        click.echo(f"pddbench: {error}", err=True)  # nothing had been measured yet: the signal's code stands
        return signal_code
    finally:
        stop.answering = False
    return exitcodes.worst([signal_code, code] if signal_code else [code])
