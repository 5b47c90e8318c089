"""The instrument's own error as the reports say it: the worst of all arms."""

from __future__ import annotations

from typing import Any

_LAGS = {
    "send_lag_p99_s": "send lag",
    "loop_lag_p99_s": "loop lag",
    "kernel_gap_p99_s": "kernel gap",
    "emulator_late_p99_s": "emulator late",
}
_WAITED_SHARE = 0.001  # less than that is not said


def lags_ms(arms: dict[str, Any]) -> dict[str, float]:
    """P99 of each lag by its name, milliseconds, the worst arm's."""
    worst = _worst(arms)
    return {word: 1e3 * worst[key] for key, word in _LAGS.items() if key in worst}


def waited(arms: dict[str, Any]) -> str:
    """For how much of the time the client was ready and had no core; empty where that is nothing, or not known."""
    share = _worst(arms).get("run_delay_share", 0.0)
    return f"waited for a core {100 * share:.1f}% of the time" if share >= _WAITED_SHARE else ""


def _worst(arms: dict[str, Any]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for arm in arms.values():
        for key, value in arm["error_bar"].items():
            if value is not None:
                worst[key] = max(value, worst.get(key, value))
    return worst
