"""docs/claims.md from the results in docs/claims: `python -m pddbench.claims.docs`. A test compares the two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pddbench.claims.conduct import read_result
from pddbench.claims.live import NOT_LIVE
from pddbench.claims.model import Row
from pddbench.claims.page import claimed_text, figure_text

DOCS = Path(__file__).parents[2] / "docs"
BEGIN, END = "<!-- made by python -m pddbench.claims.docs -->\n", "<!-- end -->\n"


def page(text: str, full: Mapping[str, Row], live: Mapping[str, Row]) -> str:
    """The page with its tables made again; what stands outside the two marks stays."""
    head, rest = text.split(BEGIN)
    return head + BEGIN + "\n" + _tables(full, live) + "\n" + END + rest.split(END)[1]


def _tables(full: Mapping[str, Row], live: Mapping[str, Row]) -> str:
    out = ["## Arithmetic and simulated", "", _counts(full), "", *_table(full), ""]
    out += ["## Live, on two cores", "", _counts(live), "", *_table(live), ""]
    out += [f"* {number} is not live: {why}." for number, why in NOT_LIVE.items()]
    out += [
        "",
        "## What each hangs on",
        "",
        *(f"* **{row.id}**: {row.hangs_on}." for row in full.values() if row.hangs_on),
    ]
    out += ["", "## What must be said beside them", ""]
    out += [f"* **{row.id}**: {row.note}." for row in full.values() if row.note]
    out += [f"* **{row.id}, live**: {row.note}." for row in live.values() if row.note]
    return "\n".join(out) + "\n"


def _counts(rows: Mapping[str, Row]) -> str:
    words: dict[str, int] = {}
    for row in rows.values():
        words[row.verdict] = words.get(row.verdict, 0) + 1
    return ", ".join(f"{n} {word}" for word, n in words.items()) + "."


def _table(rows: Mapping[str, Row]) -> list[str]:
    out = ["| # | claim | verdict | our figures [95%] (claimed) | without the mechanism | measured |",
           "|---|---|---|---|---|---|"]  # fmt: skip
    for row in rows.values():
        figures = "<br>".join(
            f"{one.name}: **{figure_text(one)}** ({claimed_text(one)}) {one.verdict}" for one in row.parts
        )
        off = "<br>".join(f"{one.name}: {figure_text(one)}: **{one.verdict}**" for one in row.off)
        where = ", ".join(filter(None, (row.where, row.size, f"`{row.command}`" if row.command else "", row.date)))
        cells = (row.id, row.claim, f"**{row.verdict}**", figures or "–", off or "–", where)
        out.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return out


def main() -> None:
    """Write the page again."""
    file = DOCS / "claims.md"
    made = page(
        file.read_text(encoding="utf-8"), *(read_result(DOCS / "claims" / f"{kind}.json") for kind in ("full", "live"))
    )
    file.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
