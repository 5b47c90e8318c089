"""The page's tables: side by side, by planned hit, differences; readable without any script."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pddbench.analyze import registry
from pddbench.analyze.money import NO_PRICE
from pddbench.report import rows, units
from pddbench.report.html.markup import Markup, tag
from pddbench.text import printable

_OPEN_PAIRS = 4
_COUNTS = (("requests", None), ("ok", "outcomes"), ("pipeline", "pipelines"), ("error", "errors"))


def side_by_side(summary: dict[str, Any]) -> Markup:
    """All sections, arms as columns; rows carry their ratio to the first arm so that they can be sorted by it."""
    arms = list(summary["arms"])
    head = tag("thead", tag("tr", _heading("", "order"), *(_arm_heading(i, arm) for i, arm in enumerate(arms))))
    bodies = [_body("requests", list(_counts(summary, arms)))]
    bodies += [_body(_titled(title, summary), list(_figures(summary, arms, wanted))) for title, wanted in rows.SECTIONS]
    failed = any(summary["arms"][arm]["ok_only"] for arm in arms)
    bodies += [_body("successes only (failures left out: not for comparison)", list(_ok_only(summary, arms)))] * failed
    return tag("div", tag("table", head, *bodies, class_="figures sortable"), class_="scroll", tabindex="0")


def _heading(text: str, kind: str) -> Markup:
    return tag("th", text, scope="col", data_sort=kind)


def _arm_heading(number: int, arm: str) -> Markup:
    return tag("th", tag("span", "", class_=f"key c{number % 12}"), arm, scope="col", data_sort="ratio")


def _body(title: str, lines: Sequence[Markup]) -> Markup | None:
    if not lines:
        return None
    return tag("tbody", tag("tr", tag("th", title, colspan="99", scope="rowgroup"), class_="section"), *lines)


def _titled(title: str, summary: dict[str, Any]) -> str:
    if title != "what it gives":
        return title
    limits = ", ".join(f"{key} ≤ {limit:g}" for key, limit in summary["run"]["slo"].items())
    return f"{title} (SLO: {limits})" if limits else f"{title} (no SLO given: every ok request is good)"


def _counts(summary: dict[str, Any], arms: Sequence[str]) -> Iterator[Markup]:
    """Requests by outcome, pipeline and error text."""
    for label, kind in _COUNTS:
        parts = [summary["arms"][arm] for arm in arms]
        names = [""] if kind is None else list(dict.fromkeys(name for part in parts for name in part[kind]))
        for name in names:
            counts = [part["requests"] if kind is None else part[kind].get(name, 0) for part in parts]
            said = {"ok": name, "pipeline": name, "error": f"error: {name}"}.get(label, label)
            yield _line(said, [f"{count:,}" for count in counts], [math.nan for _ in counts])


def _figures(
    summary: dict[str, Any], arms: Sequence[str], wanted: Sequence[tuple[str, str, tuple[str, ...]]]
) -> Iterator[Markup]:
    for label, metric, stats in wanted:
        for stat in stats:
            figures = [summary["arms"][arm]["figures"].get(f"{metric}.{stat}", rows.NO_FIGURE) for arm in arms]
            reasons = {figure["withheld"] for figure in figures}
            if reasons == {"no rows"} or (reasons == {NO_PRICE} and metric != "cost_per_hour"):
                continue
            said = f"{label} {rows.name(stat)}".strip().rstrip(",")
            yield _figure_line(said, figures, summary["run"]["currency"], _meaning(metric))


def _ok_only(summary: dict[str, Any], arms: Sequence[str]) -> Iterator[Markup]:
    kept = [summary["arms"][arm]["ok_only"] or summary["arms"][arm]["figures"] for arm in arms]
    for label, metric in rows.OK_ONLY:
        for stat in rows.QUANTILES:
            yield _figure_line(f"{label} {stat.upper()}", [part[f"{metric}.{stat}"] for part in kept], "")


def _figure_line(label: str, figures: Sequence[dict[str, Any]], currency: str, meaning: str | None = None) -> Markup:
    """A row in one unit."""
    scale, unit = units.pick(figures, figures[0]["unit"])
    money = printable(currency, 8)
    unit = unit.replace("cost/Mtok", money).replace("cost", money)
    points = [math.nan if figure["withheld"] else units.value(figure["point"]) for figure in figures]
    return _line(label, [units.cell(figure, scale) for figure in figures], points, unit, meaning)


def _line(
    label: str, cells: Sequence[str], points: Sequence[float], unit: str = "", meaning: str | None = None
) -> Markup:
    """A row; each cell knows its ratio to the first arm."""
    first = points[0] if points else math.nan
    name = tag("th", label, " " if unit else None, tag("span", unit, class_="unit") if unit else None,
               scope="row", title=meaning)  # fmt: skip
    return tag("tr", name, *(_cell(text, _ratio(point, first), i) for i, (text, point) in
                             enumerate(zip(cells, points, strict=True))))  # fmt: skip


def _ratio(point: float, first: float) -> float:
    return point / first if first and math.isfinite(first) else math.nan


def _cell(text: str, ratio: float, column: int) -> Markup:
    """Point, interval below it, and how many times the first arm's figure it is."""
    known = math.isfinite(ratio)
    sort = f"{ratio:.6g}" if known else None
    if text.startswith("withheld") or text == NO_PRICE:
        return tag("td", tag("span", text, class_="withheld"), data_value=sort)
    point, _, bounds = text.partition(" [")
    times = f"×{units.plain(ratio)}" if known else ""
    # empty ones keep the columns of a wide page in line
    return tag(
        "td",
        tag("span", point, class_="point"),
        tag("span", times if times != "×1.00" else "", class_="times") if column else None,
        tag("span", f"[{bounds}" if bounds else "", class_="bounds"),
        data_value=sort,
    )


_MOST_TILES = 6
_GLANCE = (("TTFT from due P50", "ttft_sched.p50"), ("P90", "ttft_sched.p90"), ("P99", "ttft_sched.p99"),
           ("inside SLO", "slo_attainment.share"), ("goodput", "goodput.rate"),
           ("per cost, this load", "goodput_per_cost.value"))  # fmt: skip


def tiles(summary: dict[str, Any]) -> Markup:
    """The few numbers that people ask for first, an arm a card; many arms as rows of a table."""
    if len(summary["arms"]) > _MOST_TILES:
        return _at_a_glance(summary)
    return tag("div", *(_tile(i, name, summary) for i, name in enumerate(summary["arms"])), class_="tiles")


def _at_a_glance(summary: dict[str, Any]) -> Markup:
    """A row an arm, one unit a column; a heading sorts."""
    arms = summary["arms"]
    columns = [(label, [arm["figures"][key] for arm in arms.values()]) for label, key in _GLANCE]
    columns = [(label, figures) for label, figures in columns if any(not figure["withheld"] for figure in figures)]
    scales = [units.pick(figures, figures[0]["unit"]) for _, figures in columns]
    currency = printable(summary["run"]["currency"], 8)
    heads = [
        tag("th", f"{label}, {unit.replace('cost', currency)}", scope="col", data_sort="ratio")
        for (label, _), (_, unit) in zip(columns, scales, strict=True)
    ]
    lines = []
    for i, arm in enumerate(arms):
        name = tag("th", tag("span", "", class_=f"key c{i % 12}"), " ", arm, scope="row")
        cells = [_glance_cell(figures[i], scale) for (_, figures), (scale, _) in zip(columns, scales, strict=True)]
        lines.append(tag("tr", name, *cells))
    head = tag("thead", tag("tr", _heading("", "order"), *heads))
    table = tag("table", head, tag("tbody", *lines), class_="figures sortable glance")
    return tag("section", tag("h2", "At a glance"), tag("div", table, class_="scroll", tabindex="0"), id="glance")


def _glance_cell(figure: dict[str, Any], scale: float) -> Markup:
    value = None if figure["withheld"] else f"{units.value(figure['point']):.6g}"
    point, _, bounds = units.cell(figure, scale).partition(" [")
    return tag("td", tag("span", point, class_="withheld" if figure["withheld"] else "point"),
               tag("span", f"[{bounds}" if bounds else "", class_="bounds"), data_value=value)  # fmt: skip


def _tile(number: int, name: str, summary: dict[str, Any]) -> Markup:
    figures = summary["arms"][name]["figures"]
    wanted = [("P50", "ttft_sched.p50"), ("P90", "ttft_sched.p90"), ("P99", "ttft_sched.p99")]
    big = [tag("div", tag("dt", label), tag("dd", *_stacked(figures[key]))) for label, key in wanted]
    small = [("inside SLO", "slo_attainment.share"), ("goodput", "goodput.rate"),
             ("per cost, this load", "goodput_per_cost.value")]  # fmt: skip
    rest = [
        tag("div", tag("dt", label), tag("dd", _short(figures[key], summary["run"]["currency"])))
        for label, key in small
        if not figures[key]["withheld"]
    ]
    return tag(
        "article",
        tag("h3", tag("span", "", class_=f"key c{number % 12}"), name),
        tag("p", "first token, from due", class_="what"),
        tag("dl", *big, class_="big"),
        tag("dl", *rest, class_="small"),
        class_="tile",
    )


def _stacked(figure: dict[str, Any]) -> list[Markup]:
    if figure["withheld"]:
        return [tag("span", "–", class_="point"), tag("span", figure["withheld"], class_="bounds")]
    scale, unit = units.pick([figure], figure["unit"])
    point, _, bounds = units.cell(figure, scale).partition(" [")
    return [tag("span", f"{point} ", tag("small", unit), class_="point"), tag("span", f"[{bounds}", class_="bounds")]


def _short(figure: dict[str, Any], currency: str) -> str:
    scale, unit = units.pick([figure], figure["unit"])
    return f"{units.cell(figure, scale).partition(' [')[0]} {unit.replace('cost', printable(currency, 8))}"


def pairs(summary: dict[str, Any]) -> Markup | None:
    """Differences from the first arm in figures, one table an arm, folded up where there are many; null for one arm."""
    few = len(summary["paired"]) <= _OPEN_PAIRS
    tables = [_pair(arm, pair, few) for arm, pair in summary["paired"].items()]
    note = "The same requests in both arms, sessions resampled together. An interval that spans 0 is no evidence of a "
    note += "difference."
    head = (tag("h2", "Differences from the first arm"), tag("p", note, class_="note"))
    return tag("section", *head, *tables, id="differences") if tables else None


def _pair(arm: str, pair: dict[str, Any], unfolded: bool) -> Markup:
    counts = ", ".join(f"{name} {n:,}" for name, n in pair["outcomes"].items() if n or name == "ok/ok")
    said = f"{arm} − {pair['against']}, the same requests ({pair['against']}/{arm}: {counts})"
    head = tag("thead", tag("tr", tag("th", "", scope="col"), *(tag("th", q.upper(), scope="col", data_sort="ratio")
                                                               for q in rows.QUANTILES)))  # fmt: skip
    lines = []
    for label, metric in rows.PAIRED:
        figures = [pair["differences"][f"{metric}.{stat}"] for stat in rows.QUANTILES]
        scale, unit = units.pick(figures, "s")
        cells = [units.cell(figure, scale, signed=True) for figure in figures]
        values = [math.nan if figure["withheld"] else units.value(figure["point"]) for figure in figures]
        if set(cells) != {"–"}:
            name = tag("th", f"{label} ", tag("span", unit, class_="unit"), scope="row")
            lines.append(tag("tr", name, *(_cell(text, value, 0) for text, value in zip(cells, values, strict=True))))
    table = tag("table", head, tag("tbody", *lines), class_="figures sortable")
    return tag("details", tag("summary", said), tag("div", table, class_="scroll", tabindex="0"),
               open="" if unfolded else None)  # fmt: skip


def _meaning(metric: str) -> str:
    """What a metric is, for those that the registry knows."""
    known = registry.METRICS.get(metric)
    return known.meaning if known else ""
