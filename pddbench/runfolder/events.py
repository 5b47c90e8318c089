"""Token times on their way to Parquet: a hundred million of them must not cost more than the run they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.runfolder.schema import EVENTS, SCHEMA_VERSION, arrow_schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


class RequestEvents(msgspec.Struct):
    """One request's row of `events`; see the schema. `token_ns`: wall times of its token-bearing chunks."""

    request_id: str
    token_ns: Sequence[int] = ()
    chunk_tokens: Sequence[int | None] = ()
    stage: Sequence[str | None] = ()
    text_crc: Sequence[int] = ()


def events_table(events: Sequence[RequestEvents], arm: str, repeat: int, speed: float = 1.0) -> pa.Table:
    """Rows of `events` as Arrow; numbers go into flat arrays, never through one Python object a row and column.

    `speed`: experiment seconds a wall second.
    """
    import pyarrow as pa

    schema = _schema()
    columns = {
        "request_id": pa.array([event.request_id for event in events], pa.string()),
        "arm": pa.array([arm] * len(events), pa.string()),
        "repeat": pa.array([repeat] * len(events), pa.int32()),
        "gaps_us": _gaps_us([event.token_ns for event in events], speed),
        "chunk_tokens": _tokens([event.chunk_tokens for event in events]),
        "stage": pa.array([list(event.stage) for event in events], pa.list_(pa.string())),
        "text_crc": _lists([event.text_crc for event in events]).cast(pa.list_(pa.int32())),
    }
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


@dataclass(slots=True)
class ChunkRuns:
    """One request's row of `events` as arrays: gaps (us) and tokens of its chunks, and stages as (name, chunks)."""

    request_id: str
    gaps_us: npt.NDArray[np.int64]
    chunk_tokens: npt.NDArray[np.int32]
    stages: list[tuple[str, int]]


def chunk_runs_table(events: Sequence[ChunkRuns], arm: str, repeat: int) -> pa.Table:
    """Rows of `events` as Arrow, from arrays: no Python object a token."""
    import numpy as np
    import pyarrow as pa

    schema = _schema()
    names = sorted({name for event in events for name, _ in event.stages})
    codes = [names.index(name) for event in events for name, _ in event.stages]
    flat = np.repeat(np.array(codes, dtype=np.int32), [count for event in events for _, count in event.stages])
    stage = pa.DictionaryArray.from_arrays(pa.array(flat), pa.array(names, pa.string())).cast(pa.string())
    chunks = _offsets([len(event.chunk_tokens) for event in events])
    columns = {
        "request_id": pa.array([event.request_id for event in events], pa.string()),
        "arm": pa.array([arm] * len(events), pa.string()),
        "repeat": pa.array([repeat] * len(events), pa.int32()),
        "gaps_us": pa.ListArray.from_arrays(
            _offsets([len(event.gaps_us) for event in events]),
            pa.array(_flat([event.gaps_us for event in events], np.int64)),
        ),
        "chunk_tokens": pa.ListArray.from_arrays(
            chunks, pa.array(_flat([event.chunk_tokens for event in events], np.int32))
        ),
        "stage": pa.ListArray.from_arrays(chunks, stage),
        "text_crc": pa.nulls(len(events), pa.list_(pa.int32())),  # no token was made
    }
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


def _flat(arrays: Sequence[npt.NDArray[Any]], dtype: Any) -> npt.NDArray[Any]:
    import numpy as np

    return np.concatenate(arrays) if arrays else np.empty(0, dtype=dtype)


def events_writer(path: Path) -> Any:
    """A Parquet writer for `events`: gaps that resemble each other are kept as differences in few bits."""
    import pyarrow.parquet as pq

    return pq.ParquetWriter(
        path,
        _schema(),
        compression="zstd",
        use_dictionary=["request_id", "arm", "chunk_tokens.list.element", "stage.list.element"],
        column_encoding={"gaps_us.list.element": "DELTA_BINARY_PACKED"},
    )


def _schema() -> pa.Schema:
    return arrow_schema(EVENTS, {"pddbench_schema_version": str(SCHEMA_VERSION)})


def _gaps_us(times: Sequence[Sequence[int]], speed: float) -> pa.Array:
    """Gaps between the times (wall ns) of each row in microseconds of experiment time, all rows at once."""
    import numpy as np
    import pyarrow as pa

    flat: list[int] = []
    for one in times:
        flat += one
    lengths = np.array([len(one) for one in times], dtype=np.int64)
    within = np.ones(max(0, len(flat) - 1), dtype=bool)
    firsts = np.cumsum(lengths)[:-1]  # where the rows after the first begin; the gap before is nobody's
    within[firsts[(firsts > 0) & (firsts < len(flat))] - 1] = False
    gaps_us = np.rint(np.diff(np.array(flat, dtype=np.int64))[within] * (speed / 1000)).astype(np.int64)
    return pa.ListArray.from_arrays(_offsets(np.maximum(lengths - 1, 0).tolist()), pa.array(gaps_us))


def _tokens(lists: Sequence[Sequence[int | None]]) -> pa.Array:
    """Tokens of each chunk; where every chunk has one, which is usual, nothing is looked at twice."""
    import numpy as np
    import pyarrow as pa

    if all(tokens.count(1) == len(tokens) for tokens in lists):
        lengths = [len(tokens) for tokens in lists]
        return pa.ListArray.from_arrays(_offsets(lengths), pa.array(np.ones(sum(lengths), dtype=np.int32)))
    return pa.array([list(tokens) for tokens in lists], pa.list_(pa.int32()))


def _lists(lists: Sequence[Any]) -> pa.Array:
    """Arrays (or sequences) of int64 as one column."""
    import numpy as np
    import pyarrow as pa

    flat = np.concatenate([np.asarray(values, dtype=np.int64) for values in lists]) if lists else np.empty(0, np.int64)
    return pa.ListArray.from_arrays(_offsets([len(values) for values in lists]), pa.array(flat))


def _offsets(lengths: Sequence[int]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.cumsum([0, *lengths], dtype=np.int32))
