"""`pddbench run`: an experiment file on all its arms."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pddbench.cli.common import run_options, workload_options

if TYPE_CHECKING:
    from pddbench.workload.experiment import Experiment

_FIELDS = (
    "seed",
    "repeats",
    "limit_requests",
    "idle_cap_s",
    "time_scale",
    "timing",
    "duration_s",
    "warmup_s",
    "history",
    "workers",
)


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@workload_options
@click.option("--speed", type=float, help="Experiment seconds a wall second of the emulated arms.")
@run_options
def run(experiment: Path, speed: float | None, **given: Any) -> int:
    """Run EXPERIMENT (a TOML file): the same requests on every arm, then the side-by-side table.

    The run folder holds Parquet files, a manifest, summary.json and plots; see README.md.
    """
    from pddbench.runner.conduct import RunOptions, conduct
    from pddbench.workload.load import check, load_experiment

    loaded = load_experiment(experiment)
    override(loaded, given)
    if speed is not None:
        loaded.emulator.speed = speed
    check(loaded, "command line")
    return conduct(loaded, RunOptions(**given))


def override(experiment: Experiment, given: dict[str, Any]) -> None:
    """Take the workload options out of `given` and put those that were set into the experiment."""
    for name in _FIELDS:
        value = given.pop(name, None)
        if value is not None:
            setattr(experiment.workload, name, value)
