"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pddbench.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])


def options(*decorators: Callable[[F], F]) -> Callable[[F], F]:
    """Several click options as one decorator, shown in the order given."""

    def apply(function: F) -> F:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return apply


class Finite(click.types.FloatParamType):
    """A number of the command line that is neither `nan` nor infinite (`1e400` reads as infinite)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number; a usage error that names the flag for anything else."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


FINITE = Finite()


def rule_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names that `--allow` takes, for shell completion."""
    from pddbench.analyze.trust import RULES

    return [name for name in RULES if name.startswith(incomplete)]


ALLOW = click.option("--allow", multiple=True, metavar="NAME", shell_complete=rule_names,
                     help="Let the trust rule NAME warn only (may be repeated).")  # fmt: skip


def workload_options(function: F) -> F:
    """Options that change how a trace is sent; unset ones leave the experiment file as it is."""
    return options(
        click.option("--seed", type=click.IntRange(0), help="Seed of arrivals (the salt is always fresh)."),
        click.option("--repeats", type=click.IntRange(1), help="How often each arm runs; the order is palindromic."),
        click.option("--limit-requests", type=click.IntRange(1), help="Only the first N requests of the trace."),
        click.option("--idle-cap", "idle_cap_s", type=float, help="No wait inside a session above S seconds."),
        click.option("--time-scale", type=float, help="Factor on starts and gaps: 0.1 is ten times faster."),
        click.option("--duration", "duration_s", type=float, help="Measure what is due in a window of S seconds."),
        click.option("--warmup", "warmup_s", type=float, help="Start of that window, seconds after the first arrival."),
        click.option("--history", type=click.Choice(["recorded", "live"]), help="Whose replies later prompts hold."),
        click.option("--timing", type=click.Choice(["think", "trace", "none"]), help="When a next turn is sent."),
    )(function)


def run_options(function: F) -> F:
    """Options of every command that sends load."""
    return options(
        click.option("--out", type=click.Path(path_type=Path), help="Run folder [results/<name>-<UTC>]."),
        click.option("--workers", type=click.IntRange(1, 256), help="Client processes; sessions stay whole [1]."),
        click.option("--force", is_flag=True, help="Replace an existing run folder."),
        click.option("--dry-run", is_flag=True, help="Show what would be sent, and stop."),
        click.option("--wan", help="auto, netem, tun or model.  [the file's [wan] backend, else auto]"),
        click.option("--yes", is_flag=True, help="Agree to load on hosts that are not this machine."),
        click.option("--max-cost", type=float, help="Refuse a plan whose tokens cost more."),
        ALLOW,
        click.option("--strict", is_flag=True, help="An undecided check fails (99)."),
        click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
        click.option("--serve", metavar="[ADDRESS]:PORT", help="Show the run live by HTTP, and /metrics."),
        click.option("--quiet", is_flag=True, help="No progress, only the answer."),
        click.option("--verbose", is_flag=True, help="Plain progress lines, more often, and every failed request."),
    )(function)


def baseline_options(function: F) -> F:
    """Options of the commands that compare a run with an earlier one."""
    return options(
        click.option("--baseline", type=click.Path(path_type=Path), metavar="FILE",
                     help="summary.json (or run folder) of an earlier run: the main figures must not be worse."),
        click.option("--tolerance", default="10%", show_default=True, metavar="SHARE",
                     help="How much worse than the --baseline a figure may be."),
    )(function)  # fmt: skip


def key_value(text: str, flag: str) -> tuple[str, str]:
    """`K=V` as a pair."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        # the value may be a credential: it is not echoed
        raise InputError(f"{flag} takes NAME=VALUE, and the value given has no '='")
    return key.strip(), value


def json_object(text: str | None, flag: str) -> dict[str, Any]:
    """A JSON object given on the command line; none: an empty one."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{flag} is not valid JSON: {error.msg} at character {error.pos}") from None
    if not isinstance(value, dict):
        raise InputError(f"{flag} must be a JSON object, for example '{{\"top_k\": 1}}'")
    return value
