"""The experiments behind the simulated claims: made once, kept while the table is made, the same for the same seed."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from pddbench.analyze.dataset import Dataset
from pddbench.claims.experiments import Bench, Size
from pddbench.runfolder.load import Run
from pddbench.scratch import scratch_folder
from pddbench.trace.model import Trace
from pddbench.workload.experiment import Experiment

PDD_REQUESTS = 6000
FIXED_REQUESTS = 1600
ARMS = ({"name": "baseline", "emulated": "baseline"}, {"name": "naive", "emulated": "naive"},
        {"name": "pdd", "emulated": "pdd"})  # fmt: skip


class Scenes:
    """Traces and simulated runs by name; `close` removes what they left on disk."""

    def __init__(self, seed: int = 1, scale: float = 1.0, size: Size = "small") -> None:
        self.seed = seed
        self.bench = Bench(size, seed)
        self._scale = scale
        self._stack = contextlib.ExitStack()
        self._folder = self._stack.enter_context(scratch_folder("claims"))
        self._traces: dict[str, Trace] = {}
        self._runs: dict[str, Dataset] = {}

    def close(self) -> None:
        """Remove the run folders."""
        self._stack.close()
        self.bench.close()

    def requests(self, n: int) -> int:
        """A number of requests, fewer when a quick look is wanted."""
        return max(160, round(n * self._scale))

    def trace(self, name: str) -> Trace:
        """`pdd-agentic`, or `fixed-NN` (64K at NN% hit), or `fixed-NN-1k` (with 1,024 output tokens)."""
        if name not in self._traces:
            self._traces[name] = self._make(name)
        return self._traces[name]

    def _make(self, name: str) -> Trace:
        from pddbench.trace.quota.generate import generate
        from pddbench.trace.quota.presets import fixed, pdd_agentic

        if name == "pdd-agentic":
            n = self.requests(PDD_REQUESTS)
            return generate(pdd_agentic(), n, self.seed)
        _, hit, *rest = name.split("-")
        n = self.requests(FIXED_REQUESTS)
        trace = generate(fixed(n, int(hit) / 100), n, self.seed)
        if rest:
            trace.rows = [msgspec.structs.replace(row, output_tokens=1024) for row in trace.rows]
        return trace

    def run(
        self, name: str, trace: str, arms: tuple[dict[str, Any], ...] = ARMS, *, rate: float = 0.02, **tables: Any
    ) -> Dataset:
        """A simulated run, made when first asked for under this `name`; `tables` are those of an experiment file."""
        if name not in self._runs:
            self._runs[name] = self._simulate(name, trace, arms, rate, tables)
        return self._runs[name]

    def _simulate(
        self, name: str, trace: str, arms: tuple[dict[str, Any], ...], rate: float, tables: dict[str, Any]
    ) -> Dataset:
        from pddbench.runner.prepare import arm_setup
        from pddbench.runner.simulate import counted_run, save_counted
        from pddbench.workload.load import check, convert
        from pddbench.workload.plan import make_plan

        work = {"trace": trace, "arrival": "poisson", "session_rate": rate, "seed": self.seed}
        work |= tables.pop("workload", {})
        experiment: Experiment = convert(
            {"name": name, "workload": work, "wan": {"profile": "national"}, "arm": list(arms), **tables}, name
        )
        check(experiment, name)
        plan = make_plan(self.trace(trace), experiment.workload)
        folder = self._folder / name
        folder.mkdir()
        facts: dict[str, Any] = {}
        for arm in experiment.arm:
            setup = arm_setup(arm, experiment, "model")
            save_counted(folder, arm.name, 1, counted_run(setup, plan, experiment))
            facts[arm.name] = {"emulated": arm.emulated, "block_tokens": setup.block_tokens, "speed": 1.0}
        slo = {key: value for key, value in msgspec.to_builtins(experiment.slo).items() if value is not None}
        return Dataset(Run(folder, {"name": name, "arms": facts, "slo": slo, "simulated": True}))
