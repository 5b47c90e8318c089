"""pddbench: replay agentic traces against live LLM endpoints and say how far the numbers can be trusted.

The package imports nothing heavy at the top, so that `import pddbench` and `pddbench --help` stay fast;
`pddbench.load` brings in pandas and pyarrow when it is first called.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers take it; `typing` itself would cost some milliseconds
if TYPE_CHECKING:
    from pathlib import Path

    from pddbench.notebook import NotebookRun, NotebookSearch
    from pddbench.report.compared import Comparison

__version__ = "0.1.0"
__all__ = ["__version__", "compare", "load", "load_capacity"]


def load(path: str | Path) -> NotebookRun:
    """Load a run folder (or a folder holding exactly one) as DataFrames and figures; see `pddbench.notebook`."""
    from pddbench.notebook import load as load_run

    return load_run(path)


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Compare run folder `b` with `a`: arms of the same name, on the requests that both have."""
    from pddbench.notebook import compare as compare_runs

    return compare_runs(a, b)


def load_capacity(path: str | Path) -> NotebookSearch:
    """Load the folder of a capacity search: capacities, BCR and runs as DataFrames; see `pddbench.notebook`."""
    from pddbench.notebook import load_capacity as load_search

    return load_search(path)
