"""What an arm costs: count x price over all its roles, idle ones included, and the line where the arm uses one."""

from __future__ import annotations

from typing import Any

NO_PRICE = "no price"  # why figures of money are withheld
CACHED_PRICE = 0.1  # of an un-hit input token: hit tokens are billed at 10-25% (claim C20)
OUTPUT_PRICE = 4.0  # of an un-hit input token: an assumption, list prices ask 3 to 5 times
PRICE_WEIGHTS = {"even_price_input": 1.0, "even_price_cached": CACHED_PRICE, "even_price_output": OUTPUT_PRICE}


def cost_per_hour(arm: dict[str, Any], cost: dict[str, Any]) -> float | None:
    """Cost of an hour of the arm (manifest `arms.<name>`), in the currency of the cost sheet; None: no price.

    What the manifest carries as `cost_per_hour` (null included) stands; without the key it is summed here. None when
    the arm names no roles or a chip has no price.
    """
    if "cost_per_hour" in arm:
        return None if arm["cost_per_hour"] is None else float(arm["cost_per_hour"])
    roles, chips = arm.get("roles") or {}, cost.get("chips") or {}
    if not roles or any(role.get("chip") not in chips for role in roles.values()):
        return None
    chips_cost = sum(float(role["count"]) * float(chips[role["chip"]]) for role in roles.values())
    return chips_cost + (float(cost.get("line") or 0.0) if uses_line(arm) else 0.0)


def uses_line(arm: dict[str, Any]) -> bool:
    """Whether the WAN line is part of the arm's cost: as it says, else for naive, pdd and arms with an MD."""
    said = arm.get("line")
    if said is not None:
        return bool(said)
    kind = arm.get("emulated") or arm.get("deployment")
    return kind in ("naive", "pdd") or "MD" in (arm.get("roles") or {})
