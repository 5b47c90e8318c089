"""A temporary folder that goes with the process that asked for it, however that ends.

A process beside it (`scratch_keeper`) makes the folder, so that at no moment there is one that nobody would remove, and
removes it when who asked is gone.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pddbench import scratch_keeper
from pddbench.errors import WorldError
from pddbench.text import printable

_PREFIX = "pddbench-"


@contextlib.contextmanager
def scratch_folder(name: str) -> Iterator[Path]:
    """A new folder `pddbench-NAME-…` in the place for temporary files; removed at the end, and after SIGKILL too."""
    folder = Path(_place(), f"{_PREFIX}{name}-{secrets.token_hex(8)}").absolute()
    with subprocess.Popen(
        [sys.executable, "-I", "-S", scratch_keeper.__file__, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    ) as keeper:  # fmt: skip
        assert keeper.stdin is not None and keeper.stdout is not None
        answer = keeper.stdout.readline().strip()
        if answer != scratch_keeper.MADE:
            reason = os.strerror(int(answer)) if answer else "the process that is to remove it did not start"
            raise WorldError(f"cannot make the temporary folder {printable(str(folder))}: {reason}")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            keeper.stdin.close()


def _place() -> str:
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise WorldError("nothing can be written where temporary files go ($TMPDIR, /tmp, /var/tmp)") from None
