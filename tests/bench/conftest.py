"""What the benches saw, as one table at the end: each figure, what was aimed at, and whether it was reached."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

FIGURES = []
DETAILS = {}


class Figures:
    """Takes figures and details of all benches of this session."""

    def aim(self, what, value, sign, limit, unit=""):
        """A figure with an aim: reached when `value sign limit`."""
        reached = value is not None and (value <= limit if sign == "<=" else value >= limit)
        word = "yes" if reached else "NO"
        FIGURES.append({"what": what, "seen": value, "aim": f"{sign} {limit:g}", "unit": unit, "reached": word})

    def seen(self, what, value, unit=""):
        """A figure without an aim in numbers."""
        FIGURES.append({"what": what, "seen": value, "aim": "", "unit": unit, "reached": ""})

    def keep(self, name, value):
        """A detail for the file."""
        DETAILS[name] = value


@pytest.fixture(scope="session")
def figures():
    """Where a bench puts what it saw."""
    return Figures()


def pytest_terminal_summary(terminalreporter):
    """Print the table and save everything."""
    if not FIGURES:
        return
    write = terminalreporter.write_line
    load = os.getloadavg()
    write("")
    write(f"{'figure':<52} {'aim':>10} {'seen':>12}   reached   (load average now {load[0]:.1f})")
    for one in FIGURES:
        seen = "none" if one["seen"] is None else f"{one['seen']:.4g} {one['unit']}".rstrip()
        write(f"{one['what']:<52} {one['aim']:>10} {seen:>12}   {one['reached']}")
    folder = Path(__file__).parents[2] / "results" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"bench-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.json"
    path.write_text(json.dumps({"load_average": load, "figures": FIGURES, **DETAILS}, indent=2))
    write(f"saved to {path.relative_to(folder.parents[1])}")
