"""pddbench: replay agentic traces against live LLM endpoints and say how far the numbers can be trusted.

The package imports nothing heavy at the top, so that `import pddbench` and `pddbench --help` stay fast;
`pddbench.load` brings in pandas and pyarrow when it is first called.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers take it; `typing` itself would cost some milliseconds
if TYPE_CHECKING:
    from pddbench.runfolder.load import Run

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(path: str) -> Run:
    """Load a run folder (or a folder holding exactly one) as DataFrames; see `pddbench.runfolder.load.Run`."""
    from pddbench.runfolder.load import load as load_run

    return load_run(path)
