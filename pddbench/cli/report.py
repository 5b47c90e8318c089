"""`pddbench report`: the table of a finished run again."""

from __future__ import annotations

from pathlib import Path

import click

from pddbench.cli.common import ALLOW, baseline_options
from pddbench.errors import InputError


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of the table.")
@ALLOW
@click.option("--strict", is_flag=True, help="An undecided check fails too.")
@click.option(
    "--ci",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="OUT",
    help="Write summary.json, summary.md, junit.xml and github-action-benchmark files to the folder OUT.",
)
@baseline_options
@click.option("--warmup", metavar="S|auto", help="Leave out requests due in the first S seconds (auto: MSER-5).")
def report(
    directory: Path,
    as_json: bool,
    allow: tuple[str, ...],
    strict: bool,
    ci: Path | None,
    baseline: Path | None,
    tolerance: str,
    warmup: str | None,
) -> int:
    """Print the table of the run in DIR again; rewrite summary.json, the plots and report.html.

    DIR is a run folder, or a folder that holds exactly one; or one of `pddbench capacity`, whose answer is shown again.
    """
    from pddbench.report import searched
    from pddbench.report.answer import answer

    if searched.is_search(directory):
        from pddbench.report.capacity import again

        if allow or strict or ci or baseline or warmup:
            raise InputError(f"{directory} holds a capacity search: of the options only --json applies to it")
        return again(directory, as_json=as_json)

    earlier = None if baseline is None else (baseline, tolerance)
    return answer(directory, allow, strict=strict, as_json=as_json, ci=ci, earlier=earlier, warmup=warmup)
