"""What `pddbench up` does alike for emulated deployments and for real servers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from pddbench.runner.signals import Waiter
    from pddbench.workload.experiment import Wan

    class Served(Protocol):
        """A deployment that is up."""

        @property
        def link_problems(self) -> Sequence[str]:
            """What is wrong with its link, each once."""

        def check(self) -> None:
            """Raises `WorldError` when a part of it has ended."""


_POLL_S = 1.0
_LINK = ("one_way_ms", "rate_mbit", "flow_rate_mbit")


def keep_up(deployment: Served, stop: Waiter, told: int = 0) -> int:
    """Until a signal: look after it, say what is wrong with its link beyond what was `told`; returns the exit code."""
    while not stop.wait(_POLL_S):
        deployment.check()
        told += tell_problems(list(deployment.link_problems)[told:])
    return stop.exit_code


def tell_problems(problems: list[str]) -> int:
    """Say in what the link is not as asked; how many were said."""
    for problem in problems:
        click.echo(f"pddbench: the WAN link is not as asked: {problem}", err=True)
    return len(problems)


def link_of(given: dict[str, Any]) -> Wan:
    """The link that the options name; they are taken out of `given`."""
    from pddbench.workload.experiment import Wan

    figures = {name: given.pop(name) for name in _LINK if name in given}
    return Wan(profile=given.pop("wan_profile", None), **figures)


def say_json(arm: str, base_url: str, model: str, spec: object) -> None:
    """Where it is and what, as one line of JSON for a script that waits for the address."""
    import msgspec

    facts = {"arm": arm, "base_url": base_url, "model": model, "spec": msgspec.to_builtins(spec)}
    click.echo(msgspec.json.encode(facts).decode())
    sys.stdout.flush()
