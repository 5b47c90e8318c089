"""A temporary folder that goes with the process that asked for it, however that ends.

A process beside it makes the folder, so that at no moment there is one that nobody would remove, and holds one end of a
pipe: when the other one closes, who asked is gone and the folder is removed. It is nobody's child in a namespace and
not of the asker's session, so that what ends the asker leaves it alone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "pddbench-"
_REMOVE_TIMEOUT_S = 30.0  # processes that end with the asker may still be writing


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A new folder `pddbench-NAME-…` in the place for temporary files; removed at the end, and after SIGKILL too."""
    folder = Path(tempfile.gettempdir(), f"{_PREFIX}{name}-{secrets.token_hex(8)}").absolute()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as keeper:  # fmt: skip
        assert keeper.stdin is not None and keeper.stdout is not None
        answer = keeper.stdout.readline().strip()
        if answer != b"0":
            number = int(answer or 0)
            raise OSError(number, os.strerror(number) if number else "its keeper did not start", str(folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            keeper.stdin.close()


def _keep(folder: str) -> None:
    """Make it, say 0 or the error's number, and remove it when nobody is left who asked for it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # those are for the asker
    try:
        os.mkdir(folder, 0o700)  # noqa: PTH102  (as bytes of the command line)
    except OSError as error:
        os.write(1, b"%d\n" % (error.errno or 0))
        return
    try:
        os.write(1, b"0\n")
        sys.stdin.read()
    finally:
        until = time.monotonic() + _REMOVE_TIMEOUT_S
        while Path(folder).exists() and time.monotonic() < until:
            shutil.rmtree(folder, ignore_errors=True)
            time.sleep(0.05)


if __name__ == "__main__":
    _keep(sys.argv[1])
