"""The independent recount, against prompts that are written out and compared token by token."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddbench.trace.columns import columns_of
from pddbench.trace.hits import planned_hits
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.oracle import bucket_counts, recount_hits
from pddbench.trace.stats import BUCKET_EDGES
from pddbench.trace.stats import bucket_counts as stats_counts


def random_rows(seed: int, n: int = 40, most: int = 40) -> list[Row]:
    """Rows that share at random with any earlier one, beyond its prompt too, and start at random times."""
    rng = random.Random(seed)
    rows: list[Row] = []
    for i in range(n):
        donor = rng.choice(rows) if rows and rng.random() < 0.8 else None
        length = rng.randint(1, most)
        shared = rng.randint(0, min(length, donor.input_tokens + donor.output_tokens)) if donor else 0
        rows.append(
            Row(
                f"r{i}",
                f"s{i}",
                0,
                length,
                rng.randint(0, 6),
                (),
                i + rng.random(),
                None,
                donor and donor.request_id,
                shared,
            )
        )
    return rows


def written_out(rows: list[Row]) -> list[tuple[list[object], list[object]]]:
    """Prompt and context of each row as lists of tokens, each fresh token unlike all others."""
    out: dict[str, tuple[list[object], list[object]]] = {}
    for row in rows:
        head = out[row.prefix_of][1][: row.prefix_tokens] if row.prefix_of else []
        length = row.input_tokens + row.output_tokens
        context = head + [(row.request_id, p) for p in range(len(head), length)]
        out[row.request_id] = (context[: row.input_tokens], context)
    return [out[row.request_id] for row in rows]


def brute(rows: list[Row], block: int, basis: str) -> list[int]:
    """Longest run of whole leading blocks that equal those of an earlier prompt (or context)."""
    texts, hits = written_out(rows), []
    for i, (prompt, _) in enumerate(texts):
        best = 0
        for other in texts[:i]:
            cached = other[0] if basis == "prompt" else other[1]
            same = next((p for p, (a, b) in enumerate(zip(prompt, cached, strict=False)) if a != b), None)
            same = min(len(prompt), len(cached)) if same is None else same
            best = max(best, same // block * block)
        hits.append(best)
    return hits


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 5, 16]), st.sampled_from(["prompt", "prompt+output"]))
def test_it_counts_what_token_lists_show(seed, block, basis):
    """A recount that is itself wrong would approve of wrong traces."""
    rows = random_rows(seed)
    assert recount_hits(rows, block, basis).tolist() == brute(rows, block, basis)


def test_what_is_forgotten_never_comes_again(monkeypatch):
    """A long trace is recounted in the memory of what is still shared: forgetting too much would lose hits."""
    monkeypatch.setattr("pddbench.trace.oracle._LEAST_BLOCKS", 1)
    for seed in range(20):
        rows = random_rows(seed, 80, 60)
        for basis in ("prompt", "prompt+output"):
            assert (recount_hits(rows, 1, basis) == planned_hits(rows, basis)).all()
        assert recount_hits(rows, 4).tolist() == brute(rows, 4, "prompt")


def test_columns_are_recounted_as_rows_are():
    """`trace oracle` reads columns; presets and catalogue count rows."""
    for seed in range(10):
        rows = random_rows(seed)
        assert (recount_hits(columns_of(Trace(Header(), rows)), 3) == recount_hits(rows, 3)).all()


def test_blocks_of_one_token_agree_with_the_walk_of_the_tree():
    """Two independent counts that differ mean that one of them is wrong."""
    for seed in range(20):
        rows = random_rows(seed, 60, 90)
        for basis in ("prompt", "prompt+output"):
            assert (recount_hits(rows, 1, basis) == planned_hits(rows, basis)).all()


def test_an_engine_block_only_rounds_down():
    """`trace stats --block-size` rounds planned hits; if blocks lost more than that it would promise too much."""
    for seed in range(10):
        rows = random_rows(seed, 60, 90)
        assert (recount_hits(rows, 7) == planned_hits(rows) // 7 * 7).all()


@pytest.mark.parametrize("share", [0.0, 0.9, 0.8999, 0.95, 0.995, 1.0])
def test_buckets_include_their_lower_edge(share):
    """A request on an edge counted on the wrong side would break a count to the request."""
    hits, inputs = np.array([round(share * 10_000)]), np.array([10_000])
    assert bucket_counts(hits, inputs, BUCKET_EDGES) == stats_counts(hits, inputs)
