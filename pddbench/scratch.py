"""A temporary folder that goes with the process that made it, however that ends.

A process beside it holds one end of a pipe: when the other one closes, the maker is gone and the folder is removed. It
is nobody's child in a namespace and not of the maker's session, so that what ends the maker leaves it alone.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "pddbench-"
_REMOVE_TIMEOUT_S = 30.0  # processes that end with the maker may still be writing


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A new folder `pddbench-NAME-…` in the place for temporary files; removed at the end, and after SIGKILL too."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-"))
    keeper = None
    try:
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(folder)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if keeper is not None:
            keeper.communicate()


def _remove_when_alone(folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # those are for the maker
    sys.stdin.read()
    until = time.monotonic() + _REMOVE_TIMEOUT_S
    while Path(folder).exists() and time.monotonic() < until:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.05)


if __name__ == "__main__":
    _remove_when_alone(sys.argv[1])
