"""How a process that must be on time asks the operating system, and the interpreter, for it."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_SLICE_NS = 300_000  # halves the lateness of timers on a busy host (default slice: about 3 ms)
SWITCH_S = 0.0002  # the loop waits that long for a thread that encodes a body or writes the spool
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}


def ask_for_short_slices() -> None:
    """Ask the scheduler for short, early turns (Linux 6.12: the slice of a fair task; no privileges). Best effort."""
    number = _SCHED_SETATTR.get(os.uname().machine)
    if sys.platform == "linux" and number is not None and os.sched_getscheduler(0) == os.SCHED_OTHER:
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        attributes = struct.pack("IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, _SLICE_NS, 0, 0)
        ctypes.CDLL(None, use_errno=True).syscall(number, 0, attributes, 0)


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """No garbage collection (what is loaded is set aside), and threads that give way soon; all restored after."""
    was_enabled, interval_s = gc.isenabled(), sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        gc.unfreeze()
        if was_enabled:
            gc.enable()
