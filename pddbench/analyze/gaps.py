"""Gaps between chunks and tokens, pooled over requests, and the stall at the seam: from `events`, without a loop.

All gaps of a run lie in one flat array, each with the row of `requests` it belongs to, the tokens of the chunk that
ended it (NaN when not known) and the stage that produced this chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pddbench.analyze.quantiles import Bools, Floats, Ints

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SEAM_SIDE = 16  # gaps looked at on each side of the seam
SEAM_LEAST = 8  # with fewer the stall is null


@dataclass(frozen=True)
class Gaps:
    """Flat arrays over all gaps. `start[i]`, `count[i]` are where request row i's gaps lie (count 0: none)."""

    gap_s: Floats
    row: NDArray[np.int32]
    tokens: NDArray[np.float32]
    first_token: NDArray[np.float32]  # 0-based index of the first token after the gap; NaN when not known
    stage: NDArray[np.int8]  # index into `stages`, -1: not said
    stages: tuple[str, ...]
    start: Ints
    count: Ints
    single: bool = False  # every chunk is known to be one token


def flat_gaps(events: pa.Table, metrics: pd.DataFrame) -> Gaps:
    """All gaps of `events`, matched to the rows of `metrics` by (arm, repeat, request_id)."""
    row = _row_of(events, metrics)
    if (row < 0).any():
        events, row = events.filter(row >= 0), row[row >= 0]
    gap_us, start, count = _list(events, "gaps_us")
    at, place = _expand(row, count)
    tokens = _chunk_tokens(events, row, count, place, metrics)
    stage, stages = _stages(events, count, place)
    starts, counts = np.zeros(len(metrics), dtype=np.int64), np.zeros(len(metrics), dtype=np.int64)
    starts[row], counts[row] = start, count
    gap_us /= 1e6
    single = bool((tokens[0] == 1).all())
    return Gaps(gap_us, at, tokens[0], tokens[1], stage, stages, starts, counts, single)


def _row_of(events: pa.Table, metrics: pd.DataFrame) -> Ints:
    """Row of `metrics` of each event row, -1 for none."""
    import pandas as pd

    keys = ["arm", "repeat", "request_id"]
    index = pd.MultiIndex.from_frame(metrics[keys].astype({"repeat": "int64"}))
    wanted = pd.MultiIndex.from_frame(events.select(keys).to_pandas().astype({"repeat": "int64"}))
    found: Ints = index.get_indexer(wanted).astype(np.int64)
    return found


def _list(events: pa.Table, name: str) -> tuple[Floats, Ints, Ints]:
    """Flat values (null as NaN), and where each row's lie; a null list is an empty one."""
    import pyarrow.compute as pc

    column = events.column(name).combine_chunks()
    count = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    values: Floats = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    return values, np.cumsum(count) - count, count


def _expand(row: Ints, count: Ints) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """For each gap: the request row it belongs to, and its place among that request's gaps."""
    begin = np.cumsum(count) - count
    place = np.arange(int(count.sum()), dtype=np.int64)
    place -= np.repeat(begin, count)
    return np.repeat(row.astype(np.int32), count), place.astype(np.int32)


def _chunk_tokens(
    events: pa.Table, row: Ints, count: Ints, place: NDArray[np.int32], metrics: pd.DataFrame
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Tokens of the chunk after each gap, and the index of its first token.

    Known where the recorder counted them chunk by chunk, or where the reply has as many tokens as chunks.
    """
    values, start, length = _list(events, "chunk_tokens")
    told = length == count + 1
    if told.all() and len(values) and values.min() == 1.0 == values.max():  # NaN is neither
        return np.ones(len(place), dtype=np.float32), (place + 1).astype(np.float32)
    one_each = (metrics["chunks"] == metrics["completion_tokens"]).to_numpy()[row] & ~told
    upto = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values))])
    unknown = np.concatenate([[0], np.cumsum(np.isnan(values))])
    base = np.repeat(start, count)
    at = np.minimum(base + place + 1, max(0, len(values) - 1))
    known = np.repeat(told, count)
    tokens = np.where(known, values[at] if len(values) else np.nan, np.where(np.repeat(one_each, count), 1.0, np.nan))
    before = np.where(unknown[at] == unknown[np.minimum(base, len(values))], upto[at] - upto[base], np.nan)
    first = np.where(known, before, np.where(np.repeat(one_each, count), place + 1.0, np.nan))
    return tokens.astype(np.float32), first.astype(np.float32)


def _stages(events: pa.Table, count: Ints, place: NDArray[np.int32]) -> tuple[NDArray[np.int8], tuple[str, ...]]:
    """Stage of the chunk after each gap, where the endpoint says it for every chunk."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = events.column("stage").combine_chunks()
    length = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    coded = column.flatten().dictionary_encode()
    coded = coded if isinstance(coded, pa.DictionaryArray) else coded.combine_chunks()
    code = pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    if len(code) == 0:
        return np.full(len(place), -1, dtype=np.int8), ()
    at = np.minimum(np.repeat(np.cumsum(length) - length, count) + place + 1, len(code) - 1)
    stage = np.where(np.repeat(length == count + 1, count), code[at], -1)
    return stage.astype(np.int8), tuple(str(name).lower() for name in coded.dictionary.to_pylist())


def seam_gap(gaps: Gaps, handoff_token: Floats) -> Ints:
    """Flat index of the gap before `handoff_token` (the first MD token) of each request row; -1 where there is none.

    Where tokens per chunk are not known the seam is the first change of stage to `md`, if stages are told.
    """
    if np.isnan(handoff_token).all():
        return np.full(len(gaps.start), -1, dtype=np.int64)
    wanted = handoff_token[gaps.row]
    holds = (gaps.first_token <= wanted) & (wanted < gaps.first_token + gaps.tokens)
    if "md" in gaps.stages:
        md = gaps.stage == gaps.stages.index("md")
        after_rld = np.zeros(len(md), dtype=bool)
        after_rld[1:] = ~md[:-1] & (gaps.row[1:] == gaps.row[:-1])
        holds |= np.isnan(gaps.tokens) & ~np.isnan(wanted) & md & after_rld
    found = np.full(len(gaps.start), -1, dtype=np.int64)
    places = np.flatnonzero(holds)
    found[gaps.row[places][::-1]] = places[::-1]  # the first one, should there be several
    return found


def seam_stall(gaps: Gaps, seam: Ints) -> Floats:
    """Stall in seconds per request row: the seam's gap - max(median of 16 gaps before, of 16 after).

    May be negative; NaN without a seam or with fewer than 8 gaps on a side.
    """
    stall = np.full(len(seam), np.nan)
    rows = np.flatnonzero(seam >= 0)
    before = _beside(gaps, rows, seam[rows], -1)
    after = _beside(gaps, rows, seam[rows], +1)
    enough = (np.isfinite(before).sum(axis=1) >= SEAM_LEAST) & (np.isfinite(after).sum(axis=1) >= SEAM_LEAST)
    rows, before, after = rows[enough], before[enough], after[enough]
    if len(rows):
        usual = np.maximum(np.nanmedian(before, axis=1), np.nanmedian(after, axis=1))
        stall[rows] = gaps.gap_s[seam[rows]] - usual
    return stall


def _beside(gaps: Gaps, rows: Ints, seam: Ints, step: int) -> Floats:
    """(rows, 16) gaps next to the seam on one side, NaN where the stream has no more."""
    at = seam[:, None] + step * np.arange(1, SEAM_SIDE + 1)
    low, high = gaps.start[rows][:, None], (gaps.start + gaps.count)[rows][:, None]
    inside = (at >= low) & (at < high)
    return np.where(inside, gaps.gap_s[np.clip(at, 0, max(0, len(gaps.gap_s) - 1))], np.nan)


def token_gaps(gaps: Gaps, mask: Bools) -> tuple[Floats, Ints]:
    """Per-token gaps (gap/k, k times) of the gaps in `mask` with known tokens, and the request row of each."""
    use = mask & (gaps.tokens >= 1)
    k = gaps.tokens[use].astype(np.int64)
    return np.repeat(gaps.gap_s[use] / k, k), np.repeat(gaps.row[use], k)
