"""What a capacity search says: rates, intervals, runs, why it stopped, BCR; as rows, and as a plot of goodput."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from pddbench.analyze import capacity as search
from pddbench.analyze.capacity import Estimate, Ratio
from pddbench.runner.capacity import ArmSearch, State, used

if TYPE_CHECKING:
    from rich.console import Console


class Answer(msgspec.Struct, kw_only=True):
    """An arm's capacity in money. `bcr`: sessions per unit of currency; `against_first`: its BCR / the first arm's."""

    arm: str
    capacity: Estimate | None
    requests_s: float | None
    stopped: str | None
    invalid_runs: int
    cost_per_hour: float | None
    bcr: Ratio | None
    against_first: Ratio | None
    cost_per_session_change: float | None


def answers(state: State) -> list[Answer]:
    """One an arm, in the order of the experiment."""
    first = next(iter(state.arms.values()), None)
    return [_answer(name, found, first) for name, found in state.arms.items()]


def _answer(name: str, found: ArmSearch, first: ArmSearch | None) -> Answer:
    estimate, cost = found.estimate, found.cost_per_hour
    known = estimate if estimate is not None and estimate.rate is not None else None
    per_session = float(np.mean([p.requests_a_session for p in found.points])) if found.points else math.nan
    bcr = None
    if known is not None and cost:
        scale = 3600 / cost
        ends = (None if end is None else end * scale for end in (known.rate, known.low, known.high))
        bcr = Ratio(**dict(zip(("point", "low", "high"), ends, strict=True)))
    against = _against(found, first)
    change = None if against is None or against.point is None else 1 / against.point - 1
    return Answer(
        arm=name,
        capacity=estimate,
        requests_s=None if known is None or known.rate is None else known.rate * per_session,
        stopped=found.stopped,
        invalid_runs=sum(bool(point.invalid) for point in found.points),
        cost_per_hour=cost,
        bcr=bcr,
        against_first=against,
        cost_per_session_change=change,
    )


def _against(found: ArmSearch, first: ArmSearch | None) -> Ratio | None:
    if first is None or first is found or not found.estimate or not first.estimate:
        return None
    if not found.cost_per_hour or not first.cost_per_hour:
        return None
    return search.ratio(found.estimate, first.estimate, first.cost_per_hour / found.cost_per_hour)


def lines(state: State) -> Iterator[str]:
    """The answer for a terminal."""
    limits = ", ".join(f"{key} ≤ {limit:g}" for key, limit in state.slo.items())
    yield (
        f"{state.name}: largest session rate at which {100 * state.target:g}% of requests meet {limits} "
        f"({state.measured}; runs of {state.run_s:g} s after {state.warmup_s:g} s of warm-up)"
    )
    for answer in answers(state):
        yield from _arm_lines(answer, state)


def _arm_lines(answer: Answer, state: State) -> Iterator[str]:
    found = answer.capacity
    runs = len(state.arms[answer.arm].points)
    spoilt = f", {answer.invalid_runs} of them invalid and not used" if answer.invalid_runs else ""
    if found is None or found.rate is None:
        yield f"  {answer.arm}: withheld ({found.why if found else 'no run'}); {runs} runs{spoilt}; {answer.stopped}"
        return
    step = "–" if found.isotonic is None else f"{found.isotonic:.3g}"
    yield (
        f"  {answer.arm}: {found.rate:.3g} {_interval(found.low, found.high)} sessions/s "
        f"({answer.requests_s:.3g} requests/s); without a curve {step}; {runs} runs{spoilt}; stopped: {answer.stopped}"
    )
    if answer.bcr is not None and answer.bcr.point is not None:
        text = (
            f"    cost {answer.cost_per_hour:.4g} {state.currency}/h; BCR {answer.bcr.point:.4g} "
            f"{_interval(answer.bcr.low, answer.bcr.high)} sessions/{state.currency}"
        )
        ratio = answer.against_first
        if ratio is not None and ratio.point is not None:
            text += (
                f"; against {next(iter(state.arms))}: BCR ×{ratio.point:.3g} {_interval(ratio.low, ratio.high)}, "
                f"cost a session {100 * float(answer.cost_per_session_change or 0.0):+.3g}%"
            )
        yield text
    else:
        yield "    no price: give the arm roles and [cost] chips for a BCR"


def _interval(low: float | None, high: float | None) -> str:
    ends = ("–" if end is None else f"{end:.3g}" for end in (low, high))
    return "[" + ", ".join(ends) + "]"


def render(state: State, console: Console) -> None:
    """Print `lines`."""
    from rich.text import Text

    for line in lines(state):
        console.print(Text(line))


def plain(state: State) -> dict[str, Any]:
    """Everything as JSON-able values: the state, and the answers."""
    out: dict[str, Any] = msgspec.to_builtins(state)
    return out | {"answers": msgspec.to_builtins(answers(state))}


def plot(state: State, folder: Path) -> list[Path]:
    """`capacity.png` and `.svg`: attainment and goodput of every run by rate, the curve, the knee with its interval."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from pddbench.report.plot import COLOURS, escape, save

    figure = Figure(figsize=(8, 7), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    for i, (name, found) in enumerate(state.arms.items()):
        points = used(found)
        if not points:
            continue
        colour, estimate = COLOURS[i % len(COLOURS)], found.estimate
        rate = np.array([point.rate for point in points])
        share = np.array([point.attainment for point in points])
        above.plot(rate, 100 * share, "o", color=colour, markersize=4, label=escape(name))
        below.plot(rate, rate * share, "o", color=colour, markersize=4)
        if estimate is not None and estimate.rate is not None:
            grid = np.geomspace(rate.min(), rate.max(), 200)
            curve = 1 / (1 + np.exp(-np.clip(estimate.offset - estimate.slope * np.log(grid), -35, 35)))
            above.plot(grid, 100 * curve, color=colour, linewidth=1)
            below.plot(grid, grid * curve, color=colour, linewidth=1)
            for axes in (above, below):
                axes.axvline(estimate.rate, color=colour, linewidth=1, linestyle="--")
                if estimate.low is not None and estimate.high is not None:
                    axes.axvspan(estimate.low, estimate.high, color=colour, alpha=0.12, linewidth=0)
    above.axhline(100 * state.target, color="0.35", linewidth=1, linestyle=":")
    above.set_ylabel("requests that meet the SLO, %")
    below.set_ylabel("sessions/s times attainment (goodput)")
    below.set_xlabel("session rate, 1/s (dashed: knee, band: 95% interval)")
    below.set_xscale("log")
    if any(used(found) for found in state.arms.values()):
        above.legend(frameon=False)
    return save(figure, folder, "capacity")
