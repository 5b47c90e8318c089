"""`pddbench report`: the table of a finished run again."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of the table.")
@click.option("--allow", multiple=True, metavar="NAME", help="Let the trust rule NAME warn only (may be repeated).")
@click.option("--strict", is_flag=True, help="An undecided check fails too.")
@click.option(
    "--ci",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="OUT",
    help="Write summary.json, summary.md, junit.xml and github-action-benchmark files to the folder OUT.",
)
@click.option("--warmup", metavar="S|auto", help="Leave out requests due in the first S seconds (auto: MSER-5).")
def report(
    directory: Path, as_json: bool, allow: tuple[str, ...], strict: bool, ci: Path | None, warmup: str | None
) -> int:
    """Print the table of the run in DIR again; rewrite summary.json, the plots and report.html.

    DIR is a run folder, or a folder that holds exactly one.
    """
    from pddbench.report.answer import answer

    return answer(directory, allow, strict=strict, as_json=as_json, ci=ci, warmup=warmup)
