"""Which backends work here: each is really tried, in namespaces of its own, and the kernel's own reason is kept."""

from __future__ import annotations

import msgspec

from pddbench.errors import InputError, PddbenchError, suggest
from pddbench.wan.device import Unavailable
from pddbench.wan.meter import Meter
from pddbench.wan.openlink import open_shapes
from pddbench.wan.shape import Shape

ORDER = ("netem", "tun", "model")  # from the most to the least real
_TRIAL = Shape(delay_ms=5.0, rate_mbit=100.0)
_TRIAL_RTT_MS = 10.0
_TRIPS = 20


class Probe(msgspec.Struct, frozen=True):
    """What a trial of one backend found; `reason` says why it does not work, or what was seen when it does."""

    backend: str
    works: bool
    reason: str


def probe(backend: str) -> Probe:
    """Try one: make a link of 10 ms there and back, and time packets over it."""
    if backend == "model":
        return Probe(backend, True, "needs nothing: no packets, computed TCP")
    try:
        with open_shapes(_TRIAL, _TRIAL, backend) as link:
            with Meter(link.side_a, link.side_b) as meter:
                times_ms = meter.rtt_ms(_TRIPS, 1.0)
            how = link.facts["namespaces"]["privilege"]
            made = f"; {link.facts['emulator']}" if link.facts["emulator"] else ""
    except Unavailable as error:
        return Probe(backend, False, error.reason)
    except PddbenchError as error:
        return Probe(backend, False, str(error))
    if not times_ms:
        return Probe(backend, False, f"none of {_TRIPS} packets came back")
    # Whether it delays, not how well: on a busy machine some packets are late, and the verification says so then.
    works = _TRIAL_RTT_MS * 0.95 <= min(times_ms) <= _TRIAL_RTT_MS * 2
    seen = f"round trips of {min(times_ms):.2f} to {max(times_ms):.2f} ms over {_TRIAL_RTT_MS:g} ms"
    return Probe(backend, works, f"{seen}; {how}{made}")


def probe_all() -> list[Probe]:
    """Every backend, best first."""
    return [probe(backend) for backend in ORDER]


def best() -> tuple[str, list[Probe]]:
    """What `auto` takes: the first that works. Those after it are not tried."""
    tried: list[Probe] = []
    for backend in ORDER:
        tried.append(probe(backend))
        if tried[-1].works:
            break
    return tried[-1].backend, tried


def require(name: str) -> tuple[str, list[Probe]]:
    """The backend behind a name and the trials that chose it; a named one that does not work is `Unavailable` (2)."""
    if name == "auto":
        return best()
    if name not in ORDER:
        raise InputError(f"unknown WAN backend {name!r}: {suggest(name, ['auto', *ORDER])}")
    found = probe(name)
    if not found.works:
        raise Unavailable(name, found.reason)
    return name, [found]
