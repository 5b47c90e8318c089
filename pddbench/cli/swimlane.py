"""`pddbench swimlane`: what each role did for a request, or for all requests of a window, as a picture."""

from __future__ import annotations

from pathlib import Path

import click

from pddbench.errors import InputError


@click.command(epilog="Example: pddbench swimlane results/DIR --arm pdd --window 10,30")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--arm", help="Which arm; not needed where there is one.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Which repeat.")
@click.option("--request", "request_id", metavar="ID", help="One request.  [default: the first that was handed over]")
@click.option("--window", metavar="FROM,TO", help="All requests between two times, seconds since the start.")
@click.option("--out", type=click.Path(path_type=Path), help="PNG, SVG or PDF.  [default: DIR/swimlane.png]")
def swimlane(
    directory: Path, arm: str | None, repeat: int, request_id: str | None, window: str | None, out: Path | None
) -> int:
    """Draw what P, the link, RLD and MD of an emulated arm in DIR did for one request, or in a window of time."""
    from pddbench.report.swimlane import load_roles, plot_request, plot_window

    if request_id is not None and window is not None:
        raise InputError("--request and --window exclude each other: give one of them")
    roles = load_roles(directory, arm, repeat)
    path = out or directory / "swimlane.png"
    if window is not None:
        plot_window(roles, *_window(window), path)
    else:
        plot_request(roles, request_id if request_id is not None else _first(roles), path)
    click.echo(f"{path}: written")
    return 0


def _window(text: str) -> tuple[float, float]:
    try:
        start_s, end_s = (float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--window {text}: give two times in seconds, as in --window 10,30") from None
    if not start_s < end_s:
        raise InputError(f"--window {text}: the first time must be before the second")
    return start_s, end_s


def _first(roles: object) -> str:
    """The first request that was handed over, else the first of all."""
    import pandas as pd

    assert isinstance(roles, pd.DataFrame)
    handed = roles[roles["event"] == "hand_over"]
    chosen = handed if len(handed) else roles
    if chosen.empty:
        raise InputError("the roles table is empty: no request reached the deployment")
    return str(chosen["request_id"].iloc[0])
