"""What is in a trace: sizes, times, and the prefix hits of an infinite cache on both bases.

Shares are fractions of 1. Quantiles are `inverted_cdf`: the ceil(q n)-th smallest. The *mean* hit weighs requests
alike, the *token-weighted* hit is hit tokens / input tokens; they may differ widely, so neither is just "the hit".
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pddbench.trace.columns import Columns, columns_of
from pddbench.trace.hits import Basis, column_hits
from pddbench.trace.model import Trace

BUCKET_EDGES = (0.0, 0.90, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
BUCKET_NAMES = ("[0,90)", "[90,95)", "[95,97)", "[97,98)", "[98,99)", "[99,99.5)", "[99.5,100]")
HIGH_HIT = 0.95
_BASES: tuple[Basis, Basis] = ("prompt", "prompt+output")


class Quantiles(msgspec.Struct, frozen=True):
    """Of tokens a request; mean rounded to 0.1."""

    p50: int
    p90: int
    p99: int
    mean: float
    max: int


class Bucket(msgspec.Struct, frozen=True):
    """Requests whose hit share (per cent of the input) lies in `range`; `share` of all requests."""

    range: str
    count: int
    share: float


class HitStats(msgspec.Struct, frozen=True, kw_only=True):
    """Hits of an infinite cache on one basis. `share_above_95`: requests with more than 95% of their input hit."""

    basis: str
    hit_tokens: int
    mean_hit: float
    token_weighted_hit: float
    share_above_95: float
    buckets: list[Bucket]


class TraceStats(msgspec.Struct, frozen=True, kw_only=True):
    """A trace in figures; the hits at this level are on the `prompt` basis, those with replies are nested."""

    requests: int
    sessions: int
    span_s: float | None  # from the first to the last recorded start; None without any
    input_tokens: int
    output_tokens: int
    basis: str
    hit_tokens: int
    mean_hit: float
    token_weighted_hit: float
    share_above_95: float
    buckets: list[Bucket]
    input_quantiles: Quantiles
    output_quantiles: Quantiles
    kinds: dict[str, int]
    source: str
    source_format: str
    lengths: str
    block_tokens: int | None
    assumptions: list[str]
    counts: dict[str, int]
    prompt_output: HitStats


def trace_stats(trace: Trace) -> TraceStats:
    """The figures of a trace of at least one request."""
    return column_stats(columns_of(trace))


def column_stats(trace: Columns) -> TraceStats:
    """The same of a trace in columns, in memory for a few of them."""
    header, table = trace.header, trace.table
    starts = trace.seconds("start_s")[table["start_s"].is_valid().to_numpy()]
    prompt, both = (hit_stats(column_hits(trace, basis), trace.input_tokens, basis) for basis in _BASES)
    return TraceStats(
        **msgspec.structs.asdict(prompt),
        requests=len(trace),
        sessions=trace.sessions,
        span_s=round(float(starts.max() - starts.min()), 6) if len(starts) else None,
        input_tokens=int(trace.input_tokens.sum()),
        output_tokens=int(trace.output_tokens.sum()),
        input_quantiles=_quantiles(trace.input_tokens),
        output_quantiles=_quantiles(trace.output_tokens),
        kinds=_kinds(table["kind"]),
        source=header.source,
        source_format=header.source_format,
        lengths=header.lengths,
        block_tokens=header.block_tokens,
        assumptions=header.assumptions,
        counts={**header.counts, **_row_counts(trace)},
        prompt_output=both,
    )


def _kinds(column: Any) -> dict[str, int]:
    """How many of each kind, the most frequent first; of equal ones the one that comes first."""
    found = column.value_counts()
    pairs = zip(found.field("values").to_pylist(), found.field("counts").to_pylist(), strict=True)
    return dict(sorted(pairs, key=lambda pair: -pair[1]))


def bucket_counts(hits: npt.NDArray[np.int64], inputs: npt.NDArray[np.int64]) -> list[int]:
    """Number of requests in each of the seven buckets of hit share; an input of 0 tokens has a share of 0."""
    place = np.searchsorted(BUCKET_EDGES, hit_shares(hits, inputs), side="right") - 1
    counts = np.bincount(np.minimum(place, len(BUCKET_NAMES) - 1), minlength=len(BUCKET_NAMES))
    return [int(count) for count in counts]


def hit_shares(hits: npt.NDArray[np.int64], inputs: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """hit / input of each request, 0 where there is no input."""
    shares: npt.NDArray[np.float64] = np.divide(hits, inputs, out=np.zeros(len(hits)), where=inputs > 0)
    return shares


def hit_stats(hits: npt.NDArray[np.int64], inputs: npt.NDArray[np.int64], basis: Basis) -> HitStats:
    """The figures of some hits, shape (n,), in prompts of these lengths."""
    shares, n, total = hit_shares(hits, inputs), len(inputs), int(inputs.sum())
    return HitStats(
        basis=basis,
        hit_tokens=int(hits.sum()),
        mean_hit=round(float(shares.mean()), 6),
        token_weighted_hit=round(int(hits.sum()) / total, 6) if total else 0.0,
        share_above_95=round(float((shares > HIGH_HIT).mean()), 6),
        buckets=[
            Bucket(name, count, round(count / n, 6))
            for name, count in zip(BUCKET_NAMES, bucket_counts(hits, inputs), strict=True)
        ],
    )


def _quantiles(values: npt.NDArray[np.int64]) -> Quantiles:
    p50, p90, p99 = (int(v) for v in np.quantile(values, [0.5, 0.9, 0.99], method="inverted_cdf"))
    return Quantiles(p50, p90, p99, round(float(values.mean()), 1), int(values.max()))


def _row_counts(trace: Columns) -> dict[str, int]:
    """What the rows themselves show, whatever their reader counted (a reader has set negative gaps to 0 already)."""
    gap_known = trace.table["gap_s"].is_valid().to_numpy()
    has_parents = np.zeros(len(trace), dtype=np.bool_)
    has_parents[trace.parent_row] = True
    counts = {
        "unknown_gaps": has_parents & ~gap_known,
        "negative_gaps_in_rows": gap_known & (trace.seconds("gap_s") < 0),
        "zero_outputs": trace.output_tokens == 0,
        "zero_inputs": trace.input_tokens == 0,
        "full_hits_in_rows": (trace.input_tokens > 0) & (trace.input_tokens == trace.prefix_tokens),
    }
    return {name: int(where.sum()) for name, where in counts.items() if where.any()}
