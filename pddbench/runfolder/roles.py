"""What each role of a simulated deployment did, request by request: the table `roles` of a run folder."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from pddbench.runfolder.schema import ROLES, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


class RoleLog:
    """Collects events as they happen (it is an `observe.Observer`); times are model seconds."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._codes = array("b")
        self._rids, self._instances, self._tokens, self._bytes = (array("q") for _ in range(4))
        self._times_s = array("d")

    def __call__(self, event: str, rid: int, t_s: float, instance: int, tokens: int, n_bytes: int) -> None:
        """One event of request `rid`."""
        self._codes.append(self._names.setdefault(event, len(self._names)))
        self._rids.append(rid)
        self._times_s.append(t_s)
        self._instances.append(instance)
        self._tokens.append(tokens)
        self._bytes.append(n_bytes)

    def save(self, path: Path, arm: str, repeat: int, request_ids: pa.Array, t0_ns: int) -> None:
        """Write all events in order of time; request `rid` has the id `request_ids[rid]`."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = arrow_schema(ROLES)
        count = len(self._codes)
        t_ns = np.rint(np.array(self._times_s) * 1e9).astype(np.int64) - t0_ns
        names = pa.array(list(self._names), pa.string())
        columns = {
            "request_id": request_ids.take(pa.array(np.array(self._rids, dtype=np.int64))),
            "arm": pa.array([arm] * count, pa.string()),
            "repeat": pa.array(np.full(count, repeat, dtype=np.int32)),
            "t_ns": pa.array(t_ns),
            "event": names.take(pa.array(np.array(self._codes, dtype=np.int8))),
            "instance": pa.array(np.array(self._instances, dtype=np.int32)),
            "tokens": pa.array(np.array(self._tokens, dtype=np.int64)),
            "bytes": pa.array(np.array(self._bytes, dtype=np.int64)),
        }
        table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path, compression="zstd")
