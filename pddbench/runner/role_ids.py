"""Whose events a live deployment's events are: its numbers of requests, and ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pddbench.replay.headers import request_id_value
from pddbench.workload.requests import as_columns

if TYPE_CHECKING:
    import pyarrow as pa

    from pddbench.workload.plan import Plan


def ids_by_rid(plan: Plan, seen: Sequence[str]) -> pa.Array:
    """The planned id of each request that a router saw, by the header that came with it; null: none of the plan's.

    `seen[rid]` is the value of `X-Request-Id`.
    """
    import pyarrow as pa

    requests = as_columns(plan.requests)
    known = {request_id_value(name): name for name in map(requests.request_id, range(len(requests)))}
    return pa.array([known.get(value) for value in seen], pa.string())
