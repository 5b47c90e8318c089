"""`pddbench bathtub`: a hit sweep's efficiency and revenue."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(epilog="Example: pddbench bathtub results/sweep --chunk 16384 --cached-price 0.1")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--chunk", type=click.IntRange(1), help="Tokens of the server's prefill chunk (attributes dips to tails)."
)
@click.option(
    "--cached-price", type=float, default=0.1, show_default=True, help="Price of a cached input token / uncached."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def bathtub(directory: Path, chunk: int | None, cached_price: float, as_json: bool) -> int:
    """Read the finished hit sweep in DIR: dips of efficiency, whether tail chunks make them, revenue over the hit rate.

    The sweep is a run of `pddbench trace synth --preset hit-sweep` at a load above what the endpoint can do.
    """
    from pddbench.report.bathtub import answer

    return answer(directory, chunk, cached_price, as_json=as_json)
