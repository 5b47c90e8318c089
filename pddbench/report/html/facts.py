"""What was measured and how far it can be trusted: the page's head, its findings, its thresholds, its configuration."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pddbench.analyze.check import CheckResult
from pddbench.report import mix, own_error
from pddbench.report.html import links
from pddbench.report.html.markup import Markup, join, tag
from pddbench.text import printable
from pddbench.wan.words import events_words, measured_words, why

_MOST_ORDER = 8
_STATUS = {"pass": "good", "breach": "bad", "undecided": "warn", "withheld": "warn"}


def verdict(summary: dict[str, Any]) -> Markup:
    """The verdict as a badge."""
    text = printable(summary["verdict"])
    kind = "bad" if not text.startswith(("valid", "stopped")) else "warn" if summary["findings"] else "good"
    sign = {"good": "✓", "warn": "!", "bad": "✗"}[kind]
    badge = tag("p", tag("span", sign, class_="sign", aria_hidden="true"), text, class_=f"verdict {kind}")
    if kind != "bad":
        return badge
    return join([badge, tag("p", "Do not use the figures on this page: they are shown to find out what went wrong.",
                            class_="distrust")])  # fmt: skip


def navigation(summary: dict[str, Any], manifest: dict[str, Any]) -> Markup:
    """Links to the parts that this page has."""
    there = {"answer": "Answer" if summary["paired"] else "Capacity", "curves": "Percentiles",
             "side-by-side": "Side by side", "buckets": "By hit", "lanes": "Requests", "gaps": "Gaps",
             "timeline": "Over time", "link": "Link", "differences": "Differences",
             "configuration": "Configuration"}  # fmt: skip
    if not links.verified(manifest):
        del there["link"]
    if not summary["paired"]:
        del there["differences"]
    items = (tag("a", label, href=f"#{name}") for name, label in there.items())
    return tag("nav", *items, aria_label="on this page")


def measured(summary: dict[str, Any], manifest: dict[str, Any]) -> Markup:
    """What was measured, over which link, with which error bar."""
    facts = [("measured", _size(summary["run"])), ("window", _window(summary)),
             ("WAN", _wan(summary["run"], manifest)),
             ("our own error, P99", _error_bar(summary)), ("scales", _scales(summary)),
             ("order", _order(manifest)),
             ("started", printable(str(summary["run"]["created_utc"] or ""), 40))]  # fmt: skip
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", said)) for name, said in facts if said), class_="facts")


def _size(run: dict[str, Any]) -> str:
    text = f"{run['requests']:,} requests in {run['sessions']:,} sessions an arm"
    text += f", {run['repeats']} repeats" if run["repeats"] > 1 else ""
    text += ", simulated in virtual time: nothing was sent" if run["simulated"] else ""
    return text + (", stopped early" if run["partial"] else "")


def _window(summary: dict[str, Any]) -> str:
    """The measured window and the mix in and out of it."""
    if not summary["run"].get("window"):
        return ""
    said = [mix.sentence(printable(arm, 40), part["mix"]) for arm, part in summary["arms"].items()]
    return " · ".join([mix.heading(summary["run"]["window"]), *said])


def _wan(run: dict[str, Any], manifest: dict[str, Any]) -> str:
    """The link as given and what made it; a model is called a model."""
    backend = run["wan_backend"]
    if backend in (None, "none"):
        return "none injected"
    link = (manifest.get("wan") or {}).get("link") or {}
    parts = [f"{run['wan_profile']}" if run["wan_profile"] else ""]
    parts += [f"{2 * link['one_way_ms']:g} ms RTT" if link.get("one_way_ms") else ""]
    parts += [f"{link['rate_mbit'] / 1e3:g} Gbit/s" if link.get("rate_mbit") else ""]
    parts += [f"loss {link['loss_pct']:g}%" if link.get("loss_pct") else ""]
    how = "a model, not packets" if backend == "model" else why(str(backend))
    changes = events_words(run.get("wan_events") or [])
    found = [measured_words(run.get("wan_measured") or {}), links.verified(manifest)]
    return printable(", ".join(part for part in [*parts, changes, how, *found] if part))


def _error_bar(summary: dict[str, Any]) -> str:
    """The worst of our own lags over the arms."""
    said = [f"{word} {value:.1f} ms" for word, value in own_error.lags_ms(summary["arms"]).items()]
    return ", ".join([*said, own_error.waited(summary["arms"])]).removesuffix(", ") or "not known"


def _scales(summary: dict[str, Any]) -> str:
    if summary["run"]["simulated"]:
        return ""
    arms = summary["arms"].values()
    speeds = sorted({arm["speed"] for arm in arms} - {1.0})
    scales = sorted({arm["kv_scale"] for arm in arms} - {None, 1.0})
    said = [f"emulator speed {speed:g}" for speed in speeds] + [f"KV scale 1/{scale:g}" for scale in scales]
    ends = summary["run"]["emulator_endpoints"].items()
    return ", ".join(said + [f"{name} is an emulator at speed {speed:g}" for name, speed in ends])


def _order(manifest: dict[str, Any]) -> str:
    """Who ran when; where there are many, only whether their places are balanced."""
    order = [printable(str(arm), 40) for arm, _ in manifest.get("order") or []]
    if len(order) <= _MOST_ORDER:
        return " · ".join(order)
    arms = len(set(order))
    times = len(order) // arms
    how = "once" if times == 1 else f"{times} times"
    return f"{arms} arms one after the other, {how}: {order[0]} first, {order[-1]} last"


def findings(summary: dict[str, Any]) -> Markup | None:
    """Each broken rule with what was seen, arm by arm, and what to do about it."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for finding in summary["findings"]:
        groups.setdefault((finding["rule"], finding["level"]), []).append(finding)
    items = [_finding(rule, level, found) for (rule, level), found in groups.items()]
    return tag("ul", *items, class_="findings") if items else None


def _finding(rule: str, level: str, found: Sequence[dict[str, Any]]) -> Markup:
    said = [(f"{one['arm']}: " if one["arm"] else "") + printable(one["message"], 400) for one in found]
    name = f"{rule}{' (allowed)' if found[0]['allowed'] else ''}"
    kind = "bad" if level == "invalid" else "warn"
    advice = tag("span", f"→ {found[0]['advice']}", class_="advice")
    return tag("li", tag("b", f"{level}: {name}"), " ", "; ".join(said), " ", advice, class_=kind)


def thresholds(results: Iterable[CheckResult]) -> Markup | None:
    """The experiment's own checks and how they came out, on the interval."""
    from pddbench.report.answer import check_line

    items = [tag("li", check_line(result), class_=_STATUS[result.status]) for result in results]
    return tag("ul", *items, class_="findings checks") if items else None


def configuration(manifest: dict[str, Any]) -> Markup:
    """The manifest, part by part, folded up."""
    first = ("config", "arms", "wan", "trace", "plan", "host", "versions", "clocks", "git")
    shown = [name for name in first if manifest.get(name)]
    rest = {name: value for name, value in manifest.items() if name not in shown and value not in (None, [], {})}
    return join([*(_fold(name, manifest[name]) for name in shown), _fold("everything else", rest)])


def _fold(name: str, value: Any) -> Markup:
    text = json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return tag("details", tag("summary", name), tag("pre", text))
