"""What the measuring host is: recorded in the manifest, because a latency without its host means little."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pddbench
from pddbench.replay.native.compiled import why_missing

_PACKAGES = ("aiohttp", "asyncio-throttle", "numpy", "pandas", "pyarrow", "msgspec", "uvloop", "hdrhistogram")


def versions() -> dict[str, str]:
    """Versions of pddbench, Python and what the measurement depends on."""
    found = {"pddbench": pddbench.__version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def host() -> dict[str, Any]:
    """Cores, memory, kernel and network defaults that change latencies."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "congestion_control": _sysctl("net/ipv4/tcp_congestion_control"),
        "tcp_slow_start_after_idle": _sysctl("net/ipv4/tcp_slow_start_after_idle"),
        "load_average": list(os.getloadavg()),
        "executable": Path(sys.executable).name,
        "native_reader": why_missing() or "there",
    }


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", name).read_text(encoding="ascii").strip()
    except OSError:
        return None


def clocks() -> dict[str, Any]:
    """The clocks used, their resolution in ns, and the wall clock's offset from the monotonic one."""
    monotonic = time.get_clock_info("monotonic")
    return {
        "stamps": "CLOCK_MONOTONIC",
        "resolution_ns": round(monotonic.resolution * 1e9),
        "realtime_minus_monotonic_ns": time.time_ns() - time.monotonic_ns(),
    }


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit and dirty flag of the checkout that holds `folder`; None outside one."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    return None if commit is None else {"commit": commit, "dirty": bool(git("status", "--porcelain"))}
