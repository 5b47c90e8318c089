"""Options that several commands share, and how their values are read."""

from __future__ import annotations

import json
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


def workload_options(function: F) -> F:
    """Options that change how a trace is sent; unset ones leave the experiment file as it is."""
    return options(
        click.option("--seed", type=click.IntRange(0), help="Seed of arrivals (the salt is always fresh)."),
        click.option("--repeats", type=click.IntRange(1), help="How often each arm runs; the order is palindromic."),
        click.option("--limit-requests", type=click.IntRange(1), help="Only the first N requests of the trace."),
        click.option("--idle-cap", "idle_cap_s", type=float, help="No wait inside a session above S seconds."),
        click.option("--time-scale", type=float, help="Factor on starts and gaps: 0.1 is ten times faster."),
        click.option("--timing", type=click.Choice(["think", "trace", "none"]), help="When a next turn is sent."),
    )(function)


def run_options(function: F) -> F:
    """Options of every command that sends load."""
    return options(
        click.option("--out", type=click.Path(path_type=Path), help="Run folder [results/<name>-<UTC>]."),
        click.option("--force", is_flag=True, help="Replace an existing run folder."),
        click.option("--dry-run", is_flag=True, help="Show what would be sent, and stop."),
        click.option("--wan", help="auto, netem, tun or model.  [the file's [wan] backend, else auto]"),
        click.option("--yes", is_flag=True, help="Agree to load on hosts that are not this machine."),
        click.option("--max-cost", type=float, help="Refuse a plan whose tokens cost more."),
        click.option("--allow", multiple=True, metavar="NAME", help="Let one trust rule only warn."),
        click.option("--strict", is_flag=True, help="An undecided check fails (99)."),
        click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON."),
        click.option("--quiet", is_flag=True, help="No progress, only the answer."),
    )(function)


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
