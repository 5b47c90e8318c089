"""What the `pddbench trace` commands have in common: files in and out, options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pddbench.trace.model import Trace

FORMAT = click.option(
    "--format", "format_name", metavar="NAME", help="canonical, mooncake or weka; default: seen from the content."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for a machine, nothing else.")
FORCE = click.option("--force", is_flag=True, help="Replace an existing output file.")


def read(path: Path, format_name: str | None) -> Trace:
    """The trace in a file or folder of any known format."""
    from pddbench.trace.read import read_trace

    return read_trace(path, format_name)


def check_free(out: Path, force: bool) -> None:
    """What would fail at the end fails at the start."""
    from pddbench.errors import InputError
    from pddbench.trace.canonical import check_suffix

    check_suffix(out)
    if out.is_dir():
        raise InputError(f"{out}: is a directory; give the name of a file")
    if not out.parent.is_dir():
        raise InputError(f"{out}: the directory {out.parent} does not exist")
    if out.exists() and not force:
        raise InputError(f"{out}: exists already; --force replaces it")


def sessions_text(n: int) -> str:
    """`1 session`, `12,345 sessions`."""
    return f"{n:,} session{'' if n == 1 else 's'}"
