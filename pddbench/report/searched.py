"""A finished capacity search as the reports use it: read, priced, and found beside the run of the same experiment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from pddbench.analyze import sensitivity
from pddbench.analyze.capacity import Estimate
from pddbench.analyze.sensitivity import Deployment, Grid
from pddbench.errors import InputError
from pddbench.runner.capacity import FILE, State

_MOST_BYTES = 32_000_000
_MOST_FOLDERS = 500


class Beside(NamedTuple):
    """A search of the experiment that a run belongs to. `link`: its page from the run's own folder, if it is there."""

    folder: str
    link: str | None
    state: State


def is_search(folder: Path) -> bool:
    """Whether `folder` is one of `pddbench capacity` and not a run."""
    return (folder / FILE).is_file() and not (folder / "manifest.json").exists()


def read(folder: Path) -> State:
    """The state of the search in `folder` (or in that file). Raises `InputError`."""
    file = folder / FILE if folder.is_dir() else folder
    try:
        return msgspec.json.decode(file.read_bytes(), type=State)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); give the folder of `pddbench capacity`") from None
    except msgspec.MsgspecError as error:
        raise InputError(f"{file}: not the state of a capacity search ({error})") from None


def deployment(name: str, state: State) -> Deployment:
    """An arm's capacity and what it is made of."""
    found = state.arms[name]
    nothing = Estimate(target=state.target, rate=None, low=None, high=None, isotonic=None, runs=0, dispersion=1.0)
    return Deployment(name=name, estimate=found.estimate or nothing, roles=found.roles, uses_line=found.uses_line)


def grids(state: State, prices: dict[str, float], line: float) -> list[Grid]:
    """The sensitivity of each arm's BCR against the first's; none where prices, roles or capacities are missing."""
    known = [one for one in (deployment(name, state) for name in state.arms) if one.estimate.rate and one.roles]
    known = [one for one in known if set(sensitivity.chips(one.roles)) <= set(prices)]
    if not known or known[0].name != next(iter(state.arms)):
        return []
    return [sensitivity.grid(one, known[0], prices, line) for one in known[1:]]


def beside(folder: Path, summary: dict[str, Any]) -> Beside | None:
    """The latest search of the same experiment: in `capacity/` of the run's folder, or in a folder next to it.

    The same: its name, its objectives, and the cost of every arm that both have.
    """
    own = folder.resolve()
    candidates = [own / "capacity"]
    try:
        candidates += sorted(path for path in own.parent.iterdir() if path.is_dir() and path != own)[-_MOST_FOLDERS:]
    except OSError:
        pass  # a folder that cannot be listed has nothing beside it
    found = [(path, state) for path in candidates if (state := _matching(path, summary)) is not None]
    if not found:
        return None
    path, state = max(found, key=lambda one: (one[0] / FILE).stat().st_mtime_ns)
    page = path / "report.html"
    link = Path(os.path.relpath(page, own)).as_posix() if page.is_file() else None
    return Beside(folder=path.name, link=link, state=state)


def _matching(folder: Path, summary: dict[str, Any]) -> State | None:
    try:
        if (folder / FILE).stat().st_size > _MOST_BYTES:
            return None
        state = read(folder)
    except (OSError, InputError):
        return None  # not there, or not one: the run's report stands without it
    common = set(state.arms) & set(summary["arms"])
    same = state.name == summary["run"]["name"] and state.slo == summary["run"]["slo"]
    costs = all(state.arms[arm].cost_per_hour == summary["arms"][arm]["cost_per_hour"] for arm in common)
    return state if same and common and costs else None
