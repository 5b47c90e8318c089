"""The two ways to show a snapshot on stderr: a table that stays in place on a terminal, plain lines otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import click

from pddbench.live import words

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_EVERY_S = 15.0
VERBOSE_EVERY_S = 5.0
_LAMPS = {"good": "green", "warn": "yellow", "bad": "red"}


class View(Protocol):
    """Shows snapshots."""

    def begin(self, snapshot: dict[str, Any]) -> None:
        """A run begins."""

    def show(self, snapshot: dict[str, Any], now_s: float) -> None:
        """How it is now; called about twice a second."""

    def finish(self, snapshot: dict[str, Any]) -> None:
        """The run is over."""

    def note(self, text: str) -> None:
        """One line beside it."""

    def close(self) -> None:
        """Stop showing."""


class Silent:
    """Shows nothing (somebody watches by HTTP)."""

    def begin(self, snapshot: dict[str, Any]) -> None:
        """Nothing."""

    def show(self, snapshot: dict[str, Any], now_s: float) -> None:
        """Nothing."""

    def finish(self, snapshot: dict[str, Any]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Lines(Silent):
    """A line at the start of a run, every so many seconds, and at its end."""

    def __init__(self, every_s: float = PLAIN_EVERY_S) -> None:
        self._every_s = every_s
        self._next_s: float | None = None

    def begin(self, snapshot: dict[str, Any]) -> None:
        """`[1/3] baseline, repeat 1: started`."""
        click.echo(f"{words.label(snapshot)}: started", err=True)
        self._next_s = None

    def show(self, snapshot: dict[str, Any], now_s: float) -> None:
        """A line when it is time for one; the last one is for `finish`."""
        if snapshot["runs"][snapshot["number"] - 1]["state"] == "over":
            return
        if self._next_s is None:
            self._next_s = now_s + self._every_s
        if now_s >= self._next_s:
            self._next_s += self._every_s
            click.echo(words.line(snapshot), err=True)

    def finish(self, snapshot: dict[str, Any]) -> None:
        """The last counts."""
        click.echo(words.line(snapshot), err=True)

    def note(self, text: str) -> None:
        """One line."""
        click.echo(text, err=True)


class Terminal(Silent):
    """A table that is drawn in place and gone when the answer comes."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, snapshot: dict[str, Any], now_s: float) -> None:
        """Draw."""
        self._live.update(table(snapshot), refresh=True)

    def note(self, text: str) -> None:
        """One line above the table."""
        from rich.text import Text

        self._console.print(Text(text))

    def close(self) -> None:
        """Take the table away."""
        self._live.stop()


def table(snapshot: dict[str, Any]) -> RenderableType:
    """All runs, the current one with its health in words."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, padding=(0, 1), header_style="dim")
    grid.add_column("arm")
    grid.add_column("", min_width=12, ratio=1)
    for name in ("done", "flying", "rate", "TTFT P50", "P99", "failed"):
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("own", justify="center")
    for number, run in enumerate(snapshot["runs"], 1):
        finished = run["done"] + run["not_sent"]
        waiting = run["state"] == "waiting"
        lamp = Text("●", style="dim" if waiting else _LAMPS[run["health"]])
        grid.add_row(
            Text(f"{run['arm']}.{run['repeat']}", style="bold" if number == snapshot["number"] else "dim"),
            ProgressBar(total=max(run["planned"], 1), completed=finished) if not waiting else Text("waiting", "dim"),
            "" if waiting else f"{run['done']}/{run['planned']}",
            "" if run["state"] in ("waiting", "over") else str(run["in_flight"]),
            "" if run["rate_per_s"] is None else words.rate(run["rate_per_s"]),
            *("" if waiting else words.seconds(run["ttft_s"][q]) for q in ("p50", "p99")),
            Text(str(run["failed"]), style="red") if run["failed"] else "",
            lamp,
        )
    return Group(grid, Text(_foot(snapshot), style="dim"))


def _foot(snapshot: dict[str, Any]) -> str:
    parts = [f"{snapshot['name']}: {words.clock(snapshot['elapsed_s'])} gone"]
    if snapshot["left_s"] is not None:
        parts.append(f"about {words.clock(snapshot['left_s'])} left")
    if snapshot["number"]:
        run = snapshot["runs"][snapshot["number"] - 1]
        if run["state"] in ("starting", "simulating", "warming up"):
            parts.append(run["state"])
        if run["waiting_s"] >= 1:
            parts.append(f"longest wait now {words.seconds(run['waiting_s'])}")
        parts.append(f"own health: {words.own(run)}")
    if snapshot["speed"] != 1:
        parts.append(f"TTFT in experiment time (speed {snapshot['speed']:g})")
    return " · ".join(parts)
