"""`pddbench hlog`: HDR histograms of a run, and several merged."""

from __future__ import annotations

from pathlib import Path

import click


@click.group()
def hlog() -> None:
    """Export a run's latencies as HDR histograms (.hlog), and merge such files."""


@hlog.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="File to write.")
def export(directory: Path, out: Path) -> int:
    """Write the latencies of the run in DIR, one histogram an arm and metric, in microseconds."""
    from pddbench.analyze.dataset import Dataset
    from pddbench.report import hlog as log
    from pddbench.runfolder.load import load

    log.write(log.of_run(Dataset(load(directory))), out)
    return 0


@hlog.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), help="File to write.")
@click.option("--json", "as_json", is_flag=True, help="Print counts and quantiles as JSON.")
def merge(files: tuple[Path, ...], out: Path | None, as_json: bool) -> int:
    """Add the histograms of the same tag and print their quantiles: merged, never averaged."""
    import msgspec

    from pddbench.report import hlog as log

    merged = log.merge([log.read(file) for file in files])
    if out is not None:
        log.write(merged, out)
    rows = log.summary(merged)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return 0
    for tag, row in rows.items():
        quantiles = ", ".join(
            f"{name.upper()} {'inf' if row[name] is None else format(row[name], '.4g')}"
            for name in ("p50", "p90", "p99", "p99.9")
        )
        left = f", {row['failed']} failed" if row["failed"] else ""
        left += f", {row['above_range']} above an hour" if row["above_range"] else ""
        click.echo(f"{tag}: {row['count']:,} values{left}; {quantiles} s")
    return 0
