"""`pddbench simulate`: an experiment's emulated arms in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pddbench.cli.common import ALLOW, options, workload_options
from pddbench.cli.run import override


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@workload_options
@options(
    click.option("--out", type=click.Path(path_type=Path), help="Run folder [results/<name>-<UTC>]."),
    click.option("--force", is_flag=True, help="Replace an existing run folder."),
    click.option("--by-token", is_flag=True, help="Make every token and send it through the live reply code: slow."),
    click.option("--no-gaps", is_flag=True, help="Leave the gaps between tokens out: for runs of very many tokens."),
    click.option("--dry-run", is_flag=True, help="Show what would be simulated, and stop."),
    ALLOW,
    click.option("--strict", is_flag=True, help="An undecided check fails (99)."),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
    click.option("--quiet", is_flag=True, help="No progress, only the answer."),
)
def simulate(experiment: Path, **given: Any) -> int:
    """Run the emulated arms of EXPERIMENT in virtual time: the live code without sockets, waiting or jitter.

    The run folder is that of `run`, marked as simulated; the same seed gives the same bits.
    """
    from pddbench.deploy.presets import check_speed
    from pddbench.runner.conduct import RunOptions, conduct
    from pddbench.workload.load import check, load_experiment

    loaded = load_experiment(experiment)
    override(loaded, given)
    check_speed(loaded)  # wrong in a file that `run` would refuse; here it has nothing to do
    loaded.emulator.speed = 1.0
    for arm in loaded.arm:
        arm.speed = None
    check(loaded, "command line")
    return conduct(loaded, RunOptions(simulated=True, wan="model", **given))
