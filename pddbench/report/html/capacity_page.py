"""`report.html` of a capacity search: rates with intervals, goodput by load, BCR, and how far it depends on prices."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench import __version__
from pddbench.analyze.capacity import Ratio
from pddbench.report import searched, units
from pddbench.report.html.markup import Markup, join, tag
from pddbench.report.html.shell import assemble
from pddbench.report.html.verdicts import judged, percent_text, ratio_text
from pddbench.runner.capacity import VOID
from pddbench.text import printable

if TYPE_CHECKING:
    from pddbench.analyze.sensitivity import Cell, Grid
    from pddbench.report.capacity import Answer, Document

_SCRIPTS = ("marks.js", "figure.js", "tables.js", "load.js")
_MEASURED = {"live": "live endpoints", "emulated": "emulated deployments: mechanisms and arithmetic, never chips",
             "simulated": "simulated in virtual time: nothing was sent"}  # fmt: skip


def page(found: Document) -> str:
    """The page of a search, finished or not."""
    prices = _prices(found)
    parts = {
        "title": tag("title", printable(f"{found.name}, capacity: pddbench", 100)),
        "name": tag("h1", printable(f"{found.name}: capacity", 90)),
        "verdict": _verdict(found),
        "nav": tag("a", "Prices", href="#prices") if prices else Markup(""),
        "measured": _facts(found),
        "findings": _findings(found),
        "tiles": tag("div", *(_tile(i, one, found) for i, one in enumerate(found.answers)), class_="tiles"),
        "table": _table(found),
        "prices": prices or Markup(""),
        "configuration": join(
            _fold(name, value)
            for name, value in (
                (
                    "roles and prices",
                    {
                        "arms": {name: arm.roles for name, arm in found.arms.items()},
                        "prices": found.prices,
                        "line": found.line,
                    },
                ),
                ("runs", {name: msgspec.to_builtins(arm.points) for name, arm in found.arms.items()}),
            )
        ),
        "version": tag("span", f"pddbench {__version__}"),
    }
    return assemble("capacity.html", parts, _SCRIPTS, _data(found))


def _verdict(found: Document) -> Markup:
    """How many arms have what was looked for, with both bounds."""
    bounded = [one for one in found.answers if _known(one) and None not in (_rate(one).low, _rate(one).high)]
    text = f"{len(bounded)} of {len(found.answers)} arms with a capacity and its interval"
    running = [name for name, arm in found.arms.items() if arm.stopped is None]
    text += "; the search is not finished" if running or not found.arms else ""
    kind = "good" if len(bounded) == len(found.answers) and not running and bounded else "warn"
    kind = "bad" if any((arm.stopped or "").startswith(VOID) for arm in found.arms.values()) else kind
    sign = {"good": "✓", "warn": "!", "bad": "✗"}[kind]
    return tag("p", tag("span", sign, class_="sign", aria_hidden="true"), text, class_=f"verdict {kind}")


def _known(one: Answer) -> bool:
    return one.capacity is not None and one.capacity.rate is not None


def _rate(one: Answer) -> Ratio:
    assert one.capacity is not None
    return Ratio(point=one.capacity.rate, low=one.capacity.low, high=one.capacity.high)


def _facts(found: Document) -> Markup:
    limits = ", ".join(f"{key} ≤ {limit:g}" for key, limit in found.slo.items())
    facts = (("measured", _MEASURED.get(found.measured, printable(found.measured, 40))),
             ("looked for", f"the largest session rate at which {100 * found.target:g}% of requests meet {limits}"),
             ("runs", f"{found.run_s:g} s after {found.warmup_s:g} s of warm-up, at most {found.budget} an arm"),
             ("wanted half-width", f"{100 * found.half_width:g}% of the rate"))  # fmt: skip
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", said)) for name, said in facts), class_="facts")


def _findings(found: Document) -> Markup:
    """Arms without a capacity, without bounds, or with runs that were thrown away; and why each search ended."""
    items = []
    for one in found.answers:
        if not _known(one):
            why = one.capacity.why if one.capacity is not None else "no run"
            items.append(tag("li", tag("b", f"{one.arm}: withheld"), f" {printable(why or '', 200)}", class_="bad"))
        elif None in (_rate(one).low, _rate(one).high):
            text = " a bound is missing: too few runs near the rate → a larger --budget with the same --out goes on"
            items.append(tag("li", tag("b", f"{one.arm}: no interval"), text, class_="warn"))
        if one.invalid_runs:
            text = f" {one.invalid_runs} runs broke a trust rule; they are shown hollow and are not used"
            items.append(tag("li", tag("b", f"{one.arm}: invalid runs"), text, class_="warn"))
    return tag("ul", *items, class_="findings") if items else Markup("")


def _tile(number: int, one: Answer, found: Document) -> Markup:
    """Capacity and BCR of an arm; the first arm is what the others are compared with."""
    name = tag("h3", tag("span", "", class_=f"key c{number % 12}"), one.arm)
    if not _known(one):
        why = one.capacity.why if one.capacity is not None else "no run"
        return tag("article", name, tag("p", f"no capacity: {printable(why or '', 200)}", class_="what"), class_="tile")
    currency = printable(found.currency, 8)
    big = [("sessions a second", _stacked(_rate(one))), ("requests a second", _stacked(one.requests_s)),
           (f"sessions a {currency} (BCR)", _stacked(one.bcr))]  # fmt: skip
    small = [("cost", f"{one.cost_per_hour:.4g} {currency}/h" if one.cost_per_hour is not None else "no price")]
    lines = [tag("dl", *(tag("div", tag("dt", label), tag("dd", *cell)) for label, cell in big), class_="big")]
    verdict = None
    if one.against_first is not None and one.against_first.point is not None:
        kind, word = judged(one.against_first.low, one.against_first.high)
        ratio = ratio_text(one.against_first.point, one.against_first.low, one.against_first.high)
        verdict = tag("p", tag("span", word, class_=f"badge {kind}"), f" BCR ×{ratio} of {found.answers[0].arm}'s")
        if one.cost_per_session_change is not None:
            small.append(("a session costs", percent_text(msgspec.to_builtins(one.cost_per_session_change))))
    cells = (tag("div", tag("dt", label), tag("dd", *_split(text))) for label, text in small)
    lines.append(tag("dl", *cells, class_="small"))
    where = f"{100 * found.target:g}% inside the objectives, {found.measured}"
    return tag("article", name, tag("p", where, class_="what"), *lines, verdict, class_="tile")


def _stacked(one: Ratio | None) -> list[Markup]:
    if one is None or one.point is None:
        return [tag("span", "–", class_="point")]
    return _split(ratio_text(one.point, one.low, one.high))


def _split(text: str) -> list[Markup]:
    """`point [low, high]` with the bounds apart."""
    point, _, bounds = text.partition(" [")
    return [tag("span", f"{point} ", class_="point"), tag("span", f"[{bounds}" if bounds else "", class_="bounds")]


def _table(found: Document) -> Markup:
    """All figures, arms as columns."""
    currency = printable(found.currency, 8)
    wanted: tuple[tuple[str, str, Callable[[Answer], Ratio | None]], ...] = (
        ("capacity", "sessions/s", lambda one: _rate(one) if _known(one) else None),
        ("capacity", "requests/s", lambda one: one.requests_s),
        ("capacity without a curve", "sessions/s", lambda one: _point(one.capacity.isotonic if one.capacity else None)),
        ("cost", f"{currency}/h", lambda one: _point(one.cost_per_hour)),
        ("BCR", f"sessions/{currency}", lambda one: one.bcr),
        ("cost of a session", currency, lambda one: one.price.session if one.price else None),
        ("cost of a million tokens, in and out", currency, lambda one: one.price.mtok if one.price else None),
        ("all of it on output tokens, a million", currency, lambda one: one.price.mtok_output if one.price else None),
        ("even price of a million un-hit tokens", currency, lambda one: one.price.even_input if one.price else None),
        ("of cached input tokens", currency, lambda one: one.price.even_cached if one.price else None),
        ("of output tokens", currency, lambda one: one.price.even_output if one.price else None),
    )  # fmt: skip
    heads = [tag("th", tag("span", "", class_=f"key c{i % 12}"), one.arm, scope="col", data_sort="ratio")
             for i, one in enumerate(found.answers)]  # fmt: skip
    lines = []
    for label, unit, of in wanted:
        figures = [of(one) for one in found.answers]
        if any(figure is not None and figure.point is not None for figure in figures):
            lines.append(_line(label, unit, figures))
    counts = [("runs used", [str(len(one.runs) - one.invalid_runs) for one in found.answers]),
              ("runs not used", [str(one.invalid_runs) for one in found.answers]),
              ("stopped", [printable(one.stopped or "not yet", 120) for one in found.answers])]  # fmt: skip
    rows = [tag("tr", tag("th", label, scope="row"), *(tag("td", text) for text in cells)) for label, cells in counts]
    head = tag("thead", tag("tr", tag("th", "", scope="col", data_sort="order"), *heads))
    return tag("div", tag("table", head, tag("tbody", *lines), tag("tfoot", *rows), class_="figures sortable"),
               class_="scroll", tabindex="0")  # fmt: skip


def _point(value: float | None) -> Ratio | None:
    return None if value is None else Ratio(point=value, low=None, high=None)


def _line(label: str, unit: str, figures: Sequence[Ratio | None]) -> Markup:
    """A row; each cell with its ratio to the first arm's."""
    points = [math.nan if one is None or one.point is None else one.point for one in figures]
    cells = []
    for i, (one, point) in enumerate(zip(figures, points, strict=True)):
        ratio = point / points[0] if points[0] else math.nan
        bare = one is None or (one.low is None and one.high is None)
        text = units.plain(point) if one is None or bare else ratio_text(point, one.low, one.high)
        figure, _, bounds = text.partition(" [")
        times = f"×{units.plain(ratio)}" if i and math.isfinite(ratio) else ""
        cells.append(tag("td", tag("span", figure, class_="point"), tag("span", times, class_="times") if i else None,
                         tag("span", f"[{bounds}" if bounds else "", class_="bounds"),
                         data_value=f"{ratio:.6g}" if math.isfinite(ratio) else None))  # fmt: skip
    return tag("tr", tag("th", f"{label} ", tag("span", unit, class_="unit"), scope="row"), *cells)


def _prices(found: Document) -> Markup | None:
    """How each arm's BCR against the first's moves with prices; null where prices or capacities are missing."""
    grids = searched.grids(found, found.prices, found.line)
    if not grids:
        return None
    note = "BCR of the arm / BCR of the first, capacities as measured: green where the whole interval is above 1, "
    note += "red where it is below, grey where it is not decided. The ringed cell is nearest to the prices given."
    return tag("section", tag("h2", "If prices were others"), tag("p", note, class_="note"),
               *(_grid(one, found) for one in grids), id="prices")  # fmt: skip


def _grid(one: Grid, found: Document) -> Markup:
    lines = sorted({cell.line for cell in one.cells})
    ratios = sorted({cell.price_ratio for cell in one.cells})
    by_place = {(cell.price_ratio, cell.line): cell for cell in one.cells}
    base, second = _kinds(found, one)
    now = (found.prices[second] / found.prices[base] if second else 1.0, found.line / found.prices[base])
    nearest = tuple(
        min(values, key=lambda value: abs(value - at)) for values, at in zip((ratios, lines), now, strict=True)
    )
    head = tag("thead", tag("tr", tag("th", f"{second} / {base}" if second else "", scope="col"),
                            *(tag("th", f"line {line:g} × {base}", scope="col") for line in lines)))  # fmt: skip
    rows = [
        tag("tr", tag("th", f"{ratio:g}", scope="row"),
            *(_cell(by_place[ratio, line], (ratio, line) == nearest) for line in lines))
        for ratio in ratios
    ]  # fmt: skip
    said = [f"{one.arm} against {one.against}"]
    if one.even_price_ratio is not None and second:
        said.append(f"even at a {second} for {units.plain(one.even_price_ratio)} times the price of a {base}")
    if one.even_line is not None:
        said.append(f"even at a line for {units.plain(one.even_line)} times the price of a {base}")
    equal = one.equal_cost_rate
    if equal.point is not None:
        rate = ratio_text(equal.point, equal.low, equal.high)
        said.append(f"{one.against} for the same money would carry {rate} sessions/s, in whole multiples of it")
    table = tag("table", head, tag("tbody", *rows), class_="grid-table")
    return join([tag("p", "; ".join(said), class_="aside"), tag("div", table, class_="scroll", tabindex="0")])


def _kinds(found: Document, one: Grid) -> tuple[str, str | None]:
    """The two kinds of chips whose prices the grid varies: the reference arm's first, then the next other one."""
    roles = [*found.arms[one.against].roles.values(), *found.arms[one.arm].roles.values()]
    kinds = [*dict.fromkeys(str(role["chip"]) for role in roles)]
    return kinds[0], kinds[1] if len(kinds) > 1 else None


def _cell(cell: Cell, now: bool) -> Markup:
    ratio = cell.bcr_ratio
    kind, _ = judged(ratio.low, ratio.high)
    kind = "none" if kind == "warn" else kind
    point, _, bounds = ratio_text(ratio.point or math.nan, ratio.low, ratio.high).partition(" [")
    return tag("td", tag("span", point, class_="point"), tag("span", f"[{bounds}", class_="bounds"),
               class_=f"{kind} now" if now else kind)  # fmt: skip


def _fold(name: str, value: Any) -> Markup:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return tag("details", tag("summary", name), tag("pre", text))


def _data(found: Document) -> dict[str, Any]:
    """What the script draws."""
    arms = []
    for one in found.answers:
        rate = _rate(one) if _known(one) else Ratio(point=None, low=None, high=None)
        arms.append({"name": one.arm, "rate": rate.point, "low": rate.low, "high": rate.high,
                     "runs": msgspec.to_builtins(one.runs), "fit": msgspec.to_builtins(one.fit)})  # fmt: skip
    return {"target": found.target, "arms": arms}
