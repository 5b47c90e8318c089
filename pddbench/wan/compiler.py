"""Compiling the TUN emulator's C form with the host's compiler, if there is one; nothing is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from pddbench.text import printable

SOURCE = Path(__file__).parent / "inside" / "emulator.c"
_USAGE_EXIT = 2  # what it ends with when run without arguments
_TIMEOUT_S = 60.0


def compile_emulator(folder: Path) -> tuple[Path | None, str]:
    """The program, made in `folder`, and by which compiler; or none, and why not."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None, "no C compiler (cc) on this host"
    binary = folder / "tun-emulator"
    argv = [compiler, "-O2", "-o", str(binary), str(SOURCE), "-lm"]
    try:
        place = {**os.environ, "TMPDIR": str(folder)}  # what a compiler that is killed leaves goes with the folder
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, env=place)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or ["unknown error"]
            return None, f"{compiler} failed: {printable(errors[0])}"
        usage = subprocess.run([str(binary)], stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S)
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"the compiled emulator does not run here: {printable(str(error))}"
    if usage.returncode != _USAGE_EXIT:
        return None, f"the compiled emulator does not run here (exit {usage.returncode})"
    return binary, printable(version.stdout.splitlines()[0] if version.stdout else compiler, 80)
