"""Planned and possible hits against lists of tokens, written out."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddbench.trace.contexts import contexts
from pddbench.trace.hits import NEVER_NS, donor_indices, planned_hits, possible_hits
from pddbench.trace.model import Row


def row(number, donor, prefix, tokens, output):
    name = None if donor < 0 else str(donor)
    return Row(str(number), "s", 0, tokens, output, (), 0.0, None, name, prefix)


@st.composite
def traces(draw):
    """Rows whose donors are any earlier rows; full hits, empty replies and useless donors included."""
    rows = []
    for i in range(draw(st.integers(1, 12))):
        donor = draw(st.integers(-1, i - 1))
        context = rows[donor].input_tokens + rows[donor].output_tokens if donor >= 0 else 0
        prefix = draw(st.integers(0, context)) if donor >= 0 else 0
        rows.append(row(i, donor, prefix, prefix + draw(st.integers(0, 6)), draw(st.integers(0, 3))))
    return rows


def materialise(rows):
    """The context of each row as a list of tokens, each token unlike any other."""
    out = []
    for i, r in enumerate(rows):
        kept = out[int(r.prefix_of)][: r.prefix_tokens] if r.prefix_of is not None else []
        out.append(kept + [(i, p) for p in range(len(kept), r.input_tokens + r.output_tokens)])
    return out


def common(a, b):
    k = 0
    while k < min(len(a), len(b)) and a[k] == b[k]:
        k += 1
    return k


def cached_of(rows, basis):
    return [
        c[: r.input_tokens + (r.output_tokens if basis == "prompt+output" else 0)]
        for r, c in zip(rows, materialise(rows), strict=True)
    ]


@given(traces())
def test_contexts_are_the_tokens(rows):
    """Prompts and hits are both built on the paths: a wrong path makes bodies that do not share what is planned."""
    paths = contexts(rows, donor_indices(rows))
    assert [[(s.owner, p) for s in path for p in range(s.start, s.end)] for path in paths] == materialise(rows)


@settings(max_examples=300)
@given(traces(), st.sampled_from(["prompt", "prompt+output"]))
def test_planned_hits_are_those_of_the_tokens(rows, basis):
    """Without it planned hits could come from `prefix_of` alone and miss what other rows share."""
    prompts, cached = cached_of(rows, "prompt"), cached_of(rows, basis)
    want = [max((common(prompts[i], cached[j]) for j in range(i)), default=0) for i in range(len(rows))]
    assert planned_hits(rows, basis).tolist() == want


TIME = st.one_of(st.integers(0, 8), st.just(NEVER_NS))


@settings(max_examples=300)
@given(traces(), st.data(), st.sampled_from(["prompt", "prompt+output"]))
def test_possible_hits_are_those_of_the_tokens(rows, data, basis):
    """Without it a hit may be credited to a reply that had not begun, or to the request itself."""
    n = len(rows)
    query = data.draw(st.lists(TIME, min_size=n, max_size=n))
    available = data.draw(st.lists(TIME, min_size=n, max_size=n))
    prompts, cached = cached_of(rows, "prompt"), cached_of(rows, basis)

    def best(i):
        if query[i] == NEVER_NS:
            return 0
        donors = [j for j in range(n) if j != i and max(available[j], query[j]) < query[i]]
        return max((common(prompts[i], cached[j]) for j in donors), default=0)

    found = possible_hits(rows, donor_indices(rows), query, available, basis)
    assert found.tolist() == [best(i) for i in range(n)]


def test_a_simultaneous_answer_is_too_late():
    """A donor whose first token came at the very instant this was sent cannot have helped."""
    rows = [row(0, -1, 0, 10, 0), row(1, 0, 10, 12, 0)]
    assert possible_hits(rows, [-1, 0], [0, 5], [5, 9]).tolist() == [0, 0]
    assert possible_hits(rows, [-1, 0], [0, 5], [4, 9]).tolist() == [0, 10]


def test_in_trace_order_possible_is_planned():
    """Sent one after the other, an infinite cache hits what was planned: the two must not drift apart."""
    rows = [row(0, -1, 0, 10, 5), row(1, 0, 14, 20, 0), row(2, 1, 16, 16, 0), row(3, 0, 3, 9, 1)]
    times = np.arange(4) * 10
    assert possible_hits(rows, donor_indices(rows), times, times + 5).tolist() == planned_hits(rows).tolist()
    assert planned_hits(rows).tolist() == [0, 10, 16, 3]
    assert planned_hits(rows, "prompt+output").tolist() == [0, 14, 16, 3]


def test_planned_requests_hold_indices():
    """The plan knows donors by number; names would be looked up in vain."""
    rows = [SimpleNamespace(request_id="a", prefix_of=-1), SimpleNamespace(request_id="b", prefix_of=0)]
    assert donor_indices(rows) == [-1, 0]


def test_unknown_basis():
    """A misspelt basis must not be taken for `prompt`."""
    with pytest.raises(ValueError, match="basis"):
        planned_hits([row(0, -1, 0, 1, 1)], "output")


def test_deep_paths_do_not_cost_their_square():
    """4,000 turns on one context (each path has thousands of segments) must stay linear: counted, not timed."""
    steps = 0

    class Counting(list):
        def __getitem__(self, i):
            nonlocal steps
            steps += 1
            return super().__getitem__(i)

    from pddbench.trace import hits as module

    rows = [row(0, -1, 0, 10, 1)]
    for i in range(1, 4000):
        context = rows[-1].input_tokens + rows[-1].output_tokens
        rows.append(row(i, i - 1, context, context + 3, 1))
    cover = module._Cover.of_rows(rows, donor_indices(rows), "prompt")
    cover._before = Counting(cover._before)
    for i in range(len(rows)):
        cover.hit(i)
        cover.add(i)
    assert steps < 6 * len(rows)
