"""How an engine's block size distorts the plan: hits rounded down to whole blocks, and never the whole prompt."""

from __future__ import annotations

import numpy as np

from pddbench.trace.hits import Basis, planned_hits
from pddbench.trace.model import Trace
from pddbench.trace.stats import BUCKET_NAMES, HIGH_HIT, Bucket, HitStats, bucket_counts, hit_shares


def block_hits(trace: Trace, block_tokens: int, basis: Basis = "prompt") -> HitStats:
    """The hits that an engine with blocks of this size can serve from an infinite cache, in trace order.

    It caches whole blocks and computes at least the last token of a prompt: min(hit, input - 1), rounded down.
    """
    inputs = np.array([row.input_tokens for row in trace.rows], dtype=np.int64)
    hits = np.minimum(planned_hits(trace.rows, basis), np.maximum(inputs - 1, 0)) // block_tokens * block_tokens
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
