"""`pddbench bathtub` where it makes the sweep itself: on the arms of an experiment file, or on one endpoint."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from pddbench import exitcodes
from pddbench.errors import InputError
from pddbench.runner import consent, describe, manifest
from pddbench.runner.order import fresh_salts
from pddbench.runner.prepare import Prepared, prepare
from pddbench.scratch import scratch_folder
from pddbench.workload.experiment import Arm, Experiment, Slo, Workload
from pddbench.workload.sweep import SweepShape, sweep_trace

TRACE = "sweep.trace.jsonl.zst"
MOST_REQUESTS = 100_000


@dataclass(frozen=True)
class SweepOptions:
    """How to sweep. `rounds`: how often the whole sweep is made, for intervals; in virtual time all are alike."""

    shape: SweepShape = field(default_factory=SweepShape)
    rounds: int = 3
    simulated: bool = False
    out: Path | None = None
    wan: str | None = None
    yes: bool = False
    quiet: bool = False
    dry_run: bool = False


def run_sweep(experiment: Experiment, options: SweepOptions) -> tuple[Path, int | None] | None:
    """Make the sweep; its run folder and the exit code of a signal that came, or None after a dry run."""
    from pddbench.runner.conduct import default_folder, make_folder

    if options.simulated and any(arm.emulated is None for arm in experiment.arm):
        raise InputError("only emulated arms can be simulated: leave the arms with a base_url or an engine out")
    _check_size(options)
    with scratch_folder("bathtub") as place:
        prepared = _prepared(experiment, options, place / TRACE)
        _check_queue(prepared, options)
        if not options.quiet or options.dry_run:
            for line in describe.lines(prepared):
                click.echo(line, err=not options.dry_run)
        if options.dry_run:
            return None
        consent.ask(prepared, yes=options.yes, max_cost=None)
        folder = make_folder(options.out or default_folder(f"{experiment.name}-bathtub"), force=False)
        shutil.copy(place / TRACE, folder / TRACE)
        return folder, _execute(prepared, folder, options)


def _check_size(options: SweepOptions) -> None:
    requests = options.shape.requests * len(options.shape.percents()) * options.rounds
    if requests > MOST_REQUESTS:
        raise InputError(f"{requests:,} requests: a larger --step, fewer --requests or fewer --rounds")


def _check_queue(prepared: Prepared, options: SweepOptions) -> None:
    """Refuse stages no larger than an emulated arm's prefill instances: all end together, and none gives a rate."""
    for setup in prepared.arms:
        instances = setup.spec.roles["P"].count if setup.spec is not None and "P" in setup.spec.roles else 0
        if options.shape.requests <= instances:
            raise InputError(
                f"--requests {options.shape.requests}: arm {setup.name} prefills on {instances} instances, so a stage "
                f"has no queue and gives no rate; give --requests {instances + 1} or more ({4 * instances} is better)"
            )


def _prepared(experiment: Experiment, options: SweepOptions, file: Path) -> Prepared:
    """The experiment's arms with the sweep in the place of its workload; objectives and checks are not for a sweep."""
    from pddbench.trace.canonical import write_trace
    from pddbench.workload.load import check

    write_trace(sweep_trace(options.shape), file)
    work = experiment.workload
    experiment.workload = Workload(
        trace=str(file), arrival="trace", timing="none", prompt=work.prompt, output=work.output, seed=work.seed,
        repeats=1 if options.simulated else options.rounds, stall_timeout_s=work.stall_timeout_s,
        request_limit_s=work.request_limit_s,
    )  # fmt: skip
    experiment.slo, experiment.check = Slo(), {}
    if options.simulated:
        experiment.emulator.speed = 1.0
        for arm in experiment.arm:
            arm.speed = None
    check(experiment, "command line")
    return prepare(experiment, "model" if options.simulated else options.wan)


def _execute(prepared: Prepared, folder: Path, options: SweepOptions) -> int | None:
    from pddbench.live.board import Announced
    from pddbench.runner.execute import execute, execute_simulated
    from pddbench.runner.progress import Progress
    from pddbench.runner.signals import catching
    from pddbench.runner.simulate import simulated_salts

    work = prepared.experiment.workload
    salts = simulated_salts(work.repeats, work.seed) if options.simulated else fresh_salts(work.repeats)
    facts: dict[str, Any] = manifest.build(prepared, salts) | {"simulated": options.simulated}
    manifest.write(folder, facts)
    announced = Announced(prepared.experiment.name, str(folder), prepared.order, len(prepared.plan.measured), 0.0)
    progress = Progress(announced, quiet=options.quiet)
    with catching() as stop:
        if options.simulated:
            execute_simulated(prepared, folder, facts, salts, stop, progress, by_token=False, gaps=True)
        else:
            execute(prepared, folder, facts, salts, stop, progress)
        facts["finished_utc"] = manifest.utc_now()
        manifest.write(folder, facts)
    return stop.exit_code


def endpoint_experiment(arm: Arm, name: str = "endpoint") -> Experiment:
    """An experiment of one live endpoint."""
    chat = "chat" in (arm.endpoint or "")
    return Experiment(name=name, workload=Workload(trace="", prompt="text" if chat else "token_ids"), arm=[arm])


def conduct(experiment: Experiment, options: SweepOptions, *, chunk: int | None, cached_price: float,
            as_json: bool) -> int:  # fmt: skip
    """Sweep, save, answer; the exit code."""
    from pddbench.report.bathtub import answer, check_price

    check_price(cached_price)
    made = run_sweep(experiment, options)
    if made is None:
        return exitcodes.GOOD
    folder, signal = made
    if signal is not None:
        click.echo(f"pddbench: stopped; what was measured is in {folder}", err=True)
        return signal
    code = answer(folder, chunk, cached_price, as_json=as_json)
    click.echo(f"{folder}: bathtub.json, bathtub.png", err=True)
    return code
