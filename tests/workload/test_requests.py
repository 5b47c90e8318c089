"""A plan's requests as columns, and the paths of its prompts: the same as objects and lists, in a file and back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddbench.errors import WorldError
from pddbench.runfolder.spooled import load_plan, save_plan
from pddbench.trace.contexts import contexts, cut
from pddbench.workload.paths import Paths
from pddbench.workload.plan import Plan, PlannedRequest
from pddbench.workload.requests import Requests, as_columns


def some(n: int, **more) -> list[PlannedRequest]:
    """Requests in which every field differs."""
    return [
        PlannedRequest(
            index=i, request_id=f"r{i}é\ud800", session_id=f"s{i // 2}", turn=i % 2, kind=("root", "tool")[i % 2],
            phase="measure", parents=(i - 1,) if i % 2 else (), start_ns=None if i % 2 else i * 10**12, gap_ns=i * 7,
            prefix_of=i - 1, prefix_tokens=i, input_tokens=100 + i, output_tokens=3 * i + 1,
            cached_tokens_planned=i, plan_sha256=f"{i:064x}", **more,
        )
        for i in range(n)
    ]  # fmt: skip


def test_columns_are_the_same_requests(tmp_path):
    """Without it a field could come back changed, and arms would be sent something else than was planned."""
    objects = some(7)
    columns = Requests(objects).sealed()
    assert list(columns) == objects and columns[2:5] == objects[2:5] and columns[-1] == objects[-1]
    with pytest.raises(IndexError):
        columns[7]
    plan = Plan(columns, "think", "sha", {"warmups": 2}, ["a note"])
    save_plan(tmp_path, 1, plan)
    back = load_plan(tmp_path, 1)
    assert list(back.requests) == objects
    assert (back.timing, back.sha256, back.counts, back.notes) == ("think", "sha", {"warmups": 2}, ["a note"])
    save_plan(tmp_path, 2, Plan([], "think", "empty"))
    assert list(load_plan(tmp_path, 2).requests) == []


@pytest.mark.parametrize("keep", [0, 10, 40, 400, -8])
def test_a_damaged_plan_is_a_sentence(tmp_path, keep):
    """Without it a file cut off by a full disk is a traceback, or a plan with zeros in it."""
    save_plan(tmp_path, 1, Plan(some(9), "think", "sha"))
    file = Path(tmp_path / "spool" / "plan.1.bin")
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(WorldError, match=r"plan\.1\.bin"):
        load_plan(tmp_path, 1)


class Row:
    """Lengths of a row and what it shares."""

    def __init__(self, prefix: int, prompt: int, output: int) -> None:
        self.prefix_tokens, self.input_tokens, self.output_tokens = prefix, prompt, output


@st.composite
def tries(draw):
    """Rows with donors, any shape that a trace may have."""
    rows, donors = [], []
    for i in range(draw(st.integers(1, 12))):
        donor = draw(st.integers(-1, i - 1))
        most = rows[donor].input_tokens + rows[donor].output_tokens if donor >= 0 else 0
        prefix = draw(st.integers(0, most))
        rows.append(Row(prefix, max(1, prefix + draw(st.integers(0, 5))), draw(st.integers(0, 5))))
        donors.append(donor)
    return rows, donors


@given(tries())
def test_paths_on_demand_are_those_of_contexts(trie):
    """Without it prompts made when they are due could hold other tokens than hits are counted for."""
    rows, donors = trie
    paths = Paths(donors, [row.prefix_tokens for row in rows])
    for i, context in enumerate(contexts(rows, donors)):
        assert paths.of(i, rows[i].input_tokens) == cut(context, rows[i].input_tokens)
        assert paths.of(i, rows[i].input_tokens + rows[i].output_tokens) == context


def test_columns_as_arrays():
    """Without it schedules, hit tables and costs would be of other requests than those sent."""
    columns = as_columns(some(6))
    parents, children = columns.edges()
    assert list(zip(parents.tolist(), children.tolist(), strict=True)) == [(0, 1), (2, 3), (4, 5)]
    assert columns.ints("session").tolist() == [0, 0, 1, 1, 2, 2]
    assert columns.is_one_of("kind", ("tool", "unheard-of")).tolist() == [False, True] * 3
    assert [columns.start_ns(i) for i in range(3)] == [0, None, 2 * 10**12]
