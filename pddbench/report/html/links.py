"""The link as it was measured: what was asked, found before, beside and after the load, arm by arm."""

from __future__ import annotations

from typing import Any

from pddbench.report.html.markup import Markup, tag
from pddbench.text import printable


def verified(manifest: dict[str, Any]) -> str:
    """Whether the packets' link was what was asked; empty where no packets ran."""
    links = [run["link"] for run in manifest.get("runs") or [] if run.get("link")]
    if not links:
        return ""
    wrong = sum(not link.get("ok") for link in links)
    runs = f"{len(links)} {'run' if len(links) == 1 else 'runs'}"
    return f"not as asked in {wrong} of {runs}" if wrong else f"verified before, beside and after {runs}"


def section(manifest: dict[str, Any]) -> Markup | None:
    """A table of all findings; null where no link of packets was measured."""
    lines = [
        line
        for run in manifest.get("runs") or []
        if run.get("link")
        for line in _run(f"{printable(str(run['arm']), 40)} · repeat {run['repeat']}", run["link"])
    ]
    if not lines:
        return None
    heads = ("run", "what", "wanted", "allowed", "before", "after", "")
    head = tag("thead", tag("tr", *(tag("th", text, scope="col") for text in heads)))
    table = tag("table", head, tag("tbody", *lines), class_="plain")
    note = "Real packets, on the wire (speed and KV scale are in these figures); beside the load only round trips."
    return tag("section", tag("h2", "The link, measured"), tag("p", note, class_="note"),
               tag("div", table, class_="scroll", tabindex="0"), id="link")  # fmt: skip


def _run(name: str, link: dict[str, Any]) -> list[Markup]:
    before, after = (_findings(link, when) for when in ("before", "after"))
    lines = []
    for what in dict.fromkeys([*before, *after]):
        known = before.get(what) or after[what]
        cells = (f"{_number(known['wanted'])} {known['unit']}", f"{_number(known['low'])} to {_number(known['high'])}",
                 _found(before.get(what)), _found(after.get(what)))  # fmt: skip
        good = all(one["ok"] for one in (before.get(what), after.get(what)) if one)
        lines.append(_line(name, printable(what, 60), cells, good))
    beside = link.get("beside") or {}
    if beside.get("rtt_ms"):
        spread = beside["rtt_ms"]
        text = f"{_number(spread['p50'])} ms ({_number(spread['min'])} to {_number(spread['max'])})"
        cells = ("", "", text, f"{beside['probes']} probes, {beside['lost']} packets lost")
        lines.append(_line(name, "round trip beside the load", cells, True))
    lines += [_line(name, "not as asked", (printable(text, 200), "", "", ""), False) for text in link["problems"]]
    return lines


def _findings(link: dict[str, Any], when: str) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in (link.get(when) or {}).get("findings") or []}


def _found(finding: dict[str, Any] | None) -> str:
    return "–" if finding is None else _number(finding["found"])


def _number(value: float) -> str:
    return f"{value:,.4g}"


def _line(name: str, what: str, cells: tuple[str, ...], good: bool) -> Markup:
    sign = tag("td", "✓" if good else "✗", class_="good" if good else "bad")
    return tag("tr", tag("th", name, scope="row"), tag("td", what), *(tag("td", text) for text in cells), sign)
