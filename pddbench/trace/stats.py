"""What is in a trace: sizes, times, and the prefix hits of an infinite cache on both bases.

Shares are fractions of 1. Quantiles are `inverted_cdf`: the ceil(q n)-th smallest. The *mean* hit weighs requests
alike, the *token-weighted* hit is hit tokens / input tokens; they may differ widely, so neither is just "the hit".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from pddbench.trace.hits import Basis, donor_indices, planned_hits
from pddbench.trace.model import Row, Trace

BUCKET_EDGES = (0.0, 0.90, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)
BUCKET_NAMES = ("[0,90)", "[90,95)", "[95,97)", "[97,98)", "[98,99)", "[99,99.5)", "[99.5,100]")
HIGH_HIT = 0.95


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
    rows, header = trace.rows, trace.header
    inputs = np.array([row.input_tokens for row in rows], dtype=np.int64)
    outputs = np.array([row.output_tokens for row in rows], dtype=np.int64)
    starts = [row.start_s for row in rows if row.start_s is not None]
    donors = donor_indices(rows)
    prompt, both = (_hit_stats(rows, inputs, donors, basis) for basis in ("prompt", "prompt+output"))
    return TraceStats(
        **msgspec.structs.asdict(prompt),
        requests=len(rows),
        sessions=len({row.session_id for row in rows}),
        span_s=round(max(starts) - min(starts), 6) if starts else None,
        input_tokens=int(inputs.sum()),
        output_tokens=int(outputs.sum()),
        input_quantiles=_quantiles(inputs),
        output_quantiles=_quantiles(outputs),
        kinds=dict(Counter(row.kind for row in rows).most_common()),
        source=header.source,
        source_format=header.source_format,
        lengths=header.lengths,
        block_tokens=header.block_tokens,
        assumptions=header.assumptions,
        counts={**header.counts, **_row_counts(rows)},
        prompt_output=both,
    )


def bucket_counts(hits: npt.NDArray[np.int64], inputs: npt.NDArray[np.int64]) -> list[int]:
    """Number of requests in each of the seven buckets of hit share; an input of 0 tokens has a share of 0."""
    place = np.searchsorted(BUCKET_EDGES, hit_shares(hits, inputs), side="right") - 1
    counts = np.bincount(np.minimum(place, len(BUCKET_NAMES) - 1), minlength=len(BUCKET_NAMES))
    return [int(count) for count in counts]


def hit_shares(hits: npt.NDArray[np.int64], inputs: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """hit / input of each request, 0 where there is no input."""
    shares: npt.NDArray[np.float64] = np.divide(hits, inputs, out=np.zeros(len(hits)), where=inputs > 0)
    return shares


def _hit_stats(rows: Sequence[Row], inputs: npt.NDArray[np.int64], donors: list[int], basis: Basis) -> HitStats:
    hits = planned_hits(rows, basis, donors)
    shares = hit_shares(hits, inputs)
    total = int(inputs.sum())
    return HitStats(
        basis=basis,
        hit_tokens=int(hits.sum()),
        mean_hit=round(float(shares.mean()), 6),
        token_weighted_hit=round(int(hits.sum()) / total, 6) if total else 0.0,
        share_above_95=round(float((shares > HIGH_HIT).mean()), 6),
        buckets=[
            Bucket(name, count, round(count / len(rows), 6))
            for name, count in zip(BUCKET_NAMES, bucket_counts(hits, inputs), strict=True)
        ],
    )


def _quantiles(values: npt.NDArray[np.int64]) -> Quantiles:
    p50, p90, p99 = (int(v) for v in np.quantile(values, [0.5, 0.9, 0.99], method="inverted_cdf"))
    return Quantiles(p50, p90, p99, round(float(values.mean()), 1), int(values.max()))


def _row_counts(rows: Sequence[Row]) -> dict[str, int]:
    """What the rows themselves show, whatever their reader counted (a reader has set negative gaps to 0 already)."""
    counts = {
        "unknown_gaps": sum(row.gap_s is None for row in rows if row.parents),
        "negative_gaps_in_rows": sum(row.gap_s is not None and row.gap_s < 0 for row in rows),
        "zero_outputs": sum(row.output_tokens == 0 for row in rows),
        "zero_inputs": sum(row.input_tokens == 0 for row in rows),
        "full_hits_in_rows": sum(0 < row.input_tokens == row.prefix_tokens for row in rows),
    }
    return {name: n for name, n in counts.items() if n}
