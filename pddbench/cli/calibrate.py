"""`pddbench calibrate`: this host's own error and drift against load."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pddbench.calibrate.measure import Level, Quantiles

_HEAD = (
    f"{'events/s':>9} {'streams':>7} {'seen/s':>7} {'CPU':>5}  {'TTFT error P50/P99/max ms':>27}  "
    f"{'by our own stamps':>27}  {'gap error P99':>13}  {'drift P99':>9}  server late P99"
)


@click.command()
@click.option("--error-ms", type=click.FloatRange(min=0.001), default=5.0, show_default=True,
              help="P99 error of TTFT and of sending that must hold.")  # fmt: skip
@click.option("--seconds", type=click.FloatRange(1.0, 60.0), default=2.0, show_default=True,
              help="Length of a stream; a load takes three times that.")  # fmt: skip
@click.option("--max-events", type=click.IntRange(min=500), default=80_000, show_default=True,
              help="Highest load to try, events a second.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True,
              help="Client processes, as of `run --workers`; each with a server of its own.")  # fmt: skip
@click.option("--no-save", is_flag=True, help="Do not keep the result for later runs.")
@click.option("--json", "as_json", is_flag=True, help="Print the calibration as JSON.")
def calibrate(error_ms: float, seconds: float, max_events: int, workers: int, no_save: bool, as_json: bool) -> int:
    """Measure this host's own error against load.

    A server of known truth, in a process of its own, stamps every event; the client reads them as in a run. The result
    is kept for this user: reports quote it as the instrument's error bar, and `run` warns when a workload exceeds it.
    Each number of workers has a calibration of its own.
    """
    import msgspec

    from pddbench.calibrate import store
    from pddbench.calibrate.measure import LOADS, measure
    from pddbench.runner.manifest import utc_now

    if not as_json:
        click.echo(_HEAD)
    loads = [load for load in LOADS if load <= max_events]
    levels = measure(error_ms, seconds, loads, None if as_json else _say, workers)
    calibration = store.new(levels, error_ms, utc_now(), workers)
    path = None if no_save else store.save(calibration)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(calibration), indent=2).decode())
        return 0
    best = calibration.best
    if best is None:
        click.echo(f"an error of {error_ms:g} ms does not even hold at {levels[0].events_s} events a second here")
    else:
        more = "" if calibration.limit_found else " or more (no load was tried at which it fails)"
        several = f"with {workers} workers " if workers > 1 else ""
        click.echo(f"{several}an error of {error_ms:g} ms holds up to {best.events_s:,} events a second{more}")
    if path is not None:
        click.echo(f"saved to {path}")
    return 0


def _say(level: Level) -> None:
    mark = "" if level.within else "  <- not within"
    click.echo(
        f"{level.events_s:>9,} {level.streams:>7,} {level.seen_events_s:>7,} {100 * level.cpu_share:>4.0f}%  "
        f"{_three(level.ttft_used):>27}  {_three(level.ttft_user):>27}  {_one(level.gap_used.p99):>13}  "
        f"{_one(level.drift.p99):>9}  {level.server_late_p99_ms:.2f}{mark}"
    )


def _three(values: Quantiles) -> str:
    return " / ".join(map(_one, (values.p50, values.p99, values.largest)))


def _one(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"
