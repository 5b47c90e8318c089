"""The process that makes a temporary folder and removes it: it outlives whoever asked for it (`scratch`).

It holds one end of a pipe: when the other one closes, who asked is gone. It is nobody's child in a namespace and not
of the asker's session, so that what ends the asker leaves it alone. Runs without anything of ours.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

MADE = b"0"
_REMOVE_TIMEOUT_S = 30.0  # processes that end with the asker may still be writing


def keep(folder: str) -> None:
    """Make it, say so or say the error's number, and remove it when nobody is left who asked for it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # those are for the asker
    try:
        Path(folder).mkdir(0o700)  # never one that is there: only our own is removed
    except OSError as error:
        os.write(1, b"%d\n" % (error.errno or 0))
        return
    try:
        os.write(1, MADE + b"\n")
        sys.stdin.read()
    finally:
        until = time.monotonic() + _REMOVE_TIMEOUT_S
        while Path(folder).exists() and time.monotonic() < until:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05)


if __name__ == "__main__":
    keep(sys.argv[1])
