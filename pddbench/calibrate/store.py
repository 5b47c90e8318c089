"""The last calibration of this host, kept in the user's cache, and what it says about a workload."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import msgspec

from pddbench import __version__
from pddbench.calibrate.measure import Level
from pddbench.errors import InputError
from pddbench.replay.exchange import Reader
from pddbench.replay.native.compiled import chosen


class Calibration(msgspec.Struct, kw_only=True):
    """What was measured, where and when, with how many workers and which reader of plain HTTP. `error_ms` is the
    error that had to hold at P99, TTFT and drift alike."""  # fmt: skip

    pddbench: str
    created_utc: str
    host: str
    kernel: str
    cpus: int
    error_ms: float
    levels: list[Level]
    workers: int = 1
    reader: Reader = "python"

    @property
    def best(self) -> Level | None:
        """The highest load at which, as at all lower ones, the error held."""
        best = None
        for level in self.levels:
            if not level.within:
                break
            best = level
        return best

    @property
    def limit_found(self) -> bool:
        """Whether a load was found at which it does not hold."""
        return any(not level.within for level in self.levels)


def cache_file(workers: int = 1) -> Path:
    """Where the calibration of this user for so many workers is kept (XDG)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return folder / "pddbench" / ("calibration.json" if workers == 1 else f"calibration-{workers}-workers.json")


def new(levels: list[Level], error_ms: float, created_utc: str, workers: int = 1) -> Calibration:
    """A calibration of this host."""
    return Calibration(
        pddbench=__version__, created_utc=created_utc, host=platform.node(), kernel=platform.release(),
        cpus=len(os.sched_getaffinity(0)), error_ms=error_ms, levels=levels, workers=workers, reader=chosen(),
    )  # fmt: skip


def save(calibration: Calibration) -> Path:
    """Keep it; returns the file. Raises `InputError` where it cannot be written."""
    path = cache_file(calibration.workers)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; set XDG_CACHE_HOME or use --no-save") from None
    return path


def load(workers: int = 1) -> Calibration | None:
    """The calibration of this host, kernel and reader; None when there is none that can be read, or it is another's."""
    try:
        found = msgspec.json.decode(cache_file(workers).read_bytes(), type=Calibration)
    except (OSError, msgspec.MsgspecError, RuntimeError):
        return None
    here = (platform.node(), platform.release(), len(os.sched_getaffinity(0)), workers, chosen())
    return found if (found.host, found.kernel, found.cpus, found.workers, found.reader) == here else None


def quoted(workers: int = 1) -> dict[str, Any] | None:
    """What a manifest says of the calibration: its date, the error stated, and the load up to which it holds."""
    calibration = load(workers)
    if calibration is None:
        return None
    best = calibration.best
    return {
        "created_utc": calibration.created_utc,
        "workers": calibration.workers,
        "error_ms": calibration.error_ms,
        "events_s": best.events_s if best else 0,
        "starts_s": best.starts_s if best else 0.0,
        "limit_found": calibration.limit_found,
        "ttft_error_p99_ms": best.ttft_used.p99 if best else None,
        "drift_p99_ms": best.drift.p99 if best else None,
    }


def warning(events: int, starts: int, wall_s: float, workers: int = 1) -> str | None:
    """What to say before a workload of so many events and starts in so many seconds; None when all is well.

    The mean is compared, so that a burst may still exceed it: the rules of trust watch the run itself.
    """
    calibration = quoted(workers)
    if calibration is None:
        several, flag = (f" for {workers} workers", f" --workers {workers}") if workers > 1 else ("", "")
        return (
            f"this host is not calibrated{several}: `pddbench calibrate{flag}` finds the load up to which its clock "
            "can be trusted"
        )
    rates = {"events_s": ("events", events / max(wall_s, 1.0)), "starts_s": ("starts", starts / max(wall_s, 1.0))}
    for key, (what, planned) in rates.items():
        if planned > calibration[key]:
            return (
                f"about {planned:,.0f} {what} a second are planned, and this host is calibrated up to "
                f"{calibration[key]:,.0f} for an error of {calibration['error_ms']:g} ms"
                + (f" with {workers} workers" if workers > 1 else "")
                + ": its own delay may show"
            )
    return None
