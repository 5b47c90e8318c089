"""The flow of `pddbench claims`: measure, print as it goes, write JSON and a page."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from pddbench import __version__, exitcodes
from pddbench.claims.experiments import Size
from pddbench.claims.model import Claim, Row
from pddbench.claims.page import html_page, markdown_page, row_line
from pddbench.claims.scenes import Scenes
from pddbench.claims.table import CLAIMS, measure
from pddbench.errors import InputError, suggest

SCHEMA_VERSION = 2
FILES = {"claims.json": "JSON", "claims.md": "Markdown", "claims.html": "HTML"}
VERDICTS = ("agrees", "differs", "undecided", "not testable here")


class Options(NamedTuple):
    """What is measured, and where from: in virtual time at a size, from finished `live` runs, or over `packets`."""

    only: tuple[str, ...] = ()
    seed: int = 1
    size: Size = "small"
    live: tuple[Path, ...] = ()
    packets: bool = False

    @property
    def kind(self) -> str:
        """The word for all rows of a result: only rows of one kind stand in one file."""
        return "live" if self.live or self.packets else self.size


def conduct(folder: Path | None, options: Options, *, as_json: bool) -> int:
    """Measure the claims and print them; raises `InputError`, before anything runs.

    Rows that `folder` has of the same kind and seed and that are not measured again stay.
    """
    measured = _rows(options)
    rows = {} if folder is None else _kept(folder, options)
    if folder is not None:
        _make(folder)
    start, cpu = time.monotonic(), time.process_time()
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    for row in measured:
        row.date, row.command = today, _command(options, row.id)
        rows[row.id] = row
        if not as_json:
            click.echo(row_line(row))
        if folder is not None:
            _write(folder, options, rows)
    found = result(rows, options)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        click.echo(", ".join(f"{n} {verdict}" for verdict, n in found["verdicts"].items()))
        click.echo(f"{time.monotonic() - start:.0f} s, {time.process_time() - cpu:.0f} s of a core", err=True)
    if folder is not None:
        click.echo(f"{folder}: {', '.join(FILES)}", err=True)
    return exitcodes.GOOD


def _rows(options: Options) -> Iterator[Row]:
    wanted = _wanted(options.only)
    if options.packets:
        return _packets()
    if options.live:
        return _live(options.live, wanted)
    return _simulated(wanted, options.seed, options.size)


def _command(options: Options, number: str) -> str:
    """What measures a row again."""
    if options.packets:
        return "pddbench claims --packets"
    if options.live:
        return "pddbench claims --live DIR"
    return f"pddbench claims{' --full' if options.size == 'full' else ''} --only {number}"


def _packets() -> Iterator[Row]:
    from pddbench.claims.packets import c11_packets

    claim = next(claim for claim in CLAIMS if claim.id == "C11")
    return measure(None, [msgspec.structs.replace(claim, measure=lambda _: c11_packets())])


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

    texts = {claim.id: claim.text for claim in wanted}
    return measure_live(open_live(folders, list(texts)), texts)


def result(rows: Mapping[str, Row], options: Options) -> dict[str, Any]:
    """Everything as JSON-able values, in the order of the claims."""
    ordered = [rows[claim.id] for claim in CLAIMS if claim.id in rows]
    counts = {name: sum(row.verdict == name for row in ordered) for name in VERDICTS}
    return {"schema_version": SCHEMA_VERSION, "pddbench": __version__, "kind": options.kind, "seed": options.seed,
            "verdicts": counts, "claims": msgspec.to_builtins(ordered)}  # fmt: skip


class _Result(msgspec.Struct):
    schema_version: int
    kind: str
    seed: int
    claims: list[Row]


def read_result(file: Path) -> dict[str, Row]:
    """The rows of a `claims.json` by number; `InputError` when it is none."""
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_Result)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{file}: not the result of `pddbench claims`: {error}") from None
    return {row.id: row for row in found.claims}


def _kept(folder: Path, options: Options) -> dict[str, Row]:
    """Rows of an earlier result of the same kind and seed in the folder."""
    file = folder / "claims.json"
    if not file.exists():
        return {}
    try:
        found = msgspec.json.decode(file.read_bytes(), type=_Result)
    except (OSError, msgspec.DecodeError):
        raise InputError(f"{file}: in the way, and not a result of this version; choose another --out") from None
    if (found.schema_version, found.kind, found.seed) != (SCHEMA_VERSION, options.kind, options.seed):
        raise InputError(
            f"{folder}: holds results of kind {found.kind!r}, seed {found.seed}; these are of kind {options.kind!r}, "
            f"seed {options.seed}: choose another --out"
        )
    return {row.id: row for row in found.claims}


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None


def _write(folder: Path, options: Options, rows: Mapping[str, Row]) -> None:
    """All files again, so that a run that is stopped keeps what it has."""
    ordered = [rows[claim.id] for claim in CLAIMS if claim.id in rows]
    text = msgspec.json.format(msgspec.json.encode(result(rows, options)), indent=2) + b"\n"
    (folder / "claims.json").write_bytes(text)
    (folder / "claims.md").write_text(markdown_page(ordered), encoding="utf-8")
    (folder / "claims.html").write_text(html_page(ordered), encoding="utf-8")
