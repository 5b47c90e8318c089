"""What a capacity search says: rates, intervals, runs, why it stopped, BCR; as rows, and as a plot of goodput."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
import numpy as np

from pddbench import exitcodes
from pddbench.analyze import capacity as search
from pddbench.analyze.capacity import Estimate, Ratio
from pddbench.analyze.money import CACHED_PRICE, OUTPUT_PRICE
from pddbench.report import searched
from pddbench.runner.capacity import ArmSearch, Point, State, used

if TYPE_CHECKING:
    from rich.console import Console

_FIT_POINTS = 60


class CurvePoint(msgspec.Struct, kw_only=True):
    """Attainment at a session rate, and goodput: requests a second that meet all objectives.

    `invalid` names the trust rules a run broke: such a run is shown, never used.
    """

    rate: float
    attainment: float
    goodput: float
    invalid: list[str] = []


class Price(msgspec.Struct, kw_only=True):
    """What things cost at the knee, with the interval of the capacity (a larger capacity is a lower cost).

    `session`: cost of a session. `mtok`: of a million tokens, input (cached ones too) and output; `mtok_output`: all
    cost put on output tokens. `even_input`, `even_cached`, `even_output`: prices of a million tokens of each kind at
    which income equals cost, with the weights of `analyze.money`. `revenue_chip_hour`: income of one chip in an hour
    in prices of a million un-hit input tokens.
    """

    session: Ratio
    mtok: Ratio | None = None
    mtok_output: Ratio | None = None
    even_input: Ratio | None = None
    even_cached: Ratio | None = None
    even_output: Ratio | None = None
    revenue_chip_hour: Ratio | None = None


class Answer(msgspec.Struct, kw_only=True):
    """An arm's capacity in requests and in money.

    `capacity.rate` is the knee (sessions/s) with its interval; `requests_s` the same in requests. `runs`: those used,
    in order of rate; `invalid_runs` were made, counted and not used. `fit`: the fitted curve. `bcr`: sessions per unit
    of currency; `against_first`: its BCR / the first arm's, and `cost_per_session_change` what that means for the cost
    of a session (a share; -0.273 is -27.3%).
    """

    arm: str
    capacity: Estimate | None
    requests_s: Ratio | None
    stopped: str | None
    invalid_runs: int
    runs: list[CurvePoint]
    fit: list[CurvePoint]
    cost_per_hour: float | None
    bcr: Ratio | None
    against_first: Ratio | None
    cost_per_session_change: Ratio | None
    price: Price | None


class Document(State, kw_only=True):
    """`capacity.json`: the state of the search, and what it says. Schema: `capacity.schema.json` beside this file."""

    answers: list[Answer] = msgspec.field(default_factory=list)


def document(state: State) -> Document:
    """The whole content of `capacity.json`."""
    fields = {name: getattr(state, name) for name in State.__struct_fields__}
    return Document(**fields, answers=answers(state))


def json_schema() -> dict[str, Any]:
    """JSON Schema of `capacity.json`."""
    schema = msgspec.json.schema(Document)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pddbench capacity.json", **schema}


def answers(state: State) -> list[Answer]:
    """One an arm, in the order of the experiment."""
    first = next(iter(state.arms.values()), None)
    return [_answer(name, found, first) for name, found in state.arms.items()]


def _answer(name: str, found: ArmSearch, first: ArmSearch | None) -> Answer:
    cost = found.cost_per_hour
    knee = _knee(found)
    requests = mean_of(found, "requests_a_session")
    against = _against(found, first)
    return Answer(
        arm=name,
        capacity=found.estimate,
        requests_s=None if knee is None or requests is None else search.times(knee, requests),
        stopped=found.stopped,
        invalid_runs=sum(bool(point.invalid) for point in found.points),
        runs=sorted(map(_run_point, found.points), key=lambda one: one.rate),
        fit=_fit_points(found, requests),
        cost_per_hour=cost,
        bcr=search.times(knee, 3600 / cost) if knee is not None and cost else None,
        against_first=against,
        cost_per_session_change=None if against is None else _change(against),
        price=_price(found, knee, cost) if knee is not None and cost else None,
    )


def _knee(found: ArmSearch) -> Ratio | None:
    """The capacity with its interval, sessions/s."""
    one = found.estimate
    return None if one is None or one.rate is None else Ratio(point=one.rate, low=one.low, high=one.high)


def mean_of(found: ArmSearch, name: str) -> float | None:
    """Mean of something a session over the runs that know it."""
    values = [value for point in found.points if (value := getattr(point, name)) is not None]
    return float(np.mean(values)) if values else None


def _change(against: Ratio) -> Ratio:
    """Cost of a session / the first arm's, less 1."""
    one = search.inverse(against, 1.0)
    ends = (None if end is None else end - 1 for end in (one.point, one.low, one.high))
    return Ratio(**dict(zip(("point", "low", "high"), ends, strict=True)))


def _run_point(point: Point) -> CurvePoint:
    share = sum(point.good) / max(1, sum(point.total))
    goodput = point.rate * point.requests_a_session * share
    return CurvePoint(rate=point.rate, attainment=share, goodput=goodput, invalid=point.invalid)


def _fit_points(found: ArmSearch, requests: float | None) -> list[CurvePoint]:
    """The fitted curve over the rates that were run, `_FIT_POINTS` of it."""
    one, points = found.estimate, used(found)
    if one is None or one.rate is None or requests is None:
        return []
    rates = [point.rate for point in points]
    grid = np.geomspace(min(rates), max(rates), _FIT_POINTS)
    shares = one.attainment(grid)
    return [
        CurvePoint(rate=float(rate), attainment=float(share), goodput=float(rate * requests * share))
        for rate, share in zip(grid, shares, strict=True)
    ]


def _price(found: ArmSearch, knee: Ratio, cost: float) -> Price:
    out = Price(session=search.inverse(knee, cost / 3600))
    prompt, cached, output = (mean_of(found, f"{kind}_tokens_a_session") for kind in ("input", "cached", "output"))
    if prompt is None or cached is None or output is None or not prompt + output:
        return out
    out.mtok = search.inverse(knee, cost / 3600 / (prompt + output) * 1e6)
    out.mtok_output = search.inverse(knee, cost / 3600 / output * 1e6) if output else None
    # in prices of un-hit input tokens: hits and replies by the usual weights
    worth = prompt - cached + CACHED_PRICE * cached + OUTPUT_PRICE * output
    out.even_input = search.inverse(knee, cost / 3600 / worth * 1e6)
    out.even_cached = search.times(out.even_input, CACHED_PRICE)
    out.even_output = search.times(out.even_input, OUTPUT_PRICE)
    chips = sum(float(role["count"]) for role in found.roles.values())
    out.revenue_chip_hour = search.times(knee, worth * 3600 / 1e6 / chips) if chips else None
    return out


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
    runs = len(state.arms[answer.arm].points) - answer.invalid_runs
    spoilt = f" (and {answer.invalid_runs} void ones, not used)" if answer.invalid_runs else ""
    if found is None or found.rate is None:
        yield f"  {answer.arm}: withheld ({found.why if found else 'no run'}); {runs} runs{spoilt}; {answer.stopped}"
        return
    step = "–" if found.isotonic is None else f"{found.isotonic:.3g}"
    yield (
        f"  {answer.arm}: {found.rate:.3g} {_interval(found.low, found.high)} sessions/s "
        f"({_point(answer.requests_s)} requests/s); without a curve {step}; {runs} runs{spoilt}; "
        f"stopped: {answer.stopped}"
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
                f"cost a session {_percent(answer.cost_per_session_change)}"
            )
        yield text
        yield from _price_lines(answer.price, state.currency)
    else:
        yield "    no price: give the arm roles and [cost] chips for a BCR"


def _price_lines(price: Price | None, currency: str) -> Iterator[str]:
    if price is None:
        return
    text = f"    {currency} a session {_figure(price.session)}"
    if price.mtok is not None:
        text += f"; a million tokens {_figure(price.mtok)}"
    if price.mtok_output is not None:
        text += f", all on output {_figure(price.mtok_output)}"
    yield text
    if price.even_input is not None:
        yield (
            f"    even prices of a million tokens: input {_figure(price.even_input)}, cached "
            f"{_figure(price.even_cached)}, output {_figure(price.even_output)} (weights 1 : {CACHED_PRICE:g} : "
            f"{OUTPUT_PRICE:g}); a chip earns {_figure(price.revenue_chip_hour)} times a million input tokens an hour"
        )


def _point(one: Ratio | None) -> str:
    return "–" if one is None or one.point is None else f"{one.point:.3g}"


def _figure(one: Ratio | None) -> str:
    return "–" if one is None else f"{_point(one)} {_interval(one.low, one.high)}"


def _percent(one: Ratio | None) -> str:
    if one is None or one.point is None:
        return "–"
    ends = ("–" if end is None else f"{100 * end:+.3g}" for end in (one.low, one.high))
    return f"{100 * one.point:+.3g}% [{', '.join(ends)}]"


def _interval(low: float | None, high: float | None) -> str:
    ends = ("–" if end is None else f"{end:.3g}" for end in (low, high))
    return "[" + ", ".join(ends) + "]"


def again(folder: Path, *, as_json: bool) -> int:
    """Show the search in `folder` again and draw its page and plot anew. Raises `InputError`."""
    state = searched.read(folder)
    draw(state, folder)
    show(state, as_json=as_json)
    return exitcodes.GOOD


def show(state: State, *, as_json: bool) -> None:
    """The answer on stdout."""
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(document(state)), indent=2).decode())
        return
    from rich.console import Console

    render(state, Console(highlight=False))


def render(state: State, console: Console) -> None:
    """Print `lines`."""
    from rich.text import Text

    for line in lines(state):
        console.print(Text(line))


def plain(state: State) -> dict[str, Any]:
    """`capacity.json` as JSON-able values."""
    out: dict[str, Any] = msgspec.to_builtins(document(state))
    return out


def draw(state: State, folder: Path) -> None:
    """Write the plot and report.html; one that fails is a warning, the answer stands."""
    from pddbench.report import extras
    from pddbench.report.html.capacity_page import page

    file = folder / "report.html"
    extras.make(folder, ("capacity.png", "capacity.svg"), lambda: plot(state, folder))
    extras.make(folder, (file.name,), lambda: file.write_text(page(document(state)), encoding="utf-8"))


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
            curve = estimate.attainment(grid)
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
