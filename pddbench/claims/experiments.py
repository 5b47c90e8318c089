"""The experiments of `workloads/claims` in virtual time: a file becomes a run folder, each arm simulated once."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

import msgspec

from pddbench.analyze.dataset import Dataset
from pddbench.claims.recipes import trace_for
from pddbench.errors import InputError
from pddbench.runfolder.load import Run
from pddbench.scratch import scratch_folder
from pddbench.trace.model import Trace
from pddbench.workload.experiment import Arm, Experiment
from pddbench.workload.plan import Plan

Size = Literal["small", "full"]
_MOST_GAPS = 3_000_000  # output tokens an arm, above which gaps are not kept (90 bytes each)
_PARTS = ("requests", "events", "health")


def workloads() -> Path:
    """The folder of the experiments: beside the package in a checkout, inside it when installed."""
    inside = Path(__file__).parent / "workloads"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "workloads" / "claims"


class Bench:
    """Experiments of one size. `limit_requests`: only the first of each trace. `close` removes the run folders."""

    def __init__(self, size: Size = "small", seed: int = 1, limit_requests: int | None = None) -> None:
        self.size, self.seed, self.limit_requests = size, seed, limit_requests
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(scratch_folder("claims"))
        self._data: dict[tuple[str, int, int | None], Dataset] = {}
        self._traces: dict[tuple[str, int], Trace] = {}
        self._plans: dict[bytes, Plan] = {}

    def close(self) -> None:
        """Remove what was written."""
        self._stack.close()

    def path(self, name: str) -> Path:
        """The file of an experiment; a size of its own only where there is one."""
        full = workloads() / "full" / f"{name}.toml"
        path = full if self.size == "full" and full.exists() else workloads() / f"{name}.toml"
        if not path.exists():
            raise InputError(f"{path}: no such experiment; use a checkout of pddbench, or reinstall it")
        return path

    def data(
        self,
        name: str,
        *,
        seed: int | None = None,
        limit_requests: int | None = None,
        arms: Collection[str] = (),
        **work: Any,
    ) -> Dataset:
        """The run of an experiment, made when first asked for: all of its arms or those named.

        `work` replaces keys of its `[workload]`.
        """
        seed = self.seed if seed is None else seed
        limit = self.limit_requests if limit_requests is None else limit_requests
        key = (f"{name} {sorted(arms)} {work}", seed, limit)
        if key not in self._data:
            self._data[key] = self._run(name, seed, limit, arms, work)
        return self._data[key]

    def _run(self, name: str, seed: int, limit: int | None, arms: Collection[str], work: dict[str, Any]) -> Dataset:
        from pddbench.workload.load import load_experiment

        experiment = load_experiment(self.path(name))
        experiment.workload.seed = seed
        for key, value in work.items():
            setattr(experiment.workload, key, value)
        if limit is not None:
            experiment.workload.limit_requests = limit
        plan = self._plan(experiment)
        folder = self._folder / f"{name}-{seed}-{len(self._data)}"
        for part in _PARTS:
            (folder / part).mkdir(parents=True)
        chosen = [arm for arm in experiment.arm if not arms or arm.name in arms]
        facts = {arm.name: self._arm(arm, experiment, plan, folder) for arm in chosen}
        slo = {key: value for key, value in msgspec.to_builtins(experiment.slo).items() if value is not None}
        return Dataset(Run(folder, {"name": experiment.name, "arms": facts, "slo": slo, "simulated": True}))

    def _plan(self, experiment: Experiment) -> Plan:
        from pddbench.workload.plan import make_plan

        key = msgspec.json.encode(experiment.workload)
        if key not in self._plans:
            trace = self._trace(experiment.workload.trace, experiment.workload.seed)
            self._plans[key] = make_plan(trace, experiment.workload)
        return self._plans[key]

    def trace(self, name: str, seed: int) -> Trace:
        """The trace of an experiment."""
        from pddbench.workload.load import load_experiment

        return self._trace(load_experiment(self.path(name)).workload.trace, seed)

    def _trace(self, path: str, seed: int) -> Trace:
        if (path, seed) not in self._traces:
            self._traces[path, seed] = trace_for(path, seed)
        return self._traces[path, seed]

    def _arm(self, arm: Arm, experiment: Experiment, plan: Plan, folder: Path) -> dict[str, Any]:
        """Simulate an arm, or take it from the experiment that had the same."""
        from pddbench.deploy.presets import table
        from pddbench.runner.prepare import arm_setup
        from pddbench.runner.simulate import counted_run, save_counted

        setup = arm_setup(arm, experiment, "model")
        same = msgspec.json.encode([arm, experiment.workload, experiment.wan, experiment.emulator])
        kept = self._folder / hashlib.sha256(same).hexdigest()[:16]
        if not kept.exists():
            kept.mkdir()
            tokens = sum(request.output_tokens for request in plan.requests)
            save_counted(kept, arm.name, 1, counted_run(setup, plan, experiment), gaps=tokens <= _MOST_GAPS)
        for part in _PARTS:
            for file in (kept / part).iterdir():
                (folder / part / file.name).hardlink_to(file)
        deployment = "" if setup.spec is None else table(setup.spec)
        return {
            "emulated": arm.emulated, "block_tokens": setup.block_tokens, "speed": 1.0, "deployment": deployment,
        }  # fmt: skip


__all__ = ["Bench", "Size", "workloads"]
