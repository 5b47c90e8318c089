"""Read a finished run folder back: the manifest as a dict, the four tables as pandas DataFrames, each read when asked.

Integers are pandas' nullable `Int64`, so that a time that did not happen stays `<NA>` and never turns into 0 or NaN.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pddbench.errors import InputError
from pddbench.runfolder import schema

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_TABLES = {
    "requests": schema.REQUESTS,
    "events": schema.EVENTS,
    "server": schema.SERVER,
    "health": schema.HEALTH,
    "roles": schema.ROLES,
}


class Run:
    """A run folder. Its tables are DataFrames with the columns of `runfolder.schema`."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path = path
        self.manifest = manifest

    @property
    def arms(self) -> list[str]:
        """Names of the arms in the order of the experiment; the first is what the others are compared with."""
        return list(self.manifest.get("arms", {}))

    @cached_property
    def requests(self) -> pd.DataFrame:
        """One row a planned request, arm and repeat; times in ns of experiment time since t0."""
        return _to_frame(self.table("requests"))

    @cached_property
    def events(self) -> pd.DataFrame:
        """One row a request: gaps between its chunks (µs of experiment time), tokens and stage of each chunk."""
        return _to_frame(self.table("events"))

    @cached_property
    def server(self) -> pd.DataFrame:
        """Counters of the deployments' processes; `t_ns` is wall time."""
        return _to_frame(self.table("server"))

    @cached_property
    def health(self) -> pd.DataFrame:
        """Samples of our own process: loop lag, CPU share, run delay; wall time."""
        return _to_frame(self.table("health"))

    @cached_property
    def roles(self) -> pd.DataFrame:
        """What each role did for each request; emulated arms only, live or simulated."""
        return _to_frame(self.table("roles"))

    def table(self, name: str) -> pa.Table:
        """A table as Arrow, columns cast to the schema; empty when the run wrote none."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        want = schema.arrow_schema(_TABLES[name])
        files = sorted((self.path / name).glob("*.parquet"))
        if not files:
            return want.empty_table()
        table = pa.concat_tables([_conform(pq.read_table(file), want, file) for file in files])
        pa.default_memory_pool().release_unused()  # what reading took besides, several times the table
        return table

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, arms={self.arms})"


def load(path: str | Path) -> Run:
    """The run in `path`, a run folder or a folder that holds exactly one; InputError says what is wrong otherwise."""
    folder = _find(Path(path))
    manifest = _manifest(folder / "manifest.json")
    if not any((folder / "requests").glob("*.parquet")):
        raise InputError(_unfinished(folder))
    return Run(folder, manifest)


def _find(path: Path) -> Path:
    """The run folder that `path` means."""
    if not path.is_dir():
        raise InputError(f"{path}: no such run folder" if not path.exists() else f"{path}: a file, not a run folder")
    if (path / "manifest.json").is_file():
        return path
    inside = sorted(p.parent for p in path.glob("*/manifest.json"))
    if len(inside) == 1:
        return inside[0]
    if inside:
        raise InputError(f"{path}: holds {len(inside)} runs, name one of them (newest: {inside[-1]})")
    raise InputError(f"{path}: not a run folder (no manifest.json in it or one level below)")


def _manifest(file: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: cannot be read as JSON ({error})") from error
    if not isinstance(manifest, dict):
        raise InputError(f"{file}: not a manifest (its top level is no object)")
    found = manifest.get("schema_version", schema.SCHEMA_VERSION)
    if found != schema.SCHEMA_VERSION:
        raise InputError(f"{file}: schema version {found}, this pddbench reads {schema.SCHEMA_VERSION}")
    return manifest


def _unfinished(folder: Path) -> str:
    """The sentence for a folder without rows."""
    if any("spool" in entry.name for entry in folder.iterdir()):
        return f"{folder}: unfinished: run `pddbench recover {folder}`"
    return f"{folder}: no requests/*.parquet in it: the run saved no rows"


def _conform(table: pa.Table, want: pa.Schema, file: Path) -> pa.Table:
    """`table` with the columns of the schema, in its order and types; absent columns are null, further ones dropped."""
    import pyarrow as pa

    try:
        columns = [
            table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(len(table), f.type)
            for f in want
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{file}: a column is not of the schema's type ({error})") from error
    return pa.table(columns, schema=want)


def _to_frame(table: pa.Table) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa

    nullable = {pa.int32(): pd.Int64Dtype(), pa.int64(): pd.Int64Dtype(), pa.string(): pd.StringDtype()}
    frame: pd.DataFrame = table.to_pandas(types_mapper=nullable.get)
    return frame
