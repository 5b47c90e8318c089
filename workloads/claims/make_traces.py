"""Makes the traces of this folder: `python workloads/claims/make_traces.py [NAME …]`; without names the small ones.

The large ones, which `full/` names, are made in memory by `pddbench claims --full`; give their names here to have them
as files for `pddbench simulate`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pddbench.claims.recipes import RECIPES, SUFFIX
from pddbench.trace.canonical import write_trace

HERE = Path(__file__).parent
SMALL = ("fixed-64k-h90", "pdd-agentic", "saturated-sweep")
LIVE = ("fixed-64k-h90-256",)


def folder(name: str) -> Path:
    """Where the experiments look for a trace."""
    return HERE / ("traces" if name in SMALL else "live/traces" if name in LIVE else "full/traces")


if __name__ == "__main__":
    for name in sys.argv[1:] or SMALL + LIVE:
        out = folder(name) / f"{name}{SUFFIX}"
        out.parent.mkdir(exist_ok=True, parents=True)
        write_trace(RECIPES[name](1), out)
