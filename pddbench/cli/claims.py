"""`pddbench claims`: what is claimed for split prefill and decode, measured again."""

from __future__ import annotations

from pathlib import Path

import click

from pddbench.cli.common import options


@click.command()
@options(
    click.option("--only", multiple=True, metavar="ID", help="Only this claim, as C8 (may be repeated)."),
    click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of traces and arrivals."),
    click.option("--full", is_flag=True, help="At the size of the published deployment: about ten minutes of a core."),
    click.option(
        "--live",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="DIR",
        help="Instead from finished live runs, each claim whose arms one has (may be repeated).",
    ),
    click.option(
        "--packets", is_flag=True, help="C11 over packets: jitter, loss and others' traffic; some minutes, needs TUN."
    ),
    click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Folder for JSON, Markdown and HTML."),
    click.option("--json", "as_json", is_flag=True, help="Print the rows as JSON."),
)
def claims(
    only: tuple[str, ...],
    seed: int,
    full: bool,
    live: tuple[Path, ...],
    packets: bool,
    out: Path | None,
    as_json: bool,
) -> int:
    """Print every claim with our figure, its interval, the verdict and where it was measured.

    Verdicts are computed from figures and published ranges, never written. Most are simulated in virtual
    time: they check mechanism and arithmetic, never the chips. --live shows what finished runs of `pddbench run
    workloads/claims/live/….toml` say of them. Rows that --out has of the same kind stay.
    """
    from pddbench.claims.conduct import Options, conduct
    from pddbench.errors import InputError

    if full + bool(live) + packets > 1:
        raise InputError("--full is simulated, --live was run, --packets is timed now: give one of them")
    if packets and only:
        raise InputError("--packets measures C11 alone: leave --only out")
    options = Options(only, seed, "full" if full else "small", live, packets)
    return conduct(out, options, as_json=as_json)
