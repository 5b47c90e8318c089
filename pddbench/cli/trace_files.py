"""What the `pddbench trace` commands have in common: files in and out, options."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pddbench.trace.columns import Columns
    from pddbench.trace.model import Trace

FORMAT = click.option(
    "--format",
    "format_name",
    metavar="NAME",
    help="canonical, mooncake, mooncake-sessions, mooncake-cumulative, mooncake-delta, dynamo, weka, bailian, azure, "
    "burstgpt, tracelab, otel, sharegpt or sweagent; default: seen from the content.",
)
SOURCE_BLOCK = click.option(
    "--source-block-tokens",
    "source_block",
    type=click.IntRange(1, 1_000_000),
    help="Tokens that an id of FILE stands for, where the format does not say (mooncake…, dynamo, bailian).",
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for a machine, nothing else.")
FORCE = click.option("--force", is_flag=True, help="Replace an existing output file.")


def read(path: Path, format_name: str | None, source_block: int | None = None) -> Trace:
    """The trace in a file or folder of any known format."""
    from pddbench.trace.read import read_trace

    return read_trace(path, format_name, source_block)


def read_any(path: Path, format_name: str | None, source_block: int | None = None) -> tuple[Columns, Trace | None]:
    """The trace in columns; of a format that is not canonical also its rows, with their text.

    A canonical trace may be of any length: it is read batch by batch.
    """
    from pddbench.trace.columns import columns_of, read_columns
    from pddbench.trace.read import is_canonical

    if source_block is None and is_canonical(path, format_name):
        return read_columns(path), None
    found = read(path, format_name, source_block)
    return columns_of(found), found


def check_free(out: Path, force: bool, any_suffix: bool = False) -> None:
    """What would fail at the end fails at the start."""
    from pddbench.errors import InputError
    from pddbench.trace.canonical import check_suffix

    if not any_suffix:
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


def write(made: Columns, out: Path) -> None:
    """Write a canonical trace and say so."""
    from pddbench.trace.quota.write import write_rows

    n = write_rows(made.header, made.rows(), out)
    click.echo(f"{out}: written, {n:,} requests in {sessions_text(made.sessions)}, {out.stat().st_size:,} bytes")


def check_side(source: Path, out: Path, force: bool) -> None:
    """An old side file where that of OUT may go is not overwritten in passing (that of IN itself is left alone)."""
    from pddbench.errors import InputError
    from pddbench.trace.content import side_path

    side = side_path(out)
    if side.exists() and side != side_path(source) and not force:
        raise InputError(f"{side}: exists already; --force replaces it")


def write_side(found: Trace | None, source: Path, out: Path) -> None:
    """The text of a trace, from its own format or from the side file of a canonical one."""
    from pddbench.trace.content import read_content_file, side_path, write_content

    side, content = side_path(out), found.content if found is not None else None
    if content is None and side != side_path(source) and side_path(source).is_file():
        content = read_content_file(side_path(source))
    if content is not None:
        write_content(content, side)
        click.echo(f"{side}: written, the text of {len(content):,} requests, {side.stat().st_size:,} bytes")


def write_mooncake(found: Trace, out: Path, block_tokens: int) -> None:
    """Write a trace as Mooncake rows and say what that form cannot hold."""
    from pddbench.trace.to_mooncake import write_mooncake as write_rows

    lost = write_rows(found, out, block_tokens)
    size = out.stat().st_size
    click.echo(f"{out}: written, {len(found.rows):,} requests in blocks of {block_tokens:,} tokens, {size:,} bytes")
    click.echo("lost:" if lost else "lost: nothing")
    for text in lost:
        click.echo(f"  - {text}")
