"""What each role of an emulated deployment did, request by request: the table `roles` of a run folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pddbench.runfolder.schema import ROLES, arrow_schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from pddbench.deploy.emulator.observe import Events


def save_roles(path: Path, arm: str, repeat: int, parts: Sequence[Events], request_ids: pa.Array, zero_ns: int) -> None:
    """Write the events of a deployment's clusters in order of time; request `rid` has the id `request_ids[rid]`.

    Events of requests whose id is null (nobody's: a probe) are left out. `zero_ns`: the run's t0 on the deployment's
    clock (model time).
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    schema = arrow_schema(ROLES)
    times_s = np.concatenate([np.frombuffer(part.times_s) for part in parts])
    order = np.argsort(times_s, kind="stable")

    def whole(name: str) -> npt.NDArray[np.int64]:
        return np.concatenate([np.frombuffer(getattr(part, name), np.int64) for part in parts])[order]

    names = [pa.array(part.names, pa.string()).take(pa.array(np.frombuffer(part.codes, np.int8))) for part in parts]
    columns = {
        "request_id": request_ids.take(pa.array(whole("rids"))),
        "arm": pa.repeat(arm, len(order)),
        "repeat": pa.array(np.full(len(order), repeat, dtype=np.int32)),
        "t_ns": pa.array(np.rint(times_s[order] * 1e9).astype(np.int64) - zero_ns),
        "event": pa.concat_arrays(names).take(pa.array(order)),
        "instance": pa.array(whole("instances").astype(np.int32)),
        "tokens": pa.array(whole("tokens")),
        "bytes": pa.array(whole("n_bytes")),
    }
    table = pa.table({name: columns[name] for name in schema.names}, schema=schema)
    if request_ids.null_count:
        table = table.filter(pc.is_valid(table["request_id"]))
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, compression="zstd")
