"""The claims as lines, Markdown and a self-contained HTML page."""

from __future__ import annotations

import html
from collections.abc import Sequence

import msgspec

from pddbench.claims.model import OffPart, Part, Row
from pddbench.report import units

_SIGN = {"agrees": "=", "differs": "≠", "undecided": "?", "not testable here": "·", "gone": "0", "still there": "!"}
INTRO = (
    "Verdicts are computed: a figure agrees when its 95% interval (or the bare figure) and the published range "
    "overlap; for a direction or a threshold all of the interval must be beyond it. A claim differs as soon as one of "
    "its figures does. A simulated figure checks mechanism and arithmetic, never the chips."
)


def figure_text(one: Part | OffPart) -> str:
    """Our figure with its interval."""
    found = msgspec.to_builtins(one.found)
    if found["withheld"]:
        return f"withheld ({found['withheld']})"
    scale, unit = _scale(one)
    return f"{units.cell(found | {'rows': 0}, scale)} {unit}".strip()


def _range(one: Part | OffPart) -> tuple[float | None, float | None]:
    return (one.claimed_low, one.claimed_high) if isinstance(one, Part) else (one.none_low, one.none_high)


def _scale(one: Part | OffPart) -> tuple[float, str]:
    """One unit for what is claimed and what was found: that of the larger."""
    low, high = _range(one)
    claim = {"point": None, "low": low, "high": high}
    return units.pick([msgspec.to_builtins(one.found), claim], one.found.unit)


def claimed_text(one: Part | OffPart) -> str:
    """The published range, or that of no effect."""
    scale, unit = _scale(one)
    low, high = (None if end is None else units.plain(end / scale) for end in _range(one))
    if low is None:
        return f"≤ {high} {unit}".strip()
    if high is None:
        return f"≥ {low} {unit}".strip()
    return (f"{low} {unit}" if low == high else f"{low} to {high} {unit}").strip()


def row_line(row: Row) -> str:
    """A row for a terminal."""
    lines = [f"{row.id:>4} {_SIGN[row.verdict]} {row.verdict} ({row.where}): {row.claim}"]
    lines += [
        f"       {_SIGN[one.verdict]} {one.name}: {figure_text(one)} (claimed {claimed_text(one)})" for one in row.parts
    ]
    lines += [f"       {_SIGN[one.verdict]} {off_text(one)}" for one in row.off]
    lines += [f"       {text}" for text in _notes(row)]
    return "\n".join(lines)


def off_text(one: OffPart) -> str:
    """What is left of the effect without its mechanism, as a sentence."""
    return f"without the mechanism {one.verdict}: {one.name}: {figure_text(one)} (none: {claimed_text(one)})"


def _notes(row: Row) -> list[str]:
    """What must be said beside the figures."""
    return [text for text in (
        row.note, f"Hangs on {row.hangs_on}" if row.hangs_on else "", f"Measured on {row.size}" if row.size else ""
    ) if text]  # fmt: skip


def markdown_page(rows: Sequence[Row]) -> str:
    """A table for a repository."""
    out = [
        "# Claims",
        "",
        INTRO,
        "",
        "| # | claim | verdict | where | our figures (claimed) | note |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        parts = "<br>".join(
            f"{one.name}: **{figure_text(one)}** ({claimed_text(one)}): {one.verdict}" for one in row.parts
        )
        parts += "".join(f"<br>{off_text(one)}" for one in row.off)
        cells = [row.id, row.claim, row.verdict, row.where, parts or "–", ". ".join(_notes(row))]
        out.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(out) + "\n"


_STYLE = """:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%}
td,th{border-top:1px solid #8884;padding:.5rem;text-align:left;vertical-align:top}
.agrees{color:#00734f}.differs{color:#b3421b}.none{color:#777}small{opacity:.8}
@media(prefers-color-scheme:dark){.agrees{color:#5fd0a5}.differs{color:#f0946c}}
@media(max-width:50rem){td,th{display:block;border:0}tr{border-top:1px solid #8884;display:block}}"""


def html_page(rows: Sequence[Row]) -> str:
    """A page that loads nothing from anywhere."""
    csp = "default-src 'none'; style-src 'unsafe-inline'"
    body = "".join(_html_row(row) for row in rows)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{csp}"><title>Claims</title>'
        f"<style>{_STYLE}</style></head>"
        f"<body><h1>Claims</h1><p>{html.escape(INTRO)}</p><table><thead><tr><th>#</th><th>claim</th><th>verdict</th>"
        f"<th>our figures (claimed)</th></tr></thead><tbody>{body}</tbody></table></body></html>\n"
    )


def _html_row(row: Row) -> str:
    parts = "".join(
        f'<div><span class="{_css(one.verdict)}">{_SIGN[one.verdict]}</span> {html.escape(one.name)}: '
        f"<b>{html.escape(figure_text(one))}</b> <small>({html.escape(claimed_text(one))})</small></div>"
        for one in row.parts
    )
    parts += "".join(f"<div><small>{_SIGN[one.verdict]} {html.escape(off_text(one))}</small></div>" for one in row.off)
    notes = "".join(f"<p><small>{html.escape(text)}</small></p>" for text in _notes(row))
    return (
        f"<tr><td>{html.escape(row.id)}</td><td>{html.escape(row.claim)}</td>"
        f'<td class="{_css(row.verdict)}">{html.escape(row.verdict)}<br><small>{html.escape(row.where)}</small></td>'
        f"<td>{parts}{notes}</td></tr>"
    )


def _css(verdict: str) -> str:
    return verdict if verdict in ("agrees", "differs") else "none"


__all__ = ["claimed_text", "figure_text", "html_page", "markdown_page", "row_line"]
