"""Which implementation of the WAN runs: real netem, user-space packets, or the fluid model."""

from __future__ import annotations

from pddbench.errors import InputError, suggest

BACKENDS = ("auto", "netem", "tun", "model")


def choose(name: str) -> str:
    """The backend behind a name; `auto` is the best that works here. A named one that does not is an error (2)."""
    if name not in BACKENDS:
        raise InputError(f"unknown WAN backend {name!r}: {suggest(name, list(BACKENDS))}")
    if name in ("netem", "tun"):
        raise InputError(f"WAN backend {name!r} is not there: this version has only the model backend (--wan model)")
    return "model"
