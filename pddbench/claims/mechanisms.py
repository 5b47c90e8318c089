"""The claims on mechanisms: which experiments of `workloads/claims` show each, and how they are run at a size."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from pddbench.analyze.dataset import Dataset
from pddbench.claims import bathtub, handoff, policies, transfer
from pddbench.claims.experiments import Bench
from pddbench.claims.model import Found
from pddbench.claims.recipes import SUFFIX

Measure = Callable[[Dataset, Dataset | None], Found]
SEEDS = {"small": 3, "full": 5}
SWEEPS = {"small": 6, "full": 12}  # seeds of a sweep, which takes a second


class Mechanism(msgspec.Struct, frozen=True):
    """A claim: how it is measured, the arms this needs, and the experiment without the cause (`off`), if another."""

    id: str
    measure: Measure
    arms: tuple[str, ...]
    off: str | None = None
    live: bool = True  # whether one run shows it (C11 needs two lines; over packets: `claims.packets`)

    def simulated(self, bench: Bench) -> Found:
        """Measured in virtual time."""
        name = self.id.lower().replace("c", "c0") if len(self.id) == 2 else self.id.lower()
        data = bench.data(name)
        found = self.measure(data, None if self.off is None else bench.data(self.off))
        found.size = size_of(data)
        return found


MECHANISMS = {
    one.id: one
    for one in (
        Mechanism("C5", transfer.c5, ("naive", "no_drc")),
        Mechanism("C6", transfer.c6, ("pdd", "instant_fabric", "slow_fabric")),
        Mechanism("C7", transfer.c7, ("baseline", "naive", "pdd", "relay_off")),
        Mechanism("C9", transfer.c9, ("pdd", "relay_off")),
        Mechanism("C10", handoff.c10, ("pdd", "direct", "direct_warm"), "c10-off"),
        Mechanism("C11", handoff.c11, ("pdd", "direct"), "c11-off", live=False),
        Mechanism("C12", handoff.c12, ("pdd", "one_shot_slow", "one_shot_free", "catch64_slow", "relay_off")),
        Mechanism("C13", handoff.c13, ("one_shot_slow", "catch64_slow")),
        Mechanism("C15", transfer.c15, ("singular_off", "oracle", "predictor"), "c15-off"),
    )
}


def c14(bench: Bench) -> Found:
    """The third pipeline, over seeds."""
    seeds = [policies.Replicate(bench.data("c14", seed=seed), bench.trace("c14", seed))
             for seed in range(bench.seed, bench.seed + SEEDS[bench.size])]  # fmt: skip
    found = policies.c14(seeds)
    found.size = f"{len(seeds)} seeds of {size_of(seeds[0].data)}"
    return found


def _sweeps(bench: Bench, name: str, trace: str) -> list[Dataset]:
    seeds = range(bench.seed, bench.seed + SWEEPS[bench.size])
    return [bench.data(name, seed=seed, trace=f"saturated-sweep-{trace}{SUFFIX}") for seed in seeds]


def c19(bench: Bench) -> Found:
    """Dips of tail chunks, over seeds of lengths."""
    alike = _sweeps(bench, "c19", "alike")
    found = bathtub.c19(alike, _sweeps(bench, "c19", "varied"))
    found.size = f"{len(alike)} seeds of {size_of(alike[0])}"
    return found


def c20(bench: Bench) -> Found:
    """Revenue over the hit rate, over seeds of lengths."""
    alike = _sweeps(bench, "c20", "alike")
    found = bathtub.c20(alike)
    found.size = f"{len(alike)} seeds of {size_of(alike[0])}"
    return found


def size_of(data: Dataset) -> str:
    """Requests, sessions and roles of a run in words."""
    rows = data.arms[data.run.arms[0]].rows
    roles = {str(data.arm_facts(name).get("deployment") or ""): None for name in data.run.arms}
    return f"{len(rows):,} requests, {rows['session_id'].nunique():,} sessions an arm, {len(data.run.arms)} arms" + (
        f" ({'; '.join(filter(None, roles))})" if any(roles) else ""
    )
