"""A run or a comparison as a small table: what a notebook shows for one. Text is escaped; no style but its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.analyze.money import NO_PRICE
from pddbench.report import rows, units
from pddbench.report.html.markup import Markup, tag
from pddbench.report.html.verdicts import ratio_text
from pddbench.text import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pddbench.report.compared import Comparison

_SHOWN = (
    ("TTFT from due P50", "ttft_sched.p50"),
    ("TTFT from due P90", "ttft_sched.p90"),
    ("TTFT from due P99", "ttft_sched.p99"),
    ("2nd-token gap P90", "ttst.p90"),
    ("largest gap P90", "max_gap.p90"),
    ("served hit by token", "hit_served.token_weighted"),
    ("SLO attainment", "slo_attainment.share"),
    ("goodput", "goodput.rate"),
    ("goodput per cost at this load", "goodput_per_cost.value"),
)
_COLOURS = {"good": "#17794a", "warn": "#8f5b00", "bad": "#b3261e"}


def run_card(summary: dict[str, Any]) -> Markup:
    """Verdict, what was measured, and the figures people ask for first, arm beside arm."""
    run, arms = summary["run"], list(summary["arms"])
    said = f"{run['requests']:,} requests in {run['sessions']:,} sessions an arm"
    said += ", simulated in virtual time: nothing was sent" if run["simulated"] else ""
    lines = []
    for label, key in _SHOWN:
        figures = [summary["arms"][arm]["figures"][key] for arm in arms]
        if {figure["withheld"] for figure in figures} <= {"no rows", NO_PRICE}:
            continue
        scale, unit = units.pick(figures, figures[0]["unit"])
        unit = unit.replace("cost", printable(run["currency"], 8))
        lines.append(_line(f"{label}, {unit}", [units.cell(figure, scale) for figure in figures]))
    broken = [tag("li", f"{one['level']}: {one['rule']}: {printable(one['message'])}") for one in summary["findings"]]
    return tag(
        "div",
        tag("p", tag("b", printable(run["name"], 80)), f": {said} · ", _verdict(summary)),
        _table(["", *arms], lines),
        tag("ul", *broken) if broken else None,
    )


def comparison_card(comparison: Comparison) -> Markup:
    """The paired differences, one table a pair; what could not be compared and which rules a run broke."""
    said = "; ".join(f"{name}: {printable(folder, 100)}" for name, folder in comparison.runs.items())
    notes = [tag("li", printable(f"not comparable: {note}")) for note in comparison.not_comparable]
    notes += [tag("li", printable(f"invalid: {broken}")) for broken in comparison.invalid]
    tables = [_pair(name, msgspec.to_builtins(pair)) for name, pair in comparison.pairs.items()]
    return tag("div", tag("p", said), *tables, tag("ul", *notes) if notes else None)


def search_card(document: dict[str, Any]) -> Markup:
    """Capacity and money of each arm, and how they were found."""
    limits = ", ".join(f"{key} ≤ {limit:g}" for key, limit in document["slo"].items())
    said = f": largest session rate at which {100 * document['target']:g}% of requests meet {limits}"
    currency = printable(document["currency"], 8)
    measured = printable(document["measured"], 20)
    wanted: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        (f"capacity, sessions/s ({measured})", lambda one: _ends(one["capacity"])),
        ("capacity, requests/s", lambda one: _ends(one["requests_s"])),
        (f"BCR, sessions/{currency}", lambda one: _ends(one["bcr"])),
        ("BCR / the first arm's", lambda one: _ends(one["against_first"])),
        (f"cost of a session, {currency}", lambda one: _ends((one["price"] or {}).get("session"))),
    ]
    found = document["answers"]
    lines = [_line(label, [of(one) for one in found]) for label, of in wanted]
    lines.append(_line("stopped", [printable(one["stopped"] or "not yet", 120) for one in found]))
    head = tag("p", tag("b", printable(document["name"], 80)), printable(said, 300))
    return tag("div", head, _table(["", *(one["arm"] for one in found)], lines))


def _ends(figure: dict[str, Any] | None) -> str:
    """`1.67 [1.60, –]` of an estimate or a ratio."""
    point, low, high = ((figure or {}).get(end) for end in ("point", "low", "high"))
    point = (figure or {}).get("rate") if point is None else point
    return "–" if point is None else ratio_text(point, low, high)


def _pair(name: str, pair: dict[str, Any]) -> Markup:
    lines = []
    for label, metric in rows.PAIRED:
        figures = [pair["differences"][f"{metric}.{stat}"] for stat in rows.QUANTILES]
        scale, unit = units.pick(figures, "s")
        cells = [units.cell(figure, scale, signed=True) for figure in figures]
        if set(cells) != {"–"}:
            lines.append(_line(f"{label}, {unit}", cells))
    counts = ", ".join(f"{outcome} {n:,}" for outcome, n in pair["outcomes"].items() if n or outcome == "ok/ok")
    said = f"{name} − {pair['against']}, {pair['requests']:,} requests that both have ({counts})"
    return tag("div", tag("p", said), _table(["", *(stat.upper() for stat in rows.QUANTILES)], lines))


def _verdict(summary: dict[str, Any]) -> Markup:
    text = printable(summary["verdict"])
    kind = "bad" if not text.startswith(("valid", "stopped")) else "warn" if summary["findings"] else "good"
    return tag("b", text, style=f"color:{_COLOURS[kind]}")


def _table(heads: Sequence[str], lines: Sequence[Markup]) -> Markup:
    head = tag("thead", tag("tr", *(tag("th", text) for text in heads)))
    return tag("table", head, tag("tbody", *lines))


def _line(label: str, cells: Sequence[str]) -> Markup:
    return tag("tr", tag("th", label, style="text-align:left"), *(tag("td", cell) for cell in cells))
