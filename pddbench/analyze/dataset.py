"""A run made ready for questions: per-request metrics, pooled gaps and one `ArmData` an arm, measured phase only."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pddbench.analyze import metrics, money, paired, window
from pddbench.analyze.gaps import Gaps, flat_gaps
from pddbench.analyze.samples import ArmData
from pddbench.errors import InputError
from pddbench.text import printable

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from pddbench.runfolder.load import Run


@dataclass
class Dataset:
    """What `summarise`, `check` and `compare` share of a run; everything is computed once, when first asked for."""

    run: Run
    warmup_s: float = 0.0  # requests due that soon after a repeat's first are left out (asked for, never by itself)
    _pairs: dict[tuple[str, str], paired.Pair] = field(default_factory=dict)

    @cached_property
    def lines(self) -> pd.DataFrame:
        """`request_metrics` of all rows of the run, warm-up included."""
        lines = metrics.request_metrics(self.run.requests, self.slo)
        _once_each(lines, self.run.path)
        if self.window is not None:
            lines["error"] = self.run.requests["error"].reset_index(drop=True)
            window.mark_session_starts(lines)
        return lines

    @property
    def window(self) -> dict[str, Any] | None:
        """The window of due times that was measured (`from_s`, `until_s`); None: whole sessions were."""
        return self.run.manifest.get("window") or None

    def of_arm(self, arm: str) -> pd.DataFrame:
        """All lines of an arm, whatever their phase."""
        return self.lines[self.lines["arm"] == arm]

    def cut_window_s(self, arm: str) -> float | None:
        """Length of an arm's measured window over all repeats; None without one."""
        return None if self.window is None else self.window_length_s(arm)[0]

    def window_length_s(self, arm: str) -> tuple[float, bool]:
        """The same, and whether every repeat filled its window; only with a window."""
        assert self.window is not None
        return window.length_s(self.window, self.of_arm(arm), bool(self.run.manifest.get("partial")))

    @cached_property
    def gaps(self) -> Gaps:
        """All gaps between chunks."""
        return flat_gaps(self.run.table("events"), self.lines)

    @cached_property
    def arms(self) -> dict[str, ArmData]:
        """Each arm's measured rows; all arms share one list of sessions and one matrix of weights."""
        measured = _only(self.lines, self.lines["phase"] == "measure")
        if self.warmup_s > 0:
            begin = measured.groupby(["arm", "repeat"])["due_s"].transform("min")
            measured = measured[~(measured["due_s"] - begin < self.warmup_s)]
        sessions = sorted(set(measured["session_id"]))
        out: dict[str, ArmData] = {}
        weights = None
        for name in self.run.arms:
            rows = _only(measured, measured["arm"] == name)
            out[name] = ArmData(rows, self.gaps, sessions, self.cost_per_hour(name), weights, self.cut_window_s(name))
            weights = out[name].weights if sessions else None
        return out

    def pair(self, a: str, b: str) -> paired.Pair:
        """Arms `a` (compared with) and `b` on the requests they share."""
        if (a, b) not in self._pairs:
            self._pairs[a, b] = paired.pair(self.side(a), self.side(b))
        return self._pairs[a, b]

    def side(self, arm: str) -> paired.Side:
        """An arm as one side of a comparison, perhaps with an arm of another run."""
        return paired.Side(self.arms[arm].rows, self.gaps, self.cost_per_hour(arm), self.cut_window_s(arm))

    @property
    def slo(self) -> dict[str, Any]:
        """Objectives given, in milliseconds."""
        given = self.run.manifest.get("slo") or {}
        return {key: value for key, value in given.items() if value is not None}

    def cost_per_hour(self, arm: str) -> float | None:
        """What an hour of the arm costs; None: no price."""
        return money.cost_per_hour(self.arm_facts(arm), self.run.manifest.get("cost") or {})

    def arm_facts(self, arm: str) -> dict[str, Any]:
        """The manifest's table of an arm."""
        facts: dict[str, Any] = self.run.manifest.get("arms", {}).get(arm) or {}
        return facts

    def speed(self, arm: str) -> float:
        """Experiment seconds a wall second: the emulator's speed, 1 for real endpoints."""
        return float(self.arm_facts(arm).get("speed") or 1.0)


def _once_each(lines: pd.DataFrame, folder: Path) -> None:
    """Refuse a run that has a request twice (a Parquet file copied beside itself, say): each would count twice."""
    twice = lines[lines.duplicated(["arm", "repeat", "request_id"])]
    if len(twice):
        arm, repeat, request = twice.iloc[0][["arm", "repeat", "request_id"]]
        raise InputError(
            f"{folder / 'requests'}: request {printable(request)!r} of {arm}.{repeat} is there twice "
            f"({len(twice)} rows too many): leave one file an arm and repeat"
        )


def _only(rows: pd.DataFrame, wanted: pd.Series) -> pd.DataFrame:
    """Those rows; all of them without a copy, which of a million takes half a gigabyte."""
    return rows if wanted.all() else rows[wanted]
