"""The page of a run: verdict and validity, the answer, figures side by side, plots, configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pddbench.analyze.check import CheckResult
from pddbench.analyze.dataset import Dataset
from pddbench.report import searched
from pddbench.report.html import facts, links, tables, verdicts
from pddbench.report.html.markup import Markup, tag
from pddbench.report.html.payload import payload
from pddbench.report.html.shell import assemble
from pddbench.text import printable

_SCRIPTS = ("marks.js", "figure.js", "plots.js", "flow.js", "tables.js", "main.js")


def page(data: Dataset, summary: dict[str, Any], results: Sequence[CheckResult]) -> str:
    """`report.html` of a run: `summary` as in summary.json, `results` of its checks."""
    run, manifest = summary["run"], data.run.manifest
    search = searched.beside(data.run.path, summary)
    parts = {
        "title": tag("title", printable(f"{run['name']}: pddbench", 100)),
        "name": tag("h1", printable(run["name"], 80)),
        "verdict": facts.verdict(summary),
        "nav": facts.navigation(summary, manifest),
        "measured": facts.measured(summary, manifest),
        "findings": facts.findings(summary) or Markup(""),
        "checks": facts.thresholds(results) or Markup(""),
        "tiles": tables.tiles(summary),
        "answers": verdicts.section(summary, search),
        "table": tables.side_by_side(summary),
        "link": links.section(manifest) or Markup(""),
        "pairs": tables.pairs(summary) or Markup(""),
        "configuration": facts.configuration(manifest),
        "version": tag("span", f"pddbench {summary['pddbench']}"),
    }
    return assemble("page.html", parts, _SCRIPTS, payload(data, summary))
