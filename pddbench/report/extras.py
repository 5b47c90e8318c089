"""Plots and page: what a run shows beside its answer, and must never cost it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from pddbench.text import printable


def make(folder: Path, names: tuple[str, ...], draw: Callable[[], object]) -> None:
    """Call `draw`, which writes the files `names` in `folder`. Whatever it raises becomes one warning sentence.

    Files of an earlier call are removed first: beside new figures an old picture would be a wrong one.
    """
    try:
        for name in names:
            (folder / name).unlink(missing_ok=True)
        draw()
    except OSError as error:
        _warn(folder / names[0], f"cannot be written ({error.strerror or printable(str(error))})")
    except Exception as error:  # noqa: BLE001 - the figures are right and wait to be shown; a picture is not worth them
        said = printable(f"{type(error).__name__}: {error}")
        _warn(
            folder / names[0], f"could not be drawn ({said}); table, summary.json and exit code stand; please report it"
        )


def _warn(file: Path, said: str) -> None:
    click.echo(f"warning: {file}: {said}", err=True)
