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


class NotebookSearch:
    """A capacity search: `figures` and `runs` as DataFrames, `document` as capacity.json holds it."""

    def __init__(self, path: Path) -> None:
        from pddbench.report import searched
        from pddbench.report.capacity import document

        self.path = path
        self.document: dict[str, Any] = msgspec.to_builtins(document(searched.read(path)))

    def __repr__(self) -> str:
        return f"NotebookSearch({self.document['name']}: {', '.join(one['arm'] for one in self.document['answers'])})"

    @property
    def figures(self) -> pd.DataFrame:
        """Capacity, BCR and cost of a session with their 95% intervals: index (arm, figure); NaN where there is none.

        `bcr_ratio` is the BCR / the first arm's, `cost_ratio` what that means for the cost of a session.
        """
        import pandas as pd

        currency = self.document["currency"]
        lines = []
        for one in self.document["answers"]:
            capacity, price, against = one["capacity"] or {}, one["price"] or {}, one["against_first"]
            change = one["cost_per_session_change"]
            ratio = None if change is None else {end: None if v is None else 1 + v for end, v in change.items()}
            known = {
                "capacity": (capacity | {"point": capacity.get("rate")}, "sessions/s"),
                "requests": (one["requests_s"], "requests/s"),
                "bcr": (one["bcr"], f"sessions/{currency}"),
                "session_cost": (price.get("session"), currency),
                "bcr_ratio": (against, ""),
                "cost_ratio": (ratio, ""),
            }
            for name, (figure, unit) in known.items():
                ends = {end: as_float((figure or {}).get(end)) for end in ("point", "low", "high")}
                lines.append({"arm": one["arm"], "figure": name, **ends, "unit": unit})
        return pd.DataFrame(lines).set_index(["arm", "figure"])

    @property
    def runs(self) -> pd.DataFrame:
        """One line a run: `arm`, `rate` (sessions/s), `attainment` (a share), `goodput` (requests/s), `used`."""
        import pandas as pd

        return pd.DataFrame(
            {"arm": one["arm"], **{name: run[name] for name in ("rate", "attainment", "goodput")},
             "used": not run["invalid"]}
            for one in self.document["answers"] for run in one["runs"]
        )  # fmt: skip

    @property
    def curves(self) -> pd.DataFrame:
        """The fitted curve of each arm: `arm`, `rate`, `attainment`, `goodput`."""
        import pandas as pd

        return pd.DataFrame(
            {"arm": one["arm"], **{name: at[name] for name in ("rate", "attainment", "goodput")}}
            for one in self.document["answers"] for at in one["fit"]
        )  # fmt: skip

    def _repr_html_(self) -> str:
        from pddbench.report.html.card import search_card

        return search_card(self.document).text


def load_capacity(path: str | Path) -> NotebookSearch:
    """The search in `path`, a folder of `pddbench capacity`; InputError says what is wrong otherwise."""
    return NotebookSearch(Path(path))


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
