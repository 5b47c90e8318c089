"""Finding and loading the compiled reader; why there is none, where there is none; how it is compiled."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "_reader.so"
SOURCES = (FOLDER / "reader.c", FOLDER / "framing.h")
VARIABLE = "PDDBENCH_READER"
INSTALL = "apt-get install gcc libc6-dev (or the like), then install pddbench again"
_TIMEOUT_S = 120.0

_P, _I, _I64, _U32 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint32
_BYTES = ctypes.POINTER(ctypes.c_void_p)
_FUNCTIONS: dict[str, tuple[object, list[object]]] = {
    "pdd_open": (_P, [_I, _I64, _I64]),
    "pdd_close": (None, [_P]),
    "pdd_wake_fd": (_I, [_P]),
    "pdd_add": (_I, [_P, _I, _I]),
    "pdd_remove": (None, [_P, _I]),
    "pdd_begin": (_I, [_P, _I, _U32]),
    "pdd_end": (None, [_P, _I]),
    "pdd_arm": (_I, [_P, _I, ctypes.c_char_p, _I64, ctypes.c_char_p, _I64, ctypes.c_char_p, _I, _I64]),
    "pdd_disarm": (_I64, [_P, _I, ctypes.POINTER(_I64)]),
    "pdd_head": (_I64, [_P, _I, _BYTES]),
    "pdd_body": (_I, [_P, _I, _I, _I64, _I64, _I64, _I, ctypes.POINTER(_I64), ctypes.c_char_p]),
    "pdd_events": (_I, [_P, _P, _I]),
    "pdd_take": (_I64, [_P, _I, _BYTES, ctypes.POINTER(_U32)]),
    "pdd_gather": (_I64, [_P, _U32, _BYTES]),
    "pdd_last_ns": (_I64, [_P, _I]),
    "pdd_good": (_I, [_P, _I]),
    "pdd_newest": (_I64, [_P, ctypes.c_char_p]),
    "pdd_cpu_ns": (_I64, [_P]),
    "pdd_counts": (None, [_P, ctypes.POINTER(_I64), ctypes.POINTER(_I64)]),
}


class Missing(Exception):
    """There is no native reader here: a few words why."""


def source_hash() -> str:
    """What the library was, or should be, made of."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in SOURCES)).hexdigest()[:16]


def compile_library(into: Path = LIBRARY) -> str:
    """Compile the reader with the host's C compiler; returns its name. Raises `Missing` when that fails."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux"):
        raise Missing("it is for Linux")
    if compiler is None:
        raise Missing("no C compiler (cc) was there when pddbench was installed")
    draft = into.with_name(f"{into.name}.{os.getpid()}.tmp")
    argv = [compiler, "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread",
            f'-DPDD_SOURCE="{source_hash()}"', "-o", str(draft), str(SOURCES[0])]  # fmt: skip
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if done.returncode != 0:
            errors = [line for line in done.stderr.splitlines() if "error" in line] or ["unknown error"]
            raise Missing(f"{compiler} failed: {errors[0][:200]}")
        draft.replace(into)  # never half a library, nor a changed one under a process that has it mapped
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(f"{compiler} does not work: {error}") from None
    finally:
        draft.unlink(missing_ok=True)
    return compiler


@functools.cache
def load() -> ctypes.PyDLL:
    """The library. Raises `Missing`.

    Its calls keep the interpreter's lock: they are short, and giving it up would cost more than they do.
    """
    if not LIBRARY.exists():
        raise Missing("it was not compiled when pddbench was installed (no C compiler, or no Linux)")
    try:
        library = ctypes.PyDLL(str(LIBRARY))
        library.pdd_source.restype = ctypes.c_char_p
        made_of = library.pdd_source().decode("ascii", "replace")
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise Missing(f"{LIBRARY.name} cannot be loaded: {error}") from None
    if made_of != source_hash():
        raise Missing("it was compiled from another version of its source")
    return library


def why_missing() -> str | None:
    """Why there is no native reader here, in a few words; None when there is one."""
    try:
        load()
    except Missing as missing:
        return str(missing)
    return None


def chosen() -> Literal["native", "python"]:
    """Who reads plain HTTP here: the native reader where there is one. PDDBENCH_READER may insist on one of them.

    Raises `InputError` for another value of it, `WorldError` when it insists on what is missing.
    """
    from pddbench.errors import (  # not above: the build loads this file before there is a pddbench
        InputError,
        WorldError,
    )
    from pddbench.text import printable

    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "native", "python"):
        raise InputError(f"{VARIABLE}={printable(wanted, 40)}: give native or python, or leave it unset")
    missing = why_missing() if wanted != "python" else None
    if wanted == "native" and missing is not None:
        raise WorldError(f"{VARIABLE}=native, but there is no native reader here: {missing}; {INSTALL}")
    return "python" if wanted == "python" or missing is not None else "native"
