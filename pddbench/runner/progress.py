"""How far a run is: a live line on a terminal, a plain line now and then otherwise; always on stderr."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from pddbench.replay.engine import Counts

_PLAIN_EVERY_S = 15.0


class Progress(Protocol):
    """Shows one run after the other."""

    def begin(self, arm: str, repeat: int) -> None:
        """A run starts."""

    def update(self, counts: Counts) -> None:
        """Where it is now."""

    def say(self, words: str) -> None:
        """What the run is doing besides."""

    def __enter__(self) -> Progress:
        """Start showing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop showing."""


def make_progress(quiet: bool, runs: int) -> Progress:
    """The progress display that suits the terminal."""
    if quiet:
        return _Silent()
    return _Bars(runs) if sys.stderr.isatty() else _Lines(runs)


def _words(counts: Counts) -> str:
    words = f"{counts.done}/{counts.planned} done, {counts.in_flight} in flight"
    return words + (f", {counts.failed} failed" if counts.failed else "")


class _Silent:
    """Shows nothing."""

    def begin(self, arm: str, repeat: int) -> None:
        pass

    def update(self, counts: Counts) -> None:
        pass

    def say(self, words: str) -> None:
        pass

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


class _Lines(_Silent):
    """A line at the start of a run, every 15 s, and at its end."""

    def __init__(self, runs: int) -> None:
        self._runs, self._number = runs, 0
        self._label = ""
        self._last_s = 0.0
        self._over = False

    def begin(self, arm: str, repeat: int) -> None:
        self._number += 1
        self._label = f"[{self._number}/{self._runs}] {arm}, repeat {repeat}"
        self._last_s, self._over = time.monotonic(), False
        click.echo(f"{self._label}: started", err=True)

    def update(self, counts: Counts) -> None:
        over = counts.done + counts.not_sent >= counts.planned
        if self._over or (not over and time.monotonic() - self._last_s < _PLAIN_EVERY_S):
            return
        self._last_s, self._over = time.monotonic(), over
        click.echo(f"{self._label}: {_words(counts)}", err=True)

    def say(self, words: str) -> None:
        click.echo(f"{self._label}: {words}", err=True)


class _Bars(_Silent):
    """One bar a run."""

    def __init__(self, runs: int) -> None:
        from rich import progress
        from rich.console import Console

        self._runs, self._number = runs, 0
        self._bars = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TextColumn("{task.fields[words]}"),
            progress.TimeElapsedColumn(),
            console=Console(stderr=True),
            refresh_per_second=4,
            transient=True,
        )
        self._task: Any = None

    def begin(self, arm: str, repeat: int) -> None:
        self._number += 1
        label = f"[{self._number}/{self._runs}] {arm}.{repeat}".replace("[", "\\[")
        self._task = self._bars.add_task(label, total=None, words="starting")

    def update(self, counts: Counts) -> None:
        self._bars.update(self._task, total=counts.planned, completed=counts.done, words=_words(counts))

    def say(self, words: str) -> None:
        self._bars.update(self._task, words=words)

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bars.stop()
