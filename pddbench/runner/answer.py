"""The answer of a finished run: summary, plots, table, checks; and the exit code that follows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pddbench.runner.conduct import RunOptions


def answer(folder: Path, options: RunOptions) -> int:
    """Print and save the answer of the run in `folder`; returns 0, 1, 98 or 99."""
    from pddbench.cli.report import show

    return show(folder, as_json=options.as_json, strict=options.strict)
