"""Puts the page together: markup, figures as JSON, style and script in one file that needs no network.

What a server or user wrote is escaped in the markup, and cannot end the JSON's script element. The content security
policy allows exactly our own style and script, by hash, and no connections.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from string import Template
from typing import Any

import msgspec

from pddbench.analyze.check import CheckResult
from pddbench.analyze.dataset import Dataset
from pddbench.report.html import facts, tables
from pddbench.report.html.markup import Markup, tag
from pddbench.report.html.payload import payload
from pddbench.text import printable

_SCRIPTS = ("marks.js", "figure.js", "plots.js", "flow.js", "main.js")


def page(data: Dataset, summary: dict[str, Any], results: Sequence[CheckResult]) -> str:
    """`report.html` of a run: `summary` as in summary.json, `results` of its checks."""
    style = _asset("report.css")
    script = "(() => {\n'use strict';\n" + "".join(_asset(name) for name in _SCRIPTS) + "})();\n"
    run, manifest = summary["run"], data.run.manifest
    parts = {
        "title": tag("title", printable(f"{run['name']}: pddbench", 100)),
        "name": tag("h1", printable(run["name"], 80)),
        "verdict": facts.verdict(summary),
        "measured": facts.measured(summary, manifest),
        "findings": facts.findings(summary) or Markup(""),
        "checks": facts.thresholds(results) or Markup(""),
        "tiles": tables.tiles(summary),
        "table": tables.side_by_side(summary),
        "pairs": tables.pairs(summary),
        "configuration": facts.configuration(manifest),
        "version": tag("span", f"pddbench {summary['pddbench']}"),
    }
    return Template(_asset("page.html")).substitute(
        {name: part.text for name, part in parts.items()},
        style=style,
        script=script,
        policy=_policy(style, script),
        data=for_script(payload(data, summary)),
    )


def for_script(value: Any) -> str:
    """JSON that may stand inside a script element: nothing in it can end the element or open a comment."""
    text = msgspec.json.encode(value).decode()
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(name: str) -> str:
    return (resources.files("pddbench.report.html") / "assets" / name).read_text(encoding="utf-8")
