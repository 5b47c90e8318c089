"""The trace of our own making."""

import re
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from pddbench.cli.trace import trace as group
from pddbench.trace.hits import planned_hits
from pddbench.trace.model import Row
from pddbench.trace.parquet import schema
from pddbench.trace.read import read_trace
from pddbench.trace.synth import SYSTEM_TOKENS, agentic_small
from pddbench.trace.validate import validate_rows

COMMITTED = Path(__file__).resolve().parents[2] / "traces" / "agentic-small.trace.jsonl.zst"


def test_the_committed_trace_is_what_the_generator_makes():
    """Otherwise the quickstart replays something that nobody can make again."""
    assert read_trace(COMMITTED) == agentic_small(130, 1)


def test_its_readme_shows_what_the_commands_print():
    """Figures and columns in a README go stale in silence."""
    readme = (COMMITTED.parent / "README.md").read_text()
    shown = CliRunner().invoke(group, ["stats", str(COMMITTED)], catch_exceptions=False).stdout
    figures = shown.split("\nassumed:")[0].split("\n", 1)[1].strip()
    assert len(figures.splitlines()) > 15 and figures in readme
    columns = re.findall(r"^\| (`[^|]*`) \|", readme, re.MULTILINE)
    named = [name for cell in columns for name in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(Row.__struct_fields__) == sorted(schema().names)


def test_it_is_as_promised():
    """Enough sessions and requests for an honest P90, a low-hit minority, sub-agents that join."""
    trace = agentic_small(130, 1)
    rows = trace.rows
    main = [row for row in rows if row.kind != "subagent"]
    turns = Counter(row.session_id for row in main)
    assert len(turns) == 130 and 600 <= len(rows) <= 720
    assert set(turns.values()) == {4, 5, 6} and len(main) / 130 >= 4.2
    assert 12_000 <= sum(row.input_tokens for row in rows) / len(rows) <= 18_000
    low = [row for row in main if row.parents and row.input_tokens - row.prefix_tokens >= 4000]
    assert 0.10 <= len(low) / (len(main) - 130) <= 0.20
    assert {row.kind for row in low} == {"tool", "edit", "compaction"}
    joins = [row for row in rows if len(row.parents) == 2]
    assert len(joins) == len({row.session_id for row in rows if row.kind == "subagent"}) and 4 <= len(joins) <= 16
    assert all(60 <= row.output_tokens <= 160 for row in rows)
    assert all(0.5 <= row.gap_s <= 5 for row in rows if row.parents)


@pytest.mark.parametrize("seed", range(5))
def test_every_seed_keeps_the_rules(seed):
    """A generator that breaks the rules of the format for some seeds is found here."""
    trace = agentic_small(40, seed)
    validate_rows(trace.rows)
    hits = planned_hits(trace.rows)
    roots = [i for i, row in enumerate(trace.rows) if not row.parents]
    assert hits[roots[0]] == 0 and all(hits[i] == SYSTEM_TOKENS for i in roots[1:])


def test_seeds_differ_and_repeat():
    """The same seed is the same trace, another seed another."""
    assert agentic_small(10, 5) == agentic_small(10, 5)
    assert agentic_small(10, 5).rows != agentic_small(10, 6).rows
