"""`pddbench claims`: what is claimed for split prefill and decode, measured again."""

from __future__ import annotations

from pathlib import Path

import click

from pddbench.cli.common import options


@click.command()
@options(
    click.option("--only", multiple=True, metavar="ID", help="Only this claim, as C8 (may be repeated)."),
    click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of traces and arrivals."),
    click.option(
        "--live", type=click.Path(path_type=Path), metavar="DIR", help="Also from a finished live run in DIR."
    ),
    click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for JSON, Markdown and HTML."),
    click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON."),
)
def claims(only: tuple[str, ...], seed: int, live: Path | None, out: Path | None, as_json: bool) -> int:
    """Print every claim with our figure, its interval, the verdict and where it was measured.

    Verdicts are computed from figures and published ranges, never written. Most are simulated in virtual
    time: they check mechanism and arithmetic, never the chips. --live adds what a finished `pddbench run` says of them.
    """
    from pddbench.claims.conduct import conduct

    return conduct(out, only, seed, live=live, as_json=as_json)
