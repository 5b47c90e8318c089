"""`pddbench recover DIR`: finish the run folder of a run that was killed."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import msgspec


def _nothing(folder: Path, absent: list[str]) -> str:
    """What a folder without spools holds, in one sentence."""
    there = sorted(path.stem for path in (folder / "requests").glob("*.parquet"))
    never = f"; never began: {', '.join(absent)}" if absent else ""
    if not there:
        return f"nothing to recover: no run left anything in this folder{never}"
    ask = f"`pddbench report {shlex.quote(str(folder))}` tells what they found"
    return f"nothing to recover: what began has all its rows ({', '.join(there)}), and {ask}{never}"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print what was recovered as JSON.")
def recover(folder: Path, as_json: bool) -> None:
    """Finish the run folder FOLDER of a run that was killed: its spools become Parquet, the manifest says partial."""
    from pddbench.errors import WorldError
    from pddbench.runfolder import recover as recovering

    found = recovering.recover(folder)
    absent = recovering.missing(folder)
    if as_json:
        click.echo(msgspec.json.encode({"recovered": found, "missing": absent}).decode())
    else:
        for one in found:
            click.echo(one.sentence)
        if not found:
            click.echo(_nothing(folder, absent))
        elif absent:
            click.echo(f"never began: {', '.join(absent)}")
    if found and all(one.error is not None for one in found):
        raise WorldError(f"nothing of {folder} could be recovered")
