"""What a CI job wants of a finished run: a page for the job, test cases, and figures that a dashboard can follow."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import msgspec

from pddbench.analyze.check import CheckResult
from pddbench.analyze.trust import RULES
from pddbench.errors import InputError
from pddbench.report import rows, units
from pddbench.report.answer import check_line
from pddbench.report.table import wan_words
from pddbench.text import printable

# (label, metric.stat) followed over commits; latencies and costs should fall, the others rise
_FALLING = {"ttft_sched": "TTFT from due", "ttst": "2nd-token gap", "max_gap": "largest gap", "e2e": "E2E",
            "seam_stall": "seam stall"}  # fmt: skip
SMALLER = (
    *((f"{label} {stat.upper()}", f"{name}.{stat}") for name, label in _FALLING.items() for stat in rows.QUANTILES),
    ("cost per million output tokens", "cost_per_mtok_output.value"),
)
BIGGER = (
    ("SLO attainment", "slo_attainment.share"),
    ("goodput", "goodput.rate"),
    ("output rate", "output_rate.rate"),
    ("goodput per cost at this load", "goodput_per_cost.value"),
)
_PAGE = (
    ("TTFT from due P50", "ttft_sched.p50"), ("TTFT from due P90", "ttft_sched.p90"),
    ("TTFT from due P99", "ttft_sched.p99"),
    ("2nd-token gap P90", "ttst.p90"), ("largest gap P90", "max_gap.p90"), ("E2E P90", "e2e.p90"),
    ("seam stall P50", "seam_stall.p50"), *BIGGER,
)  # fmt: skip
_SCALES = {"s": (1e-3, "ms"), "share": (0.01, "%")}


def write_ci(out: Path, summary: dict[str, Any], results: Sequence[CheckResult], strict: bool = False) -> None:
    """Write summary.json, summary.md, junit.xml and the two files of github-action-benchmark into `out`."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "summary.json").write_bytes(_json(summary))
        (out / "summary.md").write_text(summary_md(summary, results), encoding="utf-8")
        (out / "junit.xml").write_bytes(junit(summary, results, strict))
        for name, wanted in (("customSmallerIsBetter.json", SMALLER), ("customBiggerIsBetter.json", BIGGER)):
            (out / name).write_bytes(_json(list(_followed(summary, wanted))))
    except OSError as error:
        raise InputError(f"--ci {out}: cannot be written to ({error.strerror})") from error


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def summary_md(summary: dict[str, Any], results: Sequence[CheckResult]) -> str:
    """The job page: verdict, checks, the main figures side by side, findings with their advice."""
    run, arms = summary["run"], list(summary["arms"])
    lines = [f"### {plain_md(run['name'])}: {plain_md(summary['verdict'])}", ""]
    wan = "no WAN injected" if run["wan_backend"] in (None, "none") else wan_words(run)
    simulated = " Simulated in virtual time, nothing was sent." if run["simulated"] else ""
    lines += [f"{run['requests']:,} requests in {run['sessions']:,} sessions an arm, {plain_md(wan)}.{simulated}", ""]
    lines += [f"- {_SIGNS[result.status]} {plain_md(check_line(result), 400)}" for result in results]
    lines += ["", "| |" + "".join(f" {plain_md(arm)} |" for arm in arms), "|---|" + "---:|" * len(arms)]
    lines += [line for label, key in _PAGE if (line := _row(summary, label, key))]
    lines += ["", "Brackets: 95% intervals by session."]
    lines += [""] * bool(summary["findings"])
    for finding in summary["findings"]:
        arm = f" ({finding['arm']})" if finding["arm"] else ""
        said = plain_md(f"{finding['level']}: {finding['rule']}{arm}: {finding['message']}", 400)
        lines.append(f"- {'❌' if finding['level'] == 'invalid' else '⚠️'} {said} → {plain_md(finding['advice'])}")
    return "\n".join(lines) + "\n"


_SIGNS = {"pass": "✅", "breach": "❌", "undecided": "⚠️", "withheld": "⚠️"}


def _row(summary: dict[str, Any], label: str, key: str) -> str | None:
    figures = [arm["figures"][key] for arm in summary["arms"].values()]
    if all(figure["withheld"] for figure in figures):
        return None
    scale, unit = units.pick(figures, figures[0]["unit"])
    unit = unit.replace("cost", summary["run"]["currency"])
    cells = "".join(f" {plain_md(units.cell(figure, scale))} |" for figure in figures)
    return f"| {plain_md(label)}, {plain_md(unit, 20)} |{cells}"


def plain_md(text: str, limit: int = 200) -> str:
    """Text that Markdown shows as it is: no markup, no table cells, links, mentions or HTML of its own."""
    return re.sub(r"([\\`*_{}\[\]<>|#!~$@&])", r"\\\1", printable(text, limit))


def junit(summary: dict[str, Any], results: Sequence[CheckResult], strict: bool = False) -> bytes:
    """Thresholds and trust rules as test cases.

    A breach fails its case (a warning one is only said), an undecided check is skipped, or fails with `strict`; a
    withheld one is an error. Every trust rule is a case, and so is every warning that was given: invalid fails.
    """
    root = Xml.Element("testsuites", name="pddbench")
    checks = Xml.SubElement(root, "testsuite", name="checks")
    for result in results:
        _check_case(checks, result, strict)
    trust = Xml.SubElement(root, "testsuite", name="trust")
    warned = [finding["rule"] for finding in summary["findings"]]
    for rule in dict.fromkeys([*RULES, *warned]):
        _rule_case(trust, rule, [finding for finding in summary["findings"] if finding["rule"] == rule])
    answer = Xml.SubElement(root, "testsuite", name="requests")
    for arm, part in summary["arms"].items():
        case = Xml.SubElement(answer, "testcase", classname="pddbench.requests", name=f"{arm}: some request succeeded")
        if not part["outcomes"].get("ok"):
            said = ", ".join(f"{name} {n}" for name, n in part["outcomes"].items()) or "no requests"
            Xml.SubElement(case, "failure", message=printable(said))
    for suite in root:
        for name, tag in (("tests", "testcase"), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            suite.set(name, str(len(list(suite.iter(tag)))))
    Xml.indent(root)
    text: bytes = Xml.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _check_case(suite: Xml.Element, result: CheckResult, strict: bool) -> None:
    case = Xml.SubElement(suite, "testcase", classname="pddbench.check", name=printable(result.text))
    said = printable(check_line(result), 400)
    kind = {"breach": "failure", "withheld": "error", "undecided": "failure" if strict else "skipped"}.get(
        result.status
    )
    if kind and result.severity == "fail":
        Xml.SubElement(case, kind, message=said)
    else:
        Xml.SubElement(case, "system-out").text = said


def _rule_case(suite: Xml.Element, rule: str, found: Sequence[dict[str, Any]]) -> None:
    case = Xml.SubElement(suite, "testcase", classname="pddbench.trust", name=printable(rule))
    if not found:
        return
    said = "; ".join((f"{one['arm']}: " if one["arm"] else "") + one["message"] for one in found)
    said = printable(f"{said}; {found[0]['advice']}", 600)
    if any(one["level"] == "invalid" for one in found):
        Xml.SubElement(case, "failure", message=said)
    else:
        Xml.SubElement(case, "system-out").text = said


def _followed(summary: dict[str, Any], wanted: Sequence[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    """Entries of github-action-benchmark, in fixed units; what is withheld or infinite is left out."""
    for arm, part in summary["arms"].items():
        for label, key in wanted:
            figure = part["figures"][key]
            point = units.value(figure["point"])
            if figure["withheld"] or not math.isfinite(point):
                continue
            scale, unit = _SCALES.get(figure["unit"], (1.0, figure["unit"].replace("cost", summary["run"]["currency"])))
            low, high = units.value(figure["low"]) / scale, units.value(figure["high"]) / scale
            yield {"name": f"{arm} {label}", "unit": printable(unit, 20), "value": round(point / scale, 6),
                   "range": f"{units.plain(low)}–{units.plain(high)}",
                   "extra": f"{printable(summary['verdict'])}; {figure['rows']} rows"}  # fmt: skip
