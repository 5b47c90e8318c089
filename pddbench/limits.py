"""Limits on our own lateness that both the verdict after a run and the health lamp during it go by."""

from __future__ import annotations

LAG_FLOOR_S = 0.005
LAG_SHARE = 0.01  # of the median time to first token
CPU_LIMIT = 0.85  # of a core
CPU_WINDOW_S = 5.0


def lag_limit_s(median_ttft_wall_s: float | None) -> float:
    """What a lag of our own may be at P99, in wall seconds: max(5 ms, 1% of the median TTFT); None: not known yet."""
    return LAG_FLOOR_S if median_ttft_wall_s is None else max(LAG_FLOOR_S, LAG_SHARE * median_ttft_wall_s)
