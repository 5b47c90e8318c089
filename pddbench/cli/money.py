"""`pddbench money`: how a benefit-cost ratio depends on prices."""

from __future__ import annotations

from pathlib import Path

import click

from pddbench.cli.common import FINITE, options


@click.command(epilog="Example: pddbench money results/mine-capacity --price A=2.0 --price B=2.4 --line 0.7")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@options(
    click.option("--price", "prices", multiple=True, metavar="CHIP=P", help="Of a chip an hour [the experiment's]."),
    click.option("--line", type=FINITE, help="Price of the line an hour [the experiment's]."),
    click.option("--input", "input_tokens", type=click.IntRange(1), help="Also the fluid bound: tokens of a prompt."),
    click.option("--output", "output_tokens", type=click.IntRange(1), default=512, show_default=True,
                 help="Output tokens of a request in that bound."),
    click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON."),
)  # fmt: skip
def money(
    directory: Path,
    prices: tuple[str, ...],
    line: float | None,
    input_tokens: int | None,
    output_tokens: int,
    as_json: bool,
) -> int:
    """Vary the prices behind the capacities in DIR (of `pddbench capacity`): BCR grid, even prices, equal cost.

    Capacities stay as measured, with their intervals. Of a search with --hits also BCR, cost and revenue over the hit
    rate, and where they are even. All of it goes to money.json. With --input a fluid bound over hit rates and counts
    of relays follows: arithmetic, not a measurement.
    """
    from pddbench.report.money import answer, check_line, prices_of

    if line is not None:
        check_line(line)
    tokens = None if input_tokens is None else (input_tokens, output_tokens)
    return answer(directory, prices_of(prices), line, tokens=tokens, as_json=as_json)
