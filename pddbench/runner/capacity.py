"""`pddbench capacity`: runs at rates that the search asks for, one arm after the other, saved after every run."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.analyze import capacity as search
from pddbench.analyze.capacity import Estimate, RunPoint
from pddbench.errors import InputError, WorldError
from pddbench.runner import manifest
from pddbench.runner.order import fresh_salts
from pddbench.runner.prepare import Prepared, prepare
from pddbench.workload.experiment import Arm, Experiment
from pddbench.workload.plan import BEFORE_START

if TYPE_CHECKING:
    import pandas as pd

    from pddbench.trace.model import Trace

FILE = "capacity.json"
_SPARE_SIGMAS = 3.0  # Poisson arrivals: that many deviations of sessions more than expected, so that load never ends
VOID = "void:"  # begins `stopped` where too many runs broke a trust rule
_EXPECTED = ("backlog",)  # above the knee a queue grows to the end: that is what the search looks for


@dataclass(frozen=True)
class SearchOptions:
    """What to search for. `half_width` is a share of the rate, times are in experiment seconds.

    `budget`: runs an arm that count; `voids`: runs an arm that broke a trust rule, each made again at the same rate.
    """

    target: float = 0.9
    half_width: float = 0.05
    budget: int = 16
    voids: int = 6
    warmup_s: float = 30.0
    run_s: float | None = None
    start_rate: float | None = None
    simulated: bool = False
    wan: str | None = None
    quiet: bool = False


class Point(msgspec.Struct, kw_only=True):
    """A run of the search; `invalid` names broken trust rules, and such a run is not used.

    Tokens are means over the run's sessions: of prompts, of those what the cache gave (served, else possible), of
    replies; null in files of earlier versions.
    """

    rate: float
    good: list[int]
    total: list[int]
    sessions: int
    seed: int
    requests_a_session: float
    input_tokens_a_session: float | None = None
    cached_tokens_a_session: float | None = None
    output_tokens_a_session: float | None = None
    invalid: list[str] = []


class ArmSearch(msgspec.Struct, kw_only=True):
    """An arm's runs and what they say; `stopped` is why the search ended, null while it goes on.

    `voids_before`: void runs of earlier calls, which the limit of this one does not count.
    """

    points: list[Point] = []
    voids_before: int = 0
    estimate: Estimate | None = None
    stopped: str | None = None
    cost_per_hour: float | None = None
    roles: dict[str, dict[str, Any]] = {}
    uses_line: bool = False
    unit: str = "sessions/s"


class State(msgspec.Struct, kw_only=True):
    """`capacity.json`: complete after every run, so that the search can be taken up again.

    `prices` (of chips, by name) and `line` are the experiment's, an hour.
    """

    schema_version: int = 1
    name: str
    config_sha256: str
    measured: str  # live | emulated | simulated
    target: float
    half_width: float
    budget: int
    warmup_s: float
    run_s: float
    slo: dict[str, float]
    currency: str
    prices: dict[str, float] = {}
    line: float = 0.0
    seed: int
    arms: dict[str, ArmSearch] = {}


def used(found: ArmSearch) -> list[RunPoint]:
    """The runs that count."""
    return [RunPoint(p.rate, tuple(p.good), tuple(p.total)) for p in found.points if not p.invalid]


class Runs:
    """Runs of one experiment at given rates."""

    def __init__(
        self, experiment: Experiment, options: SearchOptions, folder: Path, trace: Trace | None = None
    ) -> None:
        """`trace`: in the place of the experiment's own."""
        from pddbench.trace.read import read_trace

        self._experiment, self._options, self._folder = experiment, options, folder
        self._base = prepare(experiment, "model" if options.simulated else options.wan)
        work = experiment.workload
        self._trace = trace if trace is not None else read_trace(Path(work.trace), work.format)
        self.run_s = options.run_s or max(120.0, 3 * session_duration_s(self._base))

    @property
    def base(self) -> Prepared:
        """The experiment as it stands, all arms."""
        return self._base

    def start_rate(self) -> float:
        """Where to begin: as asked, else the experiment's own rate, else that of its trace."""
        if self._options.start_rate is not None:
            return self._options.start_rate
        own = self._experiment.workload.session_rate
        if own is not None:
            return own
        starts = [r.start_s for r in self._trace.rows if r.start_s is not None and not r.parents]
        span = max(starts) - min(starts) if len(starts) > 1 else 0.0
        return len(starts) / span if span > 0 else 1.0

    def at(self, arm: Arm, rate: float, number: int) -> tuple[Point | None, int | None]:
        """Run `arm` at `rate`: its point, or None with the exit code of the signal that stopped it."""
        from pddbench.workload.cycle import cycled
        from pddbench.workload.plan import make_plan

        length = self._options.warmup_s + self.run_s
        expected = rate * length
        spare = 1 if self._experiment.workload.arrival == "constant" else _SPARE_SIGMAS * math.sqrt(expected)
        sessions = max(2, math.ceil(expected + spare))
        one = msgspec.convert(msgspec.to_builtins(self._experiment), Experiment)
        one.arm = [arm]
        work = one.workload
        work.arrival = "poisson" if work.arrival == "trace" else work.arrival
        work.session_rate, work.repeats, work.time_scale = rate, 1, 1.0
        work.warmup_s, work.duration_s, work.ramp_s = self._options.warmup_s, self.run_s, None
        work.seed = self._experiment.workload.seed * 1000 + number
        one.check = {}
        prepared = self._one(one, arm)
        prepared.plan = make_plan(cycled(self._trace, sessions), work)
        if self._options.simulated:
            return self._simulated(prepared, rate), None
        folder = self._folder / "runs" / f"{arm.name}-{number}"
        code = self._execute(prepared, folder)
        return (self._read(folder, rate, prepared), None) if code is None else (None, code)

    def _one(self, experiment: Experiment, arm: Arm) -> Prepared:
        """The experiment with one arm, ready to run; the trace is read once."""
        setups = [setup for setup in self._base.arms if setup.name == arm.name]
        if not setups:
            return prepare(experiment, "model" if self._options.simulated else self._options.wan)
        return replace(self._base, experiment=experiment, arms=setups)

    def _simulated(self, prepared: Prepared, rate: float) -> Point:
        """A run in virtual time, in memory."""
        from pddbench.analyze.metrics import request_metrics
        from pddbench.runner.simulate import simulate_frame

        experiment = prepared.experiment
        rows = request_metrics(simulate_frame(experiment, plan=prepared.plan), objectives(experiment))
        return self._point(rows[rows["phase"] == "measure"], rate, prepared, [])

    def _execute(self, prepared: Prepared, folder: Path) -> int | None:
        from pddbench.live.board import Announced
        from pddbench.runner.conduct import make_folder
        from pddbench.runner.execute import execute
        from pddbench.runner.progress import Progress
        from pddbench.runner.signals import catching

        make_folder(folder, force=True)
        salts = fresh_salts(1)
        facts: dict[str, Any] = manifest.build(prepared, salts)
        manifest.write(folder, facts)
        silent = Progress(Announced("", str(folder), prepared.order, len(prepared.plan.requests), 0.0), quiet=True)
        with catching() as stop:
            execute(prepared, folder, facts, salts, stop, silent)
        facts["finished_utc"] = manifest.utc_now()
        manifest.write(folder, facts)
        return stop.exit_code

    def _read(self, folder: Path, rate: float, prepared: Prepared) -> Point:
        """A finished run folder as a point, with the trust rules it broke."""
        from pddbench.analyze import trust
        from pddbench.analyze.dataset import Dataset
        from pddbench.runfolder.load import load

        data = Dataset(load(folder))
        (part,) = data.arms.values()
        if not part.rows["ok"].any():
            raise WorldError(f"{folder}: no request succeeded at {rate:g}/s: see `pddbench report {folder}`")
        invalid = [f.rule for f in trust.findings(data) if f.level == "invalid" and f.rule not in _EXPECTED]
        return self._point(part.rows, rate, prepared, invalid)

    def _point(self, rows: pd.DataFrame, rate: float, prepared: Prepared, invalid: list[str]) -> Point:
        """Requests due after the warm-up and before arrivals end, in order of time; failures are not good."""
        rows = rows.sort_values("due_s", kind="stable")
        point = search.point_of(rate, rows["good"].to_numpy(dtype=bool))
        if not sum(point.total):
            raise InputError(f"no request is due in {self.run_s:g} s after the warm-up at {rate:g}/s: longer --run-s")
        planned = [request for request in prepared.plan.requests if request.kind not in BEFORE_START]
        sessions = len({request.session_id for request in planned})
        return Point(rate=rate, good=list(point.good), total=list(point.total), sessions=sessions,
                     seed=prepared.experiment.workload.seed, invalid=sorted(set(invalid)),
                     **_a_session(rows, len(planned) / max(1, sessions)))  # fmt: skip


def _a_session(rows: pd.DataFrame, requests: float) -> dict[str, float]:
    """Requests and tokens of a session in the mean; what a failed reply lacks counts as planned: money buys the mix."""
    prompts = rows["prompt_tokens"].fillna(rows["input_tokens_planned"])
    cached = rows["cached_tokens"].fillna(rows["cached_tokens_possible"]).fillna(0)
    outputs = rows["completion_tokens"].fillna(rows["output_tokens_planned"])
    return {
        "requests_a_session": requests,
        "input_tokens_a_session": float(prompts.mean()) * requests,
        "cached_tokens_a_session": float(cached.mean()) * requests,
        "output_tokens_a_session": float(outputs.mean()) * requests,
    }


def objectives(experiment: Experiment) -> dict[str, float]:
    """The objectives given, in milliseconds."""
    return {key: value for key, value in msgspec.to_builtins(experiment.slo).items() if value is not None}


def session_duration_s(prepared: Prepared) -> float:
    """Median of the planned durations of sessions: think and tool times, without service."""
    import numpy as np

    total: dict[str, int] = {}
    for request in prepared.plan.requests:
        if request.phase == "measure":
            total[request.session_id] = total.get(request.session_id, 0) + request.gap_ns
    return float(np.median(list(total.values()))) / 1e9 if total else 0.0


def search_arm(
    runs: Runs, arm: Arm, found: ArmSearch, options: SearchOptions, saved: Callable[[], None],
    said: Callable[[str], None] = lambda line: None,
) -> int | None:  # fmt: skip
    """Run until half-width or budget; a signal's exit code if one came. `saved` is called after every run."""
    start = runs.start_rate()
    while found.stopped is None:
        rate = search.next_rate(used(found), options.target, start)
        point, code = runs.at(arm, rate, len(found.points) + 1)
        if point is None:
            return code
        found.points.append(point)
        judge(found, options)
        said(_progress(arm.name, point, found))
        saved()
    return None


def judge(found: ArmSearch, options: SearchOptions) -> None:
    """Estimate anew and say whether the search is over."""
    points = used(found)
    found.estimate = search.estimate(points, options.target) if points else None
    void = [point for point in found.points if point.invalid]
    if points and found.estimate is not None:
        found.stopped = search.finished(points, found.estimate, options.half_width, options.budget)
    if found.stopped is None and len(void) - found.voids_before >= options.voids:
        found.stopped = f"{VOID} {len(void)} runs broke a trust rule (the last: {', '.join(void[-1].invalid)})"


def take_up(found: ArmSearch, options: SearchOptions) -> None:
    """Go on with an arm's search, perhaps with another budget, half-width or a calmer machine."""
    found.stopped = None
    found.voids_before = sum(bool(point.invalid) for point in found.points)
    judge(found, options)


def _progress(arm: str, point: Point, found: ArmSearch) -> str:
    share = 100 * sum(point.good) / max(1, sum(point.total))
    text = f"{arm}: run {len(found.points)} at {point.rate:.4g}/s: {share:.3g}% of {sum(point.total):,} requests good"
    if point.invalid:
        return f"{text}; void ({', '.join(point.invalid)}), made again"
    now = found.estimate
    if now is not None and now.rate is not None:
        text += f"; capacity {now.rate:.4g}/s ± {100 * now.half_width:.2g}%"
    return text
