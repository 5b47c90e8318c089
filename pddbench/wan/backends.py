"""Which implementation of the WAN carries a run: real netem, user-space packets, or the fluid model."""

from __future__ import annotations

import os

import msgspec

from pddbench.errors import InputError, suggest

BACKENDS = ("auto", "netem", "tun", "model")
PACKET_BACKENDS = ("netem", "tun")  # those with packets: the network delays, nothing is computed
ENVIRONMENT = "PDDBENCH_WAN"  # what to take where neither the command nor the experiment file says


class Choice(msgspec.Struct, frozen=True):
    """The backend taken and why, for the first line and the manifest. `tried`: what the probes of others found."""

    backend: str
    asked: str
    reason: str = ""
    tried: list[dict[str, str | bool]] = []


def named(given: str | None, in_file: str | None = None) -> str:
    """The name that counts: the command's, else the experiment file's, else PDDBENCH_WAN, else auto."""
    name = given or in_file or os.environ.get(ENVIRONMENT) or "auto"
    if name not in BACKENDS:
        raise InputError(f"unknown WAN backend {name!r}: {suggest(name, list(BACKENDS))}")
    return name


def choose(name: str) -> Choice:
    """The backend behind a name, proved by a trial; `auto`: the best that works. Raises `InputError` (2)."""
    if named(name) == "model":
        return Choice("model", name)
    from pddbench.wan.probe import require

    backend, tried = require(name)
    failed = [f"{each.backend}: {each.reason}" for each in tried if not each.works]
    return Choice(backend, name, "; ".join(failed), [msgspec.to_builtins(each) for each in tried])
