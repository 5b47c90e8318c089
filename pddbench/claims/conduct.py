"""The flow of `pddbench claims`: measure, print as it goes, write JSON and a page."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from pddbench import __version__, exitcodes
from pddbench.claims.experiments import Size
from pddbench.claims.model import Claim, Row
from pddbench.claims.page import html_page, markdown_page, row_line
from pddbench.claims.scenes import Scenes
from pddbench.claims.table import CLAIMS, measure
from pddbench.errors import InputError, suggest

FILES = {"claims.json": "JSON", "claims.md": "Markdown", "claims.html": "HTML"}
VERDICTS = ("agrees", "differs", "undecided", "not testable here")


def conduct(
    folder: Path | None, only: tuple[str, ...], seed: int, *, size: Size, live: Sequence[Path], as_json: bool
) -> int:
    """Measure the claims and print them, in virtual time or (`live`) from finished runs; raises `InputError`."""
    wanted = _wanted(only)
    rows_of = _live(live, wanted) if live else _simulated(wanted, seed, size)
    if folder is not None:
        _make(folder)
    rows: list[Row] = []
    start, cpu = time.monotonic(), time.process_time()
    for row in rows_of:
        rows.append(row)
        if not as_json:
            click.echo(row_line(row))
        if folder is not None:
            _write(folder, result(rows, seed, "live" if live else size), rows)
    found = result(rows, seed, "live" if live else size)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        click.echo(", ".join(f"{n} {verdict}" for verdict, n in found["verdicts"].items()))
        click.echo(f"{time.monotonic() - start:.0f} s, {time.process_time() - cpu:.0f} s of a core", err=True)
    if folder is not None:
        click.echo(f"{folder}: {', '.join(FILES)}", err=True)
    return exitcodes.GOOD


def _wanted(only: tuple[str, ...]) -> list[Claim]:
    names = [claim.id for claim in CLAIMS]
    for name in only:
        if name.upper() not in names:
            raise InputError(f"--only {name}: no such claim; {suggest(name.upper(), names)}")
    return [claim for claim in CLAIMS if not only or claim.id in {name.upper() for name in only}]


def _simulated(wanted: Sequence[Claim], seed: int, size: Size) -> Iterator[Row]:
    scenes = Scenes(seed, size=size)
    try:
        yield from measure(scenes, wanted)
    finally:
        scenes.close()


def _live(folders: Sequence[Path], wanted: Sequence[Claim]) -> Iterator[Row]:
    """Opens the folders at once, so that a bad one is named before anything runs."""
    from pddbench.claims.live import measure_live, open_live

    return measure_live(open_live(folders), {claim.id: claim.text for claim in wanted})


def result(rows: list[Row], seed: int, size: str) -> dict[str, Any]:
    """Everything as JSON-able values."""
    counts = {name: sum(row.verdict == name for row in rows) for name in VERDICTS}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"schema_version": 2, "pddbench": __version__, "date": today, "size": size, "seed": seed,
            "verdicts": counts, "claims": msgspec.to_builtins(rows)}  # fmt: skip


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None


def _write(folder: Path, found: dict[str, Any], rows: list[Row]) -> None:
    """All files again, so that a run that is stopped keeps what it has."""
    (folder / "claims.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    (folder / "claims.md").write_text(markdown_page(rows), encoding="utf-8")
    (folder / "claims.html").write_text(html_page(rows), encoding="utf-8")
