"""`pddbench compare`: two runs, or two arms of one."""

from __future__ import annotations

from pathlib import Path

import click

from pddbench.cli.common import ALLOW
from pddbench.errors import InputError


@click.command()
@click.argument("directories", metavar="A [B]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--arms", metavar="X,Y", help="Compare arms X and Y of the one run A (Y minus X).")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
@ALLOW
def compare(directories: tuple[Path, ...], arms: str | None, as_json: bool, allow: tuple[str, ...]) -> int:
    """Compare run folder B with A, arm by arm of the same name; or, with --arms, arms of A with each other.

    Requests pair by id and repeat where both were sent the same plan; the rest is counted as not comparable.
    Differences are B minus A, with sessions resampled jointly.
    """
    from pddbench.report import compared

    if arms is not None and len(directories) == 1:
        names = [name.strip() for name in arms.split(",")]
        return compared.show(compared.compare_arms(directories[0], names, allow), as_json=as_json)
    if arms is None and len(directories) == 2:
        return compared.show(compared.compare_runs(*directories, allow), as_json=as_json)
    raise InputError("compare takes two run folders, or one with --arms X,Y")
