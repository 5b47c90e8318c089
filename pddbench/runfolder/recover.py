"""Finish the run folder of a run that was killed: spools become Parquet, and the manifest says `partial`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pddbench.errors import InputError, WorldError
from pddbench.runfolder import finish


class Recovered(msgspec.Struct):
    """What became of one run of an arm: how many of its planned requests had been sent, or why it is lost."""

    arm: str
    repeat: int
    planned: int = 0
    sent: int = 0
    in_flight: int = 0
    torn_bytes: int = 0
    exact_timer: bool | None = None
    workers: int = 1
    reader: str = "unknown"
    error: str | None = None

    @property
    def sentence(self) -> str:
        """For a person."""
        if self.error is not None:
            return f"{self.arm}.{self.repeat}: not recovered: {self.error}"
        said = f"{self.arm}.{self.repeat}: recovered {self.sent} of {self.planned} requests"
        said += f", {self.in_flight} of them in flight when the run was killed" if self.in_flight else ""
        return said + (f"; {self.torn_bytes} bytes of an unfinished write dropped" if self.torn_bytes else "")


def recover(folder: Path) -> list[Recovered]:
    """Finish every arm that left a spool. One that cannot be finished does not stop the others.

    Raises `InputError` when `folder` is not a run folder, or its run is still going on.
    """
    manifest = _manifest(folder)
    runs = finish.spools(folder)
    out = [_finish(folder, arm, repeat) for arm, repeat in runs]
    if out:
        manifest["partial"] = True
        known = {(run.get("arm"), run.get("repeat")) for run in manifest.setdefault("runs", [])}
        for one in out:
            if one.error is None and (one.arm, one.repeat) not in known:
                manifest["runs"].append(_record(one))
        _save(folder, manifest)
    finish.clear(folder)
    return out


def _record(one: Recovered) -> dict[str, Any]:
    """What the manifest of a run that came to its end says of it, as far as the spool knows."""
    record = {"arm": one.arm, "repeat": one.repeat, "status": "killed", "recovered": True, "workers": one.workers,
              "reader": one.reader}  # fmt: skip
    return record | ({} if one.exact_timer is None else {"exact_timer": one.exact_timer})


def missing(folder: Path) -> list[str]:
    """Runs of the manifest's order that left nothing: they never began."""
    order = _manifest(folder).get("order", [])
    names = [f"{arm}.{repeat}" for arm, repeat in order]
    return [name for name in names if not (folder / "requests" / f"{name}.parquet").exists()]


def _finish(folder: Path, arm: str, repeat: int) -> Recovered:
    from pddbench.replay.spool import is_being_written

    for _, path in finish.spool_paths(folder, arm, repeat):
        if is_being_written(path):
            raise InputError(f"{path} is being written: the run is still going on; stop it first")
    out = Recovered(arm, repeat)
    try:
        found = finish.open_spools(folder, arm, repeat, 0)
        out.planned, out.torn_bytes = found.planned, found.torn_bytes
        out.sent, out.in_flight = found.count_sent()
        out.exact_timer, out.workers = found.exact_timer, finish.load_arm(folder, arm, repeat).workers
        out.reader = found.reader or "unknown"
        found.close()
        finish.finish_arm(folder, arm, repeat)
    except WorldError as error:
        out.error = str(error)
    return out


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = msgspec.json.decode(path.read_bytes())
    except OSError:
        raise InputError(f"{folder} is not a run folder: it has no manifest.json that can be read") from None
    except msgspec.MsgspecError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if not isinstance(manifest, dict):
        raise InputError(f"{path} is damaged: it holds no JSON object")
    return manifest


def _save(folder: Path, manifest: dict[str, Any]) -> None:
    temporary = folder / "manifest.json.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    temporary.replace(folder / "manifest.json")
