"""Token times on their way to Parquet: a hundred million of them must not cost more than the run they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.runfolder.schema import EVENTS, SCHEMA_VERSION, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


class RequestEvents(msgspec.Struct):
    """One request's row of `events`; see the schema."""

    request_id: str
    gaps_us: Sequence[int] = ()
    chunk_tokens: Sequence[int | None] = ()
    stage: Sequence[str | None] = ()
    text_crc: Sequence[int] = ()


def events_table(events: Sequence[RequestEvents], arm: str, repeat: int) -> pa.Table:
    """Rows of `events` as Arrow; numbers go into flat arrays, never through one Python object a row and column."""
    import pyarrow as pa

    schema = _schema()
    columns = {
        "request_id": pa.array([event.request_id for event in events], pa.string()),
        "arm": pa.array([arm] * len(events), pa.string()),
        "repeat": pa.array([repeat] * len(events), pa.int32()),
        "gaps_us": _lists([event.gaps_us for event in events], "int64"),
        "chunk_tokens": _tokens([event.chunk_tokens for event in events]),
        "stage": pa.array([list(event.stage) for event in events], pa.list_(pa.string())),
        "text_crc": _lists([event.text_crc for event in events], "int32"),
    }
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)


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


def _tokens(lists: Sequence[Sequence[int | None]]) -> pa.Array:
    """Tokens of each chunk; where every chunk has one, which is usual, nothing is looked at twice."""
    import numpy as np
    import pyarrow as pa

    if all(tokens.count(1) == len(tokens) for tokens in lists):
        lengths = [len(tokens) for tokens in lists]
        return pa.ListArray.from_arrays(_offsets(lengths), pa.array(np.ones(sum(lengths), dtype=np.int32)))
    return pa.array([list(tokens) for tokens in lists], pa.list_(pa.int32()))


def _lists(lists: Sequence[Sequence[int]], dtype: str) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    lengths = [len(values) for values in lists]
    flat = np.fromiter(chain.from_iterable(lists), dtype=dtype, count=sum(lengths))
    return pa.ListArray.from_arrays(_offsets(lengths), pa.array(flat))


def _offsets(lengths: Sequence[int]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    return pa.array(np.cumsum([0, *lengths], dtype=np.int32))
