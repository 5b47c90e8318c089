"""How an engine's block size distorts the plan: hits rounded down to whole blocks, and never the whole prompt."""

from __future__ import annotations

import numpy as np

from pddbench.trace.columns import Columns, columns_of
from pddbench.trace.hits import Basis, column_hits
from pddbench.trace.model import Trace
from pddbench.trace.stats import HitStats, hit_stats


def block_hits(trace: Trace | Columns, block_tokens: int, basis: Basis = "prompt") -> HitStats:
    """The hits that an engine with blocks of this size can serve from an infinite cache, in trace order.

    It caches whole blocks and computes at least the last token of a prompt: min(hit, input - 1), rounded down.
    """
    columns = columns_of(trace) if isinstance(trace, Trace) else trace
    most = np.maximum(columns.input_tokens - 1, 0)
    hits = np.minimum(column_hits(columns, basis), most) // block_tokens * block_tokens
    return hit_stats(hits, columns.input_tokens, basis)
