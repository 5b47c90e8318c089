"""Token exactness across arms: the same request, decoded greedily, must give the same text; where do two texts part?

A run keeps no text. It keeps each reply's SHA-256 and a running CRC-32 after every 64 bytes of it (`events.text_crc`),
so that two replies can be compared however their chunks were cut. The first differing block says where they part,
to 64 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pddbench.analyze.intervals import Figure, quantile_figure, share_figure
from pddbench.analyze.quantiles import Floats, Ints

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from pddbench.analyze.dataset import Dataset
    from pddbench.analyze.paired import Pair

CRC_BYTES = 64


class Exactness(msgspec.Struct, kw_only=True):
    """Replies to the same request in two arms. `same` of `compared` are equal to the byte.

    `parts_at` (p10, p50): bytes before two differing texts part, to 64 bytes; `parts_at_token` the same as tokens,
    estimated from the reply's bytes a token. `why` says why nothing can be compared.
    """

    compared: int = 0
    same: int = 0
    same_share: Figure | None = None
    parts_at: dict[str, Figure] = {}
    parts_at_token: dict[str, Figure] = {}
    why: str | None = None


def exactness(data: Dataset, a: str, b: str, pair: Pair) -> Exactness:
    """Compare the texts of two arms of one run."""
    why = _incomparable(data, a, b)
    if why:
        return Exactness(why=why)
    left, right = (data.run.requests["output_sha256"].iloc[part.rows.index] for part in (pair.a, pair.b))
    both = (pair.a.rows["ok"].to_numpy(dtype=bool)) & (pair.b.rows["ok"].to_numpy(dtype=bool))
    both &= left.notna().to_numpy() & right.notna().to_numpy()
    if not both.any():
        return Exactness(why="no request has a text in both arms")
    same = (left.to_numpy(dtype=object) == right.to_numpy(dtype=object))[both]
    code, sessions = pair.a.code[both], len(pair.a.sessions)
    out = Exactness(compared=int(both.sum()), same=int(same.sum()), same_share=share_figure(same, code, sessions))
    if not same.all():
        at, token = _parting(data, pair.a.rows[both][~same], pair.b.rows[both][~same])
        for stat, q in (("p10", 0.1), ("p50", 0.5)):
            out.parts_at[stat] = _quantile(at, code[~same], sessions, q, "bytes")
            out.parts_at_token[stat] = _quantile(token, code[~same], sessions, q, "tokens")
    return out


def _incomparable(data: Dataset, a: str, b: str) -> str | None:
    """Arms that share a cache domain are sent different tokens (their salt holds the arm's name)."""
    domains = [data.arm_facts(name).get("cache_domain") for name in data.arms]
    shared = [name for name in (a, b) if domains.count(data.arm_facts(name).get("cache_domain")) > 1]
    known = all(data.arm_facts(name).get("cache_domain") for name in (a, b))
    if known and shared:
        return f"not comparable: {shared[0]} shares its cache with another arm, so its prompts have a salt of their own"
    return None


def _quantile(values: Floats, code: Ints, sessions: int, q: float, unit: str) -> Figure:
    known = ~np.isnan(values)
    order = np.argsort(values[known], kind="stable")
    return quantile_figure(values[known][order], code[known][order], sessions, q, unit)


def _parting(data: Dataset, left: pd.DataFrame, right: pd.DataFrame) -> tuple[Floats, Floats]:
    """Bytes before the texts part, and about how many tokens that is; NaN where a run kept no CRCs."""
    marks = _marks(data.run.table("events"))
    at, token = np.full(len(left), np.nan), np.full(len(left), np.nan)
    key = ["arm", "repeat", "request_id"]
    pairs = zip(
        left[key].itertuples(index=False, name=None), right[key].itertuples(index=False, name=None), strict=True
    )
    tokens = left["completion_tokens"].to_numpy()
    for i, (one, other) in enumerate(pairs):
        mine, its = marks.get(one), marks.get(other)
        if mine is None or its is None or not (len(mine) or len(its)):
            continue
        n = min(len(mine), len(its))
        differ = np.flatnonzero(mine[:n] != its[:n])
        block = int(differ[0]) if len(differ) else n
        at[i] = block * CRC_BYTES
        if len(mine) and tokens[i] >= 1:
            token[i] = min(tokens[i], at[i] / (len(mine) * CRC_BYTES) * tokens[i])
    return at, token


def _marks(events: pa.Table) -> dict[tuple[str, int, str], Ints]:
    """CRCs of each reply by (arm, repeat, request)."""
    import pyarrow.compute as pc

    column = events.column("text_crc").combine_chunks()
    count = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    flat = column.flatten().to_numpy(zero_copy_only=False)
    ends = np.cumsum(count)
    keys = zip(*(events.column(name).to_pylist() for name in ("arm", "repeat", "request_id")), strict=True)
    return {key: flat[end - n : end] for key, end, n in zip(keys, ends.tolist(), count.tolist(), strict=True)}
