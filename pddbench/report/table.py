"""The side-by-side table of a run, from its summary alone: from 80 columns on, on terminals and in plain files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pddbench.analyze.money import NO_PRICE
from pddbench.report import answers, mix, own_error, rows, units
from pddbench.text import printable
from pddbench.wan.backends import PACKET_BACKENDS
from pddbench.wan.words import events_words, measured_words, why

_LABEL = 20
_CELL = 19
_CELL_MOST = 27
_LABEL_MOST = 42
_MOST_CHANGES = 3  # of roles, in the first line


def render(summary: dict[str, Any], console: Console) -> None:
    """Print what was measured, every arm side by side, the differences from the first arm, warnings and the verdict."""
    console.print(_first_line(summary), soft_wrap=False)
    for arms in _chunks(list(summary["arms"]), console.width):
        console.print()
        console.print(_outcomes(console, summary, arms))
        if summary["run"].get("window"):
            _section(
                console,
                mix.heading(summary["run"]["window"]),
                mix.lines([summary["arms"][arm]["mix"] for arm in arms]),
                arms,
            )
        for title, wanted in rows.SECTIONS:
            _section(console, _heading(title, summary), _figures(summary, arms, wanted), arms)
        _ok_only(console, summary, arms)
        _observed(console, summary, arms)
        _section(console, "TTFT from due P50 by planned hit, % (requests)", _buckets(summary, arms), arms)
    for line in [*answers.basis_lines(summary), *answers.seam_lines(summary), *answers.warmup_lines(summary)]:
        console.print(Text(line))
    for arm, pair in summary["paired"].items():
        render_pair(console, arm, pair)
    _findings(console, summary)
    console.print(_verdict(summary))


def _chunks(arms: list[str], width: int) -> Iterator[list[str]]:
    """Arms that fit side by side."""
    fit = max(1, (width - _LABEL) // (_CELL + 1))
    for start in range(0, len(arms), fit):
        yield arms[start : start + fit]


def wan_words(run: dict[str, Any]) -> str:
    """What carried the WAN and why, its profile, and what was measured of it."""
    how = why(run["wan_backend"], run.get("wan_asked"), run.get("wan_reason") or "")
    profile = f" ({run['wan_profile']})" if run["wan_profile"] else ""
    found = measured_words(run.get("wan_measured") or {})
    changes = events_words(run.get("wan_events") or [])
    return ", ".join(part for part in (f"WAN: {how}{profile}", changes, found) if part)


def _first_line(summary: dict[str, Any]) -> Text:
    """Name, arms, size, how the WAN was made, scales, our own error bar, and the verdict."""
    run, arms = summary["run"], summary["arms"]
    parts = [
        f"{run['requests']:,} requests in {run['sessions']:,} sessions an arm"
        + (f", {run['repeats']} repeats" if run["repeats"] > 1 else "")
    ]
    if run["wan_backend"] not in (None, "none"):
        parts.append(wan_words(run))
    if run.get("simulated"):
        parts.append("simulated in virtual time, nothing was sent")
    else:
        parts += _scales(arms, run["wan_backend"] in PACKET_BACKENDS)
    parts += [
        f"{name} is a pddbench emulator at speed {speed:g}: its times are sped-up wall times"
        for name, speed in run.get("emulator_endpoints", {}).items()
    ]
    parts += [_role_changes(run.get("role_changes") or []), _error_bar(arms)]
    if not run.get("simulated"):
        parts += [_stamps(arms, run.get("readers", [])), _calibrated(run.get("calibration"))]
    if run.get("warmup_cut_s"):
        parts.append(f"warm-up of {run['warmup_cut_s']:.3g} s cut")
    if run["partial"]:
        parts.append("stopped early")
    text = Text(printable(run["name"], 80), style="bold")
    text.append(": " + ", ".join(arms), style="not bold")
    text.append(" · " + " · ".join(part for part in parts if part), style="not bold")
    text.append(" · ", style="not bold")
    return text.append_text(_verdict(summary, prefix=""))


def _role_changes(said: list[str]) -> str:
    """That emulated arms lost or got instances."""
    more = f"; and {len(said) - _MOST_CHANGES} more" if len(said) > _MOST_CHANGES else ""
    return f"roles change ({'; '.join(said[:_MOST_CHANGES])}{more})" if said else ""


def _scales(arms: dict[str, Any], packets: bool) -> list[str]:
    """What was sped up or made smaller; TCP counts real packets, so fewer of them have fewer rounds of slow start."""
    speeds = {arm["speed"] for arm in arms.values()} - {1.0}
    scales = {arm["kv_scale"] for arm in arms.values()} - {None, 1.0}
    out = [f"emulator speed {', '.join(f'{speed:g}' for speed in sorted(speeds))}"] if speeds else []
    few = ", slow start not represented" if packets else ""
    return out + ([f"KV scale 1/{', '.join(f'{scale:g}' for scale in sorted(scales))}{few}"] if scales else [])


def _error_bar(arms: dict[str, Any]) -> str:
    """The worst of our own lags over the arms."""
    said = ", ".join(f"{word} {value:.1f}" for word, value in own_error.lags_ms(arms).items())
    parts = [f"error bar, P99 in ms: {said}" if said else "error bar not known", own_error.waited(arms)]
    return "; ".join(part for part in parts if part)


def _stamps(arms: dict[str, Any], readers: Sequence[str]) -> str:
    """Whose stamps the arrivals have, and who read them."""
    counts: dict[str, int] = {}
    for arm in arms.values():
        for whose, n in arm.get("stamps", {}).items():
            counts[whose] = counts.get(whose, 0) + n
    by = f"{' and '.join(readers)} reader{'s' if len(readers) > 1 else ''}" if readers else ""
    if not counts:
        return by
    total = sum(counts.values())
    shares = ", ".join(f"{whose} {100 * n / total:.3g}%" for whose, n in counts.items())
    return f"stamps: {next(iter(counts)) if len(counts) == 1 else shares}" + (f", {by}" if by else "")


def _calibrated(calibration: dict[str, Any] | None) -> str:
    """What the host's calibration vouches for."""
    if calibration is None:
        return "host not calibrated"
    if not calibration["events_s"]:
        return f"host calibrated: an error of {calibration['error_ms']:g} ms does not hold at any load"
    return (
        f"host calibrated: TTFT error P99 {calibration['ttft_error_p99_ms']:.2g} ms, sending "
        f"{calibration['drift_p99_ms']:.2g} ms up to {calibration['events_s']:,} events/s"
        + (f" with {workers} workers" if (workers := calibration.get("workers", 1)) > 1 else "")
    )


def _widths(console: Console, columns: int) -> tuple[int, int]:
    """Widths of the label column and of the others: cells grow first, then labels."""
    cell = max(_CELL, min(_CELL_MOST, (console.width - _LABEL) // columns - 1))
    return max(_LABEL, min(_LABEL_MOST, console.width - columns * (cell + 1))), cell


def _grid(console: Console, columns: Sequence[str], title: str = "", header: bool = True) -> Table:
    """An empty table whose columns are equally wide from section to section."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, show_header=header, pad_edge=False, padding=0)
    label, cell = _widths(console, len(columns))
    table.add_column(Text(title), width=label, overflow="fold")
    for name in columns:
        table.add_column(Text(name), justify="right", width=cell, overflow="fold")
    return table


def _cell(text: str, width: int) -> Text:
    """A cell; when it is too long it loses its blanks, or breaks where it reads best."""
    if len(text) > width:
        text = text.replace("withheld (", "withheld\n(") if "withheld" in text else text.replace(", ", ",")
    return Text(text, style="dim" if text.startswith("withheld") else "")


def _outcomes(console: Console, summary: dict[str, Any], arms: Sequence[str]) -> Table:
    """Requests by outcome and by pipeline."""
    table = _grid(console, arms, "requests")
    parts = [summary["arms"][arm] for arm in arms]
    table.add_row("planned", *(f"{part['requests']:,}" for part in parts))
    for kind in ("outcomes", "errors", "pipelines"):
        names = list(dict.fromkeys(name for part in parts for name in part[kind]))
        if kind == "outcomes":
            names = ["ok", *(name for name in names if name != "ok")]
        for name in names:
            label = Text(f"  {name}" if kind == "errors" else f"via {name}" if kind == "pipelines" else name)
            table.add_row(label, *(f"{part[kind].get(name, 0):,}" for part in parts))
    checked = [part.get("single_process") for part in parts]
    if any(checked):
        same = (f"{each['replies'] - each['differing']:,} of {each['replies']:,}" if each else "–" for each in checked)
        table.add_row("as one server alone", *same)
    return table


def _heading(title: str, summary: dict[str, Any]) -> str:
    if title != "what it gives":
        return title
    if not summary["run"]["slo"]:
        return f"{title} (no SLO given: every ok request is good)"
    limits = ", ".join(f"{key} ≤ {limit:g}" for key, limit in summary["run"]["slo"].items())
    return f"{title} (SLO: {limits})"


def _figures(
    summary: dict[str, Any], arms: Sequence[str], wanted: Sequence[tuple[str, str, tuple[str, ...]]]
) -> list[tuple[str, list[str]]]:
    out = []
    for label, metric, stats in wanted:
        for stat in stats:
            figures = [summary["arms"][arm]["figures"].get(f"{metric}.{stat}", rows.NO_FIGURE) for arm in arms]
            reasons = {figure["withheld"] for figure in figures}
            if reasons == {"no rows"} or (reasons == {NO_PRICE} and metric != "cost_per_hour"):
                continue
            row = _row(f"{label} {rows.name(stat)}".strip(), figures, summary["run"]["currency"])
            out.append((label, row[1]) if metric.startswith("hit_") else row)  # their heading has the unit
    return out


def _row(label: str, figures: Sequence[dict[str, Any]], currency: str, signed: bool = False) -> tuple[str, list[str]]:
    scale, unit = units.pick(figures, figures[0]["unit"])
    unit = "" if unit == "tokens" else unit
    money = printable(currency, 8)
    unit = unit.replace("cost/Mtok", money).replace("cost/session", money).replace("cost", money)
    return f"{label} {unit}".strip(), [units.cell(figure, scale, signed) for figure in figures]


def _section(
    console: Console, title: str, body: Sequence[tuple[str, list[str]]], columns: Sequence[str], header: bool = False
) -> None:
    """A heading across the width, then a grid; nothing for an empty body."""
    if not body:
        return
    console.print()
    console.print(Text(title, style="bold"))
    table = _grid(console, columns, header=header)
    _, width = _widths(console, len(columns))
    for label, cells in body:
        table.add_row(Text(label), *(_cell(cell, width) for cell in cells))
    console.print(table)


def _ok_only(console: Console, summary: dict[str, Any], arms: Sequence[str]) -> None:
    """Latencies of the successes alone, where there are failures."""
    kept = {arm: summary["arms"][arm]["ok_only"] or summary["arms"][arm]["figures"] for arm in arms}
    if all(summary["arms"][arm]["ok_only"] is None for arm in arms):
        return
    body = [
        _row(f"{label} {stat.upper()}", [kept[arm][f"{metric}.{stat}"] for arm in arms], "")
        for label, metric in rows.OK_ONLY
        for stat in rows.QUANTILES
    ]
    _section(console, "successes only (failures left out: not for comparison)", body, arms)


def _observed(console: Console, summary: dict[str, Any], arms: Sequence[str]) -> None:
    """Where even a median is withheld: smallest, median and largest of the rows, as rows and nothing more."""
    parts = [summary["arms"][arm] for arm in arms]
    if all(part["figures"]["ttft.p50"]["withheld"] is None for part in parts):
        return
    body = [_row(label, [part["observed"][metric] for part in parts], "") for label, metric in rows.PAIRED]
    _section(console, "these rows only, nothing beyond them: median [smallest, largest]", body, arms)


def _buckets(summary: dict[str, Any], arms: Sequence[str]) -> list[tuple[str, list[str]]]:
    """TTFT from due by planned hit; the number of requests stands in the label."""
    by_arm = [summary["arms"][arm]["buckets"] for arm in arms]
    out = []
    for parts in zip(*by_arm, strict=True):
        if not any(part["requests"] for part in parts):
            continue
        figures = [part["figures"].get("ttft_sched.p50") for part in parts]
        known = [figure for figure in figures if figure is not None]
        scale, unit = units.pick(known, "s")
        label = f"{parts[0]['bucket']} ({parts[0]['requests']:,}) {unit}"
        out.append((label, [units.cell(figure, scale) for figure in figures]))
    return out


def render_pair(console: Console, arm: str, pair: dict[str, Any]) -> None:
    """Differences of one arm from the first, sessions resampled jointly."""
    against = pair["against"]
    counts = ", ".join(f"{name} {n}" for name, n in pair["outcomes"].items() if n or name == "ok/ok")
    title = f"{arm} − {against}, paired by request ({against}/{arm}: {counts})"
    if pair["unmatched"] or pair["differing_plans"]:
        title += f"; not comparable: {pair['unmatched']} unmatched, {pair['differing_plans']} with other plans"
    body = [
        _row(label, [pair["differences"][f"{metric}.{stat}"] for stat in rows.QUANTILES], "", signed=True)
        for label, metric in rows.PAIRED
    ]
    body = [(label, cells) for label, cells in body if set(cells) != {"–"}]
    _section(console, title, body, ["P50", "P90", "P99"], header=True)
    for line in [*answers.better_lines(arm, pair), *answers.exactness_lines(arm, pair)]:
        console.print(Text(line))
    if pair["lowest_bucket"]:
        console.print(Text(answers.lowest_line(arm, against, pair["lowest_bucket"])))


def _findings(console: Console, summary: dict[str, Any]) -> None:
    """Each broken rule, arm by arm, with its advice once."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for finding in summary["findings"]:
        groups.setdefault((finding["rule"], finding["level"]), []).append(finding)
    if groups:
        console.print()
    for (rule, level), found in groups.items():
        bad = level == "invalid"
        text = Text("✗ " if bad else "! ", style="bold red" if bad else "yellow")
        text.append(rule + (", allowed" if found[0]["allowed"] else "") + ": ", style="not bold default")
        said = [(f"{finding['arm']}: " if finding["arm"] else "") + finding["message"] for finding in found]
        text.append("; ".join(said), style="not bold default")
        text.append(f" → {found[0]['advice']}", style="not bold dim default")
        console.print(text)


def _verdict(summary: dict[str, Any], prefix: str = "verdict: ") -> Text:
    good = summary["verdict"].startswith("valid")
    return Text(prefix + printable(summary["verdict"]), style="bold green" if good else "bold red")
