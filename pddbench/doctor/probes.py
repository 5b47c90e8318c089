"""The probes behind `pddbench doctor`. Each looks at one thing, changes nothing, and says what to do about it."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from pddbench.errors import PddbenchError
from pddbench.replay.native import compiled

Status = Literal["ok", "warn", "missing"]

_LEAST_FILES = 4096
_LEAST_CORES = 2
_LATE_S = 0.002  # a timer later than this at P99 makes the send lag worth a look
_NAPS = 100


class Probe(msgspec.Struct, kw_only=True):
    """One thing looked at: `found` says what is there, `means` what works or not, `advice` what to do (or null)."""

    name: str
    status: Status
    found: str
    means: str
    advice: str | None = None


def python() -> Probe:
    """Version of Python."""
    return Probe(name="python", status="ok", found=platform.python_version(), means="pddbench runs on 3.11 and newer")


def kernel() -> Probe:
    """Kernel release; the measuring parts are written for Linux."""
    linux = sys.platform == "linux"
    return Probe(
        name="kernel",
        status="ok" if linux else "warn",
        found=f"{platform.system()} {platform.release()}, {platform.machine()}",
        means="all of pddbench works" if linux else "replay and reports work; scheduling delays are not recorded",
        advice=None if linux else "measure on Linux if figures shall be believed to the millisecond",
    )


def cores() -> Probe:
    """Cores that this process may use, and how busy they are."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0]
    busy = load > 0.5 * count
    few = count < _LEAST_CORES
    advice = "stop what else runs here, or measure elsewhere" if busy else None
    advice = "use a machine with 2 cores or more, or lower [emulator] speed" if few else advice
    return Probe(
        name="cores",
        status="warn" if few or busy else "ok",
        found=f"{count} usable, load {load:.1f}",
        means="emulated arms share these cores with the client; a busy machine ends in send_lag or emulator_late (98)",
        advice=advice,
    )


def clock() -> Probe:
    """Resolution of the clock that all stamps come from."""
    info = time.get_clock_info("monotonic")
    fine = info.resolution <= 1e-6
    return Probe(
        name="clock",
        status="ok" if fine else "warn",
        found=f"{info.implementation}, resolution {info.resolution * 1e9:.0f} ns{_source()}",
        means="all stamps come from it" if fine else "gaps below the resolution cannot be told apart",
        advice=None if fine else "use a kernel with a finer clock source",
    )


def _source() -> str:
    try:
        name = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource").read_text(encoding="ascii")
    except OSError:
        return ""
    return f", source {name.strip()}"


def timers() -> Probe:
    """How late short sleeps end on this machine right now: 0.1 s of napping."""
    late = []
    for _ in range(_NAPS):
        begin = time.perf_counter()
        time.sleep(0.001)
        late.append(time.perf_counter() - begin - 0.001)
    p99 = sorted(late)[-(-99 * len(late) // 100) - 1]
    good = p99 <= _LATE_S
    return Probe(
        name="timers",
        status="ok" if good else "warn",
        found=f"1 ms sleeps end {1e6 * sorted(late)[len(late) // 2]:.0f} µs late (P50), {1e6 * p99:.0f} µs (P99)",
        means="requests can leave on time" if good else "requests will leave late: rule send_lag may end runs with 98",
        advice=None if good else "stop other load, take a machine that is not oversubscribed",
    )


def files() -> Probe:
    """How many sockets may be open at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft == resource.RLIM_INFINITY or soft >= _LEAST_FILES
    return Probe(
        name="open files",
        status="ok" if enough else "warn",
        found=f"{_limit(soft)} (hard limit {_limit(hard)})",
        means=f"each request under way needs one; {_LEAST_FILES} are plenty",
        advice=None if enough else f"ulimit -n {_LEAST_FILES if hard < 0 else min(_LEAST_FILES, hard)}",
    )


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,}"


def loop() -> Probe:
    """Whether the fast event loop is there."""
    there = importlib.util.find_spec("uvloop") is not None
    return Probe(
        name="uvloop",
        status="ok" if there else "warn",
        found="installed" if there else "not installed",
        means="a faster event loop" if there else "asyncio's own loop is used: higher send lag under load",
        advice=None if there else "pip install uvloop",
    )


def reader() -> Probe:
    """Whether answers are read by the thread in C, and why not."""
    try:
        taken = compiled.chosen()
    except PddbenchError as error:
        return Probe(name="native reader", status="missing", found=str(error),
                     means="a replay over plain HTTP, and so `run`, ends with this",
                     advice=f"unset {compiled.VARIABLE}")  # fmt: skip
    missing = compiled.why_missing()
    if missing is not None:
        return Probe(name="native reader", status="warn", found=f"not there: {missing}",
                     means="answers are read in Python: its delays are in our stamps, and what waited shares one",
                     advice=compiled.INSTALL)  # fmt: skip
    if taken == "python":
        return Probe(name="native reader", status="warn", found=f"there, not used: {compiled.VARIABLE}=python is set",
                     means="answers are read in Python", advice=f"unset {compiled.VARIABLE}")  # fmt: skip
    return Probe(name="native reader", status="ok", found="there",
                 means="answers over plain HTTP are read and stamped by a thread in C")  # fmt: skip


def loopback() -> Probe:
    """Whether a port can be bound on this machine's loopback: emulated arms live there."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
    except OSError as error:
        return Probe(name="loopback", status="missing", found=f"127.0.0.1 cannot be bound ({error.strerror})",
                     means="emulated arms and `pddbench up` will not start; `simulate` works",
                     advice="allow sockets on 127.0.0.1")  # fmt: skip
    return Probe(name="loopback", status="ok", found=f"port {port} could be bound",
                 means="emulated arms and `pddbench up` can start")  # fmt: skip


def engine() -> Probe:
    """Whether real llama.cpp servers can be started: the third kind of arm."""
    there = importlib.util.find_spec("xllamacpp") is not None
    return Probe(
        name="llama.cpp",
        status="ok" if there else "missing",
        found="xllamacpp is installed" if there else "xllamacpp is not installed",
        means='arms with engine = "llamacpp" can start real servers'
        if there
        else 'arms with engine = "llamacpp" will not start; emulated and remote arms do',
        advice=None if there else "pip install 'pddbench[live]'",
    )


def netem() -> Probe:
    """Whether the kernel's network emulator works: a link is made by it, in namespaces of our own, and timed."""
    return _packets("netem", "netem", "a kernel with sch_netem, and iproute2 (ip, tc)")


def tun() -> Probe:
    """Whether packets through user space work, where there is no netem: tried in the same way."""
    return _packets("TUN", "tun", "/dev/net/tun that you may open (modprobe tun; in a container --device /dev/net/tun)")


def _packets(name: str, backend: str, needs: str) -> Probe:
    """A trial, by `wan.probe`; when it fails, the kernel's own reason."""
    from pddbench.wan.probe import probe

    tried = probe(backend)
    return Probe(
        name=name,
        status="ok" if tried.works else "missing",
        found=tried.reason,
        means=_wan(backend, tried.works),
        advice=None if tried.works else f"needs {needs}",
    )


def _wan(name: str, there: bool) -> str:
    """What a backend of the WAN is worth here."""
    return f"--wan {name} works" if there else f"{name} cannot work here; --wan model does"


def namespaces() -> Probe:
    """Whether network namespaces can be made, as root or in a user namespace: each cluster in one of its own."""
    from pddbench.wan.device import ADDRESSES
    from pddbench.wan.namespaces import Namespaces

    try:
        with Namespaces(*ADDRESSES) as made:
            found, works = f"two network namespaces could be made ({made.facts['privilege']})", True
    except PddbenchError as error:
        found, works = str(error), False
    return Probe(
        name="namespaces",
        status="ok" if works else "missing",
        found=found,
        means="needed by netem and TUN between emulated clusters only",
        advice=None if works else "run as root, or allow user namespaces (see `pddbench wan probe`)",
    )


def results() -> Probe:
    """Whether run folders can be written here, and how much room there is."""
    writable = os.access(Path.cwd(), os.W_OK)
    free = shutil.disk_usage(Path.cwd()).free
    roomy = free > 1e9
    return Probe(
        name="disk",
        status="ok" if writable and roomy else "warn",
        found=f"{free / 1e9:,.1f} GB free" + ("" if writable else ", this folder cannot be written to"),
        means="run folders go to results/ below this folder unless --out says otherwise",
        advice=None if writable and roomy else "give --out a folder that can be written to and has 1 GB or more",
    )


PROBES: tuple[Callable[[], Probe], ...] = (
    python, kernel, cores, clock, timers, files, loop, reader, loopback, engine, netem, tun, namespaces, results,
)  # fmt: skip


def examine() -> list[Probe]:
    """All probes, in the order in which they are shown."""
    return [probe() for probe in PROBES]
