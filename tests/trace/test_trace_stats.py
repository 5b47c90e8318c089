"""Figures of a trace."""

import msgspec
import numpy as np
import pytest

from pddbench.trace.hits import planned_hits
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.read import read_trace
from pddbench.trace.stats import BUCKET_EDGES, BUCKET_NAMES, bucket_counts, trace_stats
from pddbench.trace.synth import agentic_small


def small():
    rows = [
        Row("a", "s", 0, 1000, 100, start_s=2.0),
        Row("b", "s", 1, 1100, 0, ("a",), 5.5, None, "a", 1100, "tool"),
        Row("c", "s", 2, 2000, 50, ("b",), None, -1.0, "b", 1000, "user"),
        Row("d", "t", 0, 100, 50, start_s=3.0),
    ]
    return Trace(Header(assumptions=["x"], counts={"y": 1}), rows)


def test_both_bases_and_both_means():
    """One figure called 'the hit' hides a factor of two between the mean and the token-weighted one."""
    stats = trace_stats(small())
    assert (stats.requests, stats.sessions, stats.span_s) == (4, 2, 3.5)
    assert (stats.input_tokens, stats.output_tokens, stats.hit_tokens) == (4200, 200, 2000)
    assert stats.token_weighted_hit == round(2000 / 4200, 6)
    assert stats.mean_hit == round((1000 / 1100 + 0.5) / 4, 6)
    both = stats.prompt_output
    assert (both.hit_tokens, both.mean_hit, both.share_above_95) == (2100, round(1.5 / 4, 6), 0.25)
    assert (stats.basis, both.basis) == ("prompt", "prompt+output")
    assert stats.kinds == {"root": 2, "tool": 1, "user": 1}
    assert stats.counts == {
        "y": 1,
        "unknown_gaps": 1,
        "negative_gaps_in_rows": 1,
        "zero_outputs": 1,
        "full_hits_in_rows": 1,
    }


def test_quantiles_are_values_that_occur():
    """Interpolated quantiles differ between tools; ours is the ceil(q n)-th smallest."""
    rows = [Row(str(i), str(i), 0, i, 1, start_s=0.0) for i in range(1, 201)]
    q = trace_stats(Trace(Header(), rows)).input_quantiles
    assert (q.p50, q.p90, q.p99, q.mean, q.max) == (100, 180, 198, 100.5, 200)


@pytest.mark.parametrize(
    ("hit", "bucket"),
    [(0, 0), (899, 0), (900, 1), (949, 1), (950, 2), (970, 3), (980, 4), (990, 5), (994, 5), (995, 6), (1000, 6)],
)
def test_bucket_edges_belong_to_the_bucket_above(hit, bucket):
    """At the edges a rounding error would move requests to the neighbour."""
    counts = bucket_counts(np.array([hit]), np.array([1000]))
    assert counts.index(1) == bucket and sum(counts) == 1 and len(BUCKET_NAMES) == len(BUCKET_EDGES) - 1


def test_an_empty_prompt_hits_nothing():
    """0 / 0 must not turn into NaN and spoil the mean."""
    stats = trace_stats(Trace(Header(), [Row("a", "s", 0, 0, 1, start_s=0.0)]))
    assert (stats.mean_hit, stats.token_weighted_hit, stats.counts) == (0.0, 0.0, {"zero_inputs": 1})


def test_json_has_the_documented_keys():
    """Scripts read these names."""
    found = msgspec.json.decode(msgspec.json.encode(trace_stats(agentic_small(4))))
    assert {
        *("requests", "sessions", "span_s", "input_tokens", "output_tokens", "hit_tokens", "mean_hit"),
        *("token_weighted_hit", "share_above_95", "buckets", "prompt_output", "kinds", "assumptions", "counts"),
    } <= set(found)
    assert sum(bucket["count"] for bucket in found["buckets"]) == found["requests"]


def test_published_figures(data):
    """The exact figures this project is measured by."""
    found = trace_stats(read_trace(data / "mooncake" / "conversation_first1500.jsonl"))
    assert (found.requests, found.input_tokens, found.hit_tokens) == (1500, 20_981_721, 5_663_986)
    found = trace_stats(read_trace(data / "weka" / "trace_0142.json"))
    assert (found.requests, found.input_tokens, found.hit_tokens) == (30, 1_967_200, 1_814_784)


def test_stats_and_hits_agree():
    """The table and the plan must speak of the same hits."""
    trace = agentic_small(20, 3)
    assert trace_stats(trace).hit_tokens == int(planned_hits(trace.rows).sum())
