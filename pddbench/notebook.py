"""A run folder in Jupyter: DataFrames, figures with their intervals, and a short table wherever a run is shown.

`pddbench.load` gives a `NotebookRun`. Everything is computed when it is first asked for, and kept.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.analyze.intervals import as_float
from pddbench.runfolder.load import Run
from pddbench.runfolder.load import load as load_run

if TYPE_CHECKING:
    import pandas as pd

    from pddbench.analyze.dataset import Dataset
    from pddbench.report.compared import Comparison


class NotebookRun(Run):
    """A finished run: `requests`, `events`, `server`, `health` as they were recorded, and what follows from them."""

    @cached_property
    def data(self) -> Dataset:
        """The run made ready for questions: what table and checks are computed from."""
        from pddbench.analyze.dataset import Dataset

        return Dataset(self)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What summary.json holds, computed from the rows."""
        from pddbench.analyze.summary import build, to_dict

        return to_dict(build(self.data))

    @property
    def metrics(self) -> pd.DataFrame:
        """One line a request: latencies in seconds (+inf for what failed, NaN where one does not apply), counts, `ok`
        and `good`; names as in METRICS.md. Warm-ups are in it: see the column `phase`."""
        return self.data.lines

    @cached_property
    def figures(self) -> pd.DataFrame:
        """Every figure of every arm with its 95% interval by session: index (arm, metric, stat); columns `point`,
        `low`, `high` in `unit`, NaN where `withheld` says why or a bound does not exist; `rows`, `sessions`, `n_eff`.
        """
        import pandas as pd

        lines = []
        for arm, part in self.summary["arms"].items():
            for key, figure in part["figures"].items():
                metric, stat = key.split(".", 1)
                ends = {end: as_float(figure[end]) for end in ("point", "low", "high")}
                rest = {name: figure[name] for name in ("unit", "rows", "sessions", "n_eff", "withheld")}
                lines.append({"arm": arm, "metric": metric, "stat": stat, **ends, **rest})
        return pd.DataFrame(lines).set_index(["arm", "metric", "stat"]).sort_index()

    def compare(self, against: str, *arms: str) -> Comparison:
        """Each of `arms` (default: all others) with the arm `against`, request by request, sessions resampled
        jointly."""
        from pddbench.report.compared import compare_data

        others = arms or tuple(arm for arm in self.arms if arm != against)
        return compare_data(self.data, [against, *others])

    def _repr_html_(self) -> str:
        from pddbench.report.html.card import run_card

        return run_card(self.summary).text


def load(path: str | Path) -> NotebookRun:
    """The run in `path`, a run folder or a folder that holds exactly one; InputError says what is wrong otherwise."""
    found = load_run(path)
    return NotebookRun(found.path, found.manifest)


def compare(a: str | Path, b: str | Path) -> Comparison:
    """Arms of the same name in two runs, `b` minus `a`; requests pair where their plans agree."""
    from pddbench.report.compared import compare_runs

    return compare_runs(Path(a), Path(b))


def differences(comparison: Comparison) -> pd.DataFrame:
    """A comparison as a DataFrame: index (pair, metric, stat), columns `point`, `low`, `high`, `unit`, `withheld`."""
    import pandas as pd

    lines = []
    for name, pair in comparison.pairs.items():
        for key, figure in pair.differences.items():
            metric, stat = key.split(".", 1)
            plain = msgspec.to_builtins(figure)
            ends = {end: as_float(plain[end]) for end in ("point", "low", "high")}
            lines.append({"pair": name, "metric": metric, "stat": stat, **ends, "unit": figure.unit,
                          "withheld": figure.withheld})  # fmt: skip
    return pd.DataFrame(lines).set_index(["pair", "metric", "stat"])
