"""The mix in and out of a measured window, in words for table and page."""

from __future__ import annotations

from typing import Any

_WORDS = {"warmup": "before", "measure": "in", "drain": "after"}


def heading(window: dict[str, float]) -> str:
    """Which requests are measured."""
    return f"measured: due from {window['from_s']:g} s to {window['until_s']:g} s; the mix in and out of it"


def lines(parts: list[list[dict[str, Any]]]) -> list[tuple[str, list[str]]]:
    """Label and a cell an arm, for each phase that was sent anything: requests, mean input, mean hit, buckets."""
    out: list[tuple[str, list[str]]] = []
    for phases in zip(*parts, strict=True):
        if not any(part["requests"] for part in phases):
            continue
        where = _WORDS[phases[0]["phase"]]
        out.append((f"{where}: requests", [f"{part['requests']:,}" for part in phases]))
        out.append((f"{where}: mean input", [_number(part["mean_input_tokens"], 1, ",.0f") for part in phases]))
        out.append((f"{where}: mean hit %", [_number(part["mean_hit_planned"], 100, ".1f") for part in phases]))
        for name in phases[0]["buckets"]:
            if any(part["buckets"][name] for part in phases):
                label = f"{where}: hit {name} %"
                out.append((label, [_share(part["buckets"][name], part["requests"]) for part in phases]))
    return out


def sentence(arm: str, phases: list[dict[str, Any]]) -> str:
    """One arm's mix in one line."""
    said = [
        f"{_WORDS[part['phase']]} {part['requests']:,} requests of {_number(part['mean_input_tokens'], 1, ',.0f')} "
        f"tokens, hit {_number(part['mean_hit_planned'], 100, '.1f')}%, "
        f"below 90% hit {_share(next(iter(part['buckets'].values())), part['requests'])}%"
        for part in phases
        if part["requests"]
    ]
    return f"{arm}: " + "; ".join(said)


def _number(value: float | None, factor: float, form: str) -> str:
    return "–" if value is None else format(value * factor, form)


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.1f}" if of else "–"
