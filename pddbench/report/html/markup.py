"""HTML made of strings that are escaped unless they were made here: what no script has to draw."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import NamedTuple


class Markup(NamedTuple):
    """HTML that is safe to put into the page."""

    text: str


def tag(name: str, *children: Markup | str | None, **attributes: str | float | None) -> Markup:
    """An element. Strings are escaped; `class_` stands for class, `data_x` for data-x; null attributes are left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{given}>{join(children).text}</{name}>")


def join(children: Iterable[Markup | str | None]) -> Markup:
    """Several one after the other; null is nothing."""
    return Markup("".join(_text(child) for child in children if child is not None))


def _text(child: Markup | str) -> str:
    return child.text if isinstance(child, Markup) else html.escape(child)
