"""`pddbench check`: thresholds on a finished run."""

from __future__ import annotations

from pathlib import Path

import click

from pddbench.cli.common import ALLOW, baseline_options


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--that", "expressions", multiple=True, metavar="EXPR", help="A threshold (may be repeated).")
@click.option("--strict", is_flag=True, help="A threshold that is undecided fails too.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@ALLOW
@baseline_options
def check(
    directory: Path,
    expressions: tuple[str, ...],
    strict: bool,
    as_json: bool,
    allow: tuple[str, ...],
    baseline: Path | None,
    tolerance: str,
) -> int:
    """Check the run in DIR: its own [check] table, every --that EXPR, and with --baseline an earlier run.

    EXPR is ARM.METRIC.STAT OP VALUE UNIT, or ARM.METRIC.STAT OP k * ARM.METRIC.STAT, as in
    'pdd.ttft.p90 < 2 s' or 'pdd.ttft.p90 < 1.2 * baseline.ttft.p90' (names: METRICS.md).

    Breach (exit 99) when even the better end of the 95% interval violates it; pass when the worse end satisfies it;
    else undecided: exit 0 with a warning, 99 with --strict. A withheld figure or an invalid run: 98.

    Against an earlier run the main figures of each arm (TTFT from due, largest gap, E2E, SLO attainment, goodput) may
    be worse by the tolerance. Its requests are not paired with ours: both intervals count.
    """
    from pddbench.report.checks import check_run

    return check_run(
        directory, expressions, allow, strict=strict, as_json=as_json, baseline=baseline, tolerance=tolerance
    )
