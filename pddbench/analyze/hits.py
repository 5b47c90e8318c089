"""Prefix hits: buckets of the planned hit share, the key along which arms differ most."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from pddbench.analyze.quantiles import Floats, Ints
from pddbench.trace.stats import BUCKET_EDGES

if TYPE_CHECKING:
    import pandas as pd


def bucket_names() -> list[str]:
    """Names of the buckets, in percent; only the last one holds its upper edge."""
    edges = [f"{100 * edge:g}" for edge in BUCKET_EDGES]
    names = [f"[{low},{high})" for low, high in pairwise(edges)]
    return [*names[:-1], names[-1][:-1] + "]"]


def planned_share(metrics: pd.DataFrame) -> Floats:
    """Planned hit of each row as a share of its input tokens; NaN where unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        share: Floats = metrics["cached_tokens_planned"].to_numpy() / metrics["input_tokens_planned"].to_numpy()
    return share


def bucket_of(share: Floats) -> Ints:
    """Index of the bucket of each share; -1 for NaN."""
    index = np.clip(np.searchsorted(BUCKET_EDGES, share, side="right") - 1, 0, len(BUCKET_EDGES) - 2)
    return np.where(np.isnan(share), -1, index)
