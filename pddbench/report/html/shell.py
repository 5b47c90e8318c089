"""One self-contained page: a template filled with markup, style, script and figures; no network is ever needed.

What a server or user wrote is escaped in the markup, and cannot end the JSON's script element. The content security
policy allows exactly our own style and script, by hash, and no connections.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from string import Template
from typing import Any

import msgspec

from pddbench.report.html.markup import Markup


def assemble(template: str, parts: Mapping[str, Markup], scripts: Sequence[str], data: Any) -> str:
    """The page: `template` and `scripts` are assets, `parts` fill the template, `data` is what the scripts draw."""
    style = _asset("report.css")
    script = "(() => {\n'use strict';\n" + "".join(_asset(name) for name in scripts) + "})();\n"
    return Template(_asset(template)).substitute(
        {name: part.text for name, part in parts.items()},
        style=style,
        script=script,
        policy=_policy(style, script),
        data=for_script(data),
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
