"""Names and small files of a run folder's `spool/`: what is needed to finish a run that was killed."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import TypeVar

import msgspec

from pddbench.errors import WorldError
from pddbench.workload.phases import Window
from pddbench.workload.plan import Plan
from pddbench.workload.requests import Requests, as_columns

T = TypeVar("T")
_SPOOL = re.compile(r"([a-z0-9_-]+)\.([0-9]+)(?:\.w[0-9]+)?")


class ArmFacts(msgspec.Struct):
    """What finishing an arm's run needs besides plan and spool. `workers`: processes that share its sessions."""

    arm: str
    repeat: int
    speed: float = 1.0
    block_tokens: int | None = None
    workers: int = 1


def spool_path(folder: Path, arm: str, repeat: int, worker: int | None = None) -> Path:
    """The spool of one run of an arm; of one of its workers, where there are several (numbers count from 0)."""
    part = "" if worker is None else f".w{worker}"
    return folder / "spool" / f"{arm}.{repeat}{part}.spool"


def spool_paths(folder: Path, arm: str, repeat: int) -> list[tuple[int, Path]]:
    """The spools of one run that are there, with the worker that wrote each."""
    single = spool_path(folder, arm, repeat)
    several = [
        (int(path.stem.rpartition(".w")[2]), path) for path in (folder / "spool").glob(f"{arm}.{repeat}.w*.spool")
    ]
    return [(0, single)] if single.exists() else sorted(several)


def save_plan(folder: Path, repeat: int, plan: Plan) -> None:
    """Keep the plan of a repeat next to its spools."""
    path = _plan_path(folder, repeat)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    about = {name: getattr(plan, name) for name in plan.__struct_fields__ if name != "requests"}
    as_columns(plan.requests).save(temporary, about)
    temporary.replace(path)


def load_plan(folder: Path, repeat: int) -> Plan:
    """The plan of a repeat, its requests mapped from the file. Raises `WorldError` when it was not saved."""
    path = _plan_path(folder, repeat)
    try:
        requests, about = Requests.load(path)
        about["window"] = msgspec.convert(about["window"], Window | None)
        return Plan(requests, **about)
    except OSError as error:
        raise _unreadable(path, error) from None
    except (ValueError, TypeError, LookupError, msgspec.MsgspecError) as error:
        raise _damaged(path, error) from None


def _plan_path(folder: Path, repeat: int) -> Path:
    return folder / "spool" / f"plan.{repeat}.bin"


def save_arm(folder: Path, arm: str, repeat: int, speed: float, block_tokens: int | None, workers: int = 1) -> None:
    """Keep the facts of an arm's run next to its spool."""
    facts = ArmFacts(arm, repeat, speed, block_tokens, workers)
    _write(folder / "spool" / f"{arm}.{repeat}.json", msgspec.json.encode(facts))


def load_arm(folder: Path, arm: str, repeat: int) -> ArmFacts:
    """The facts of an arm's run. Raises `WorldError` when they were not saved."""
    return _read(folder / "spool" / f"{arm}.{repeat}.json", msgspec.json.Decoder(ArmFacts))


def spools(folder: Path) -> list[tuple[str, int]]:
    """Arm and repeat of every spool that is still there, sorted."""
    found = set()
    for path in (folder / "spool").glob("*.spool"):
        if name := _SPOOL.fullmatch(path.stem):
            found.add((name[1], int(name[2])))
    return sorted(found, key=lambda run: (run[1], run[0]))


def remove_spool(folder: Path, arm: str, repeat: int) -> None:
    """An arm's run is in place: its spool is not needed any more."""
    for _, path in spool_paths(folder, arm, repeat):
        path.unlink(missing_ok=True)
    (folder / "spool" / f"{arm}.{repeat}.json").unlink(missing_ok=True)


def clear(folder: Path) -> bool:
    """Remove the spool folder when no spool is left in it; whether it is gone."""
    if spools(folder):
        return False
    shutil.rmtree(folder / "spool", ignore_errors=True)
    return True


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)


def _read(path: Path, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(path.read_bytes())
    except OSError as error:
        raise _unreadable(path, error) from None
    except msgspec.MsgspecError as error:
        raise _damaged(path, error) from None


def _unreadable(path: Path, error: OSError) -> WorldError:
    return WorldError(f"cannot read {path}: {error.strerror}; this run cannot be finished without it")


def _damaged(path: Path, error: Exception) -> WorldError:
    return WorldError(f"{path} is damaged ({error}); this run cannot be finished without it")
