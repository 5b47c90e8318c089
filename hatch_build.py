"""Compiles the native reader when pddbench is installed or a wheel of it is built; without a compiler, leaves it out.

The library needs no headers of Python and fits every version of it, so a wheel that has it is `py3-none-PLATFORM`, one
without it `py3-none-any`. PDDBENCH_READER=native makes a missing reader an error.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_LIBRARY = "pddbench/replay/native/compiled.py"


class NativeReader(BuildHookInterface):
    """The hook; `version` is `standard` for a wheel, `editable` for an install that uses the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into the source tree, which an editable install uses as it is."""
        spec = importlib.util.spec_from_file_location("pddbench_native_library", Path(self.root) / _LIBRARY)
        assert spec is not None and spec.loader is not None
        library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
        try:
            library.compile_library()
        except library.Missing as missing:
            library.LIBRARY.unlink(missing_ok=True)  # one that cannot be made again here is not passed on
            if os.environ.get(library.VARIABLE) == "native":
                raise RuntimeError(f"the native reader cannot be compiled: {missing}") from None
            print(f"pddbench: no native reader ({missing}); {library.INSTALL}", file=sys.stderr)  # noqa: T201
            return
        path = str(library.LIBRARY.relative_to(self.root))
        build_data["artifacts"].append(path)  # though git ignores it
        if version == "standard":
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
