"""Load on somebody's endpoint costs money: what will be sent is said first, and a stranger's host needs a yes."""

from __future__ import annotations

import math
import sys

import click

from pddbench.errors import InputError
from pddbench.runner.prepare import Prepared


def ask(prepared: Prepared, *, yes: bool, max_cost: float | None) -> None:
    """Raise `InputError` unless the cost fits `max_cost` and load on hosts that are not loopback is agreed to."""
    cost = prepared.cost()
    if max_cost is not None and not 0 <= max_cost < math.inf:
        raise InputError(f"--max-cost {max_cost}: give an amount of money")
    if max_cost is not None:
        if cost is None:
            raise InputError(
                "--max-cost needs token prices: set cost_per_mtok_input and cost_per_mtok_output of the arms"
            )
        if cost > max_cost:
            raise InputError(
                f"planned cost {cost:.2f} {prepared.experiment.cost.currency} is above --max-cost {max_cost:g}:"
                " shorten the workload (--limit-requests) or raise the limit"
            )
    hosts = prepared.remote_hosts()
    if not hosts or yes:
        return
    if not sys.stdin.isatty():
        raise InputError(f"load would go to {', '.join(hosts)}, which is not this machine: add --yes to agree")
    if not click.confirm(f"Send this load to {', '.join(hosts)}?", default=False, err=True):
        raise InputError("not agreed: nothing was sent")
