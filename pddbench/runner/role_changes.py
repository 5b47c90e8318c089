"""What the manifest says of instances that an emulated deployment lost or got during a run (`runs[].role_changes`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pddbench.deploy.emulator.spec import RoleChange


def role_changes(
    asked: Sequence[RoleChange], posted: Iterable[tuple[float, str, int]], zero_s: float, end_s: float
) -> list[dict[str, Any]]:
    """All changes of a run in the order of their times.

    `asked`: of the experiment; `posted`: while it ran, model time, role and count; `zero_s`, `end_s`: of the run. All
    in model time of the deployment, which is there before the run's zero; `at_s` counts from that zero.
    """
    all_of_them = [(change.at_s, change.role, change.count, "changes", change.at_s <= end_s) for change in asked]
    all_of_them += [(at_s, role, count, "POST /roles", True) for at_s, role, count in posted]
    return [
        {"at_s": round(at_s - zero_s, 6), "role": role, "count": count, "asked_by": by, "reached": reached}
        for at_s, role, count, by, reached in sorted(all_of_them, key=lambda each: each[0])
    ]
