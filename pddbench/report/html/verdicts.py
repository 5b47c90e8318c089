"""The page's answer: is each arm better than the first, what it costs, what it carries; in sentences with intervals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pddbench.report import answers, units
from pddbench.report.html.markup import Markup, tag
from pddbench.report.searched import Beside
from pddbench.text import printable

_OPEN = 4  # arms beyond the first up to which every card is unfolded
_KINDS = {"better": "good", "worse": "bad"}
_SIGNS = {"better": "✓ better", "worse": "✗ worse"}


def section(summary: dict[str, Any], search: Beside | None) -> Markup:
    """A card for each arm that is compared with the first, and what was found by `pddbench capacity`."""
    pairs = summary["paired"]
    few = len(pairs) <= _OPEN
    cards = [_card(arm, pair, summary, search, few) for arm, pair in pairs.items()]
    notes = [*answers.seam_lines(summary), *answers.warmup_lines(summary)]
    return tag(
        "section",
        tag("h2", "The answer" if pairs else "Capacity"),
        tag("p", "The same requests in both arms, sessions resampled together: 95% intervals.", class_="note")
        if pairs
        else None,
        tag("div", *cards, class_="answers") if cards else None,
        tag("p", printable(" · ".join(notes), 2000), class_="aside") if notes else None,
        _capacity(summary, search),
        id="answer",
    )


def _card(arm: str, pair: dict[str, Any], summary: dict[str, Any], search: Beside | None, unfolded: bool) -> Markup:
    """`Is B better than A?`, folded up where there are many."""
    first, number = pair["against"], list(summary["arms"]).index(arm)
    lines = [_line(label, pair["better"][key], arm, first) for label, key in answers.BETTER if key in pair["better"]]
    said = [*answers.exactness_lines(arm, pair)]
    if pair["lowest_bucket"]:
        said.append(answers.lowest_line(arm, first, pair["lowest_bucket"]))
    heading = tag(
        "summary",
        tag("div", tag("h3", tag("span", "", class_=f"key c{number % 12}"), f"Is {arm} better than {first}?"),
            tag("span", _gist(pair["better"]), class_="gist")),
    )  # fmt: skip
    return tag(
        "details",
        heading,
        tag("ul", *lines, *_money(arm, first, summary), *_carries(arm, search)),
        *(tag("p", printable(text, 400), class_="note") for text in said),
        class_="answer",
        open="" if unfolded else None,
    )


def _gist(better: dict[str, Any]) -> str:
    """First token in a few words: `worse at P50 and P90, no difference seen at P99`."""
    groups: dict[str, list[str]] = {}
    for label, key in answers.BETTER:
        if key.startswith("ttft") and key in better:
            groups.setdefault(better[key]["verdict"], []).append(label.rsplit(" ", 1)[1])
    said = ", ".join(f"{verdict} at {_listed(stats)}" for verdict, stats in groups.items())
    return f"first token: {said}" if said else ""


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _line(label: str, found: dict[str, Any], arm: str, first: str) -> Markup:
    """Verdict, difference, ratio, and the smallest difference that this run would have seen."""
    verdict = found["verdict"]
    badge = tag("span", _SIGNS.get(verdict, f"≈ {verdict}"), class_=f"badge {_KINDS.get(verdict, 'warn')}")
    if verdict == "withheld":
        badge = tag("span", "withheld", class_="badge none")
        return tag("li", badge, tag("b", label), tag("span", found["effect"]["withheld"] or "", class_="detail"))
    detail = f"×{answers.figure_text(found['ratio']).strip()}"
    detail += f" · {answers.seconds_text(found['visible'])} would have been seen" if found["visible"] else ""
    return tag(
        "li",
        badge,
        tag("b", label),
        tag("span", answers.figure_text(found["effect"], signed=True), class_="effect measured"),
        tag("span", detail, class_="detail"),
        title=f"{label}: {arm} − {first}",
    )


def _money(arm: str, first: str, summary: dict[str, Any]) -> Iterator[Markup]:
    """Money at this load: both arms' figures with their intervals, no verdict of our own."""
    mine, other = (summary["arms"][name]["figures"]["goodput_per_cost.value"] for name in (arm, first))
    if mine["withheld"] or other["withheld"]:
        return
    scale, _ = units.pick([mine, other], mine["unit"])
    currency = printable(summary["run"]["currency"], 8)
    costs = [summary["arms"][name]["cost_per_hour"] for name in (arm, first)]
    spent = "" if None in costs else f" · {currency} {costs[0]:.4g} against {costs[1]:.4g} an hour"
    yield tag(
        "li",
        tag("span", "at this load", class_="badge none"),
        tag("b", f"good requests a {currency}"),
        tag("span", f"{units.cell(mine, scale)} against {units.cell(other, scale)}", class_="effect measured"),
        tag("span", f"not a capacity: another load gives another figure{spent}", class_="detail"),
        class_="long",
    )


def _carries(arm: str, search: Beside | None) -> Iterator[Markup]:
    """What a search of the same experiment says of the arm."""
    from pddbench.report.capacity import answers as found_by

    if search is None:
        return
    for one in found_by(search.state):
        if one.arm != arm or one.capacity is None or one.capacity.rate is None:
            continue
        rate = ratio_text(one.capacity.rate, one.capacity.low, one.capacity.high)
        yield tag("li", tag("span", "capacity", class_="badge none"), tag("b", "sessions a second"),
                  tag("span", rate, class_="effect"),
                  tag("span", f"{search.state.measured}, {100 * search.state.target:g}% inside the objectives",
                      class_="detail"))  # fmt: skip
        ratio = one.against_first
        if ratio is not None and ratio.point is not None:
            change = one.cost_per_session_change
            text = "" if change is None else f"cost of a session {percent_text(msgspec.to_builtins(change))}"
            kind, word = judged(ratio.low, ratio.high)
            yield tag("li", tag("span", word, class_=f"badge {kind}"), tag("b", "BCR"),
                      tag("span", f"×{ratio_text(ratio.point, ratio.low, ratio.high)}", class_="effect"),
                      tag("span", text, class_="detail"))  # fmt: skip


def judged(low: float | None, high: float | None) -> tuple[str, str]:
    """(kind, word) of a ratio to the first arm: better when its whole interval is above 1."""
    if low is not None and low > 1:
        return "good", "✓ better"
    if high is not None and high < 1:
        return "bad", "✗ worse"
    return "warn", "≈ not decided"


def ratio_text(point: float, low: float | None, high: float | None) -> str:
    """`1.67 [1.60, –]`."""
    ends = ("–" if end is None else units.plain(end) for end in (low, high))
    return f"{units.plain(point)} [{', '.join(ends)}]"


def percent_text(change: dict[str, float | None]) -> str:
    """`+29.1% [+20.1%, –]`."""
    point, low, high = (None if change[end] is None else 100 * float(change[end] or 0.0)
                        for end in ("point", "low", "high"))  # fmt: skip
    if point is None:
        return "–"
    ends = ("–" if end is None else f"{units.plain(end, signed=True)}%" for end in (low, high))
    return f"{units.plain(point, signed=True)}% [{', '.join(ends)}]"


def _capacity(summary: dict[str, Any], search: Beside | None) -> Markup:
    """Where capacity and BCR are, or how to get them: a run at one load has neither."""
    if search is None:
        return tag(
            "p",
            "Capacity and BCR (benefit-cost ratio) are not among these figures: they need a search over loads. ",
            tag("code", "pddbench capacity EXPERIMENT"),
            " makes it; a search beside this folder is linked here.",
            class_="aside",
        )
    state = search.state
    first = next(iter(summary["arms"]))
    said = "; ".join(
        f"{arm} {ratio_text(found.estimate.rate, found.estimate.low, found.estimate.high)}"
        for arm, found in state.arms.items()
        if found.estimate is not None and found.estimate.rate is not None
    )
    found = f"Largest session rate at {100 * state.target:g}% inside the objectives ({state.measured}): {said or '–'}."
    compared = f" BCR is against {first}." if len(state.arms) > 1 else ""
    if search.link is None:
        there = tag(
            "span", "Its page: ", tag("code", f"pddbench report …/{printable(search.folder, 100)}"), " makes it."
        )
    else:
        there = tag("a", "goodput by rate, BCR, prices", href=search.link)
    return tag("p", f"{found}{compared} ", there, class_="aside")
