"""The flow of `pddbench claims`: measure, print as it goes, write JSON and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from pddbench import __version__, exitcodes
from pddbench.claims.model import Row
from pddbench.claims.page import html_page, markdown_page, row_line
from pddbench.claims.scenes import Scenes
from pddbench.claims.table import CLAIMS, measure
from pddbench.errors import InputError, suggest

FILES = {"claims.json": "JSON", "claims.md": "Markdown", "claims.html": "HTML"}


def conduct(folder: Path | None, only: tuple[str, ...], seed: int, *, live: Path | None, as_json: bool) -> int:
    """Measure the claims and print them; raises `InputError`."""
    names = [claim.id for claim in CLAIMS]
    for name in only:
        if name.upper() not in names:
            raise InputError(f"--only {name}: no such claim; {suggest(name.upper(), names)}")
    wanted = [claim for claim in CLAIMS if not only or claim.id in {name.upper() for name in only}]
    data = None
    if live is not None:
        from pddbench.claims.live import open_live

        data = open_live(live)
    if folder is not None:
        _make(folder)
    rows: list[Row] = []
    scenes = Scenes(seed)
    try:
        for row in measure(scenes, wanted):
            rows.append(row)
            if not as_json:
                click.echo(row_line(row))
    finally:
        scenes.close()
    if data is not None:
        from pddbench.claims.live import measure_live

        for row in measure_live(data):
            rows.append(row)
            if not as_json:
                click.echo(row_line(row))
    found = result(rows, seed)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        click.echo(", ".join(f"{n} {verdict}" for verdict, n in found["verdicts"].items()))
    if folder is not None:
        _write(folder, found, rows)
    return exitcodes.GOOD


def result(rows: list[Row], seed: int) -> dict[str, Any]:
    """Everything as JSON-able values."""
    counts = {name: sum(row.verdict == name for row in rows) for name in ("agrees", "differs", "not testable here")}
    return {"schema_version": 1, "pddbench": __version__, "seed": seed, "verdicts": counts,
            "claims": msgspec.to_builtins(rows)}  # fmt: skip


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None


def _write(folder: Path, found: dict[str, Any], rows: list[Row]) -> None:
    (folder / "claims.json").write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    (folder / "claims.md").write_text(markdown_page(rows), encoding="utf-8")
    (folder / "claims.html").write_text(html_page(rows), encoding="utf-8")
    click.echo(f"{folder}: {', '.join(FILES)}", err=True)
