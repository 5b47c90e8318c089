"""Specs of small emulated deployments."""

from __future__ import annotations

import msgspec

from pddbench.deploy.presets import emulator_spec
from pddbench.workload.experiment import Arm, EmulatorOptions, Experiment, Wan, Workload


def build_spec(kind, *, wan=None, wan_backend="model", **changes):
    """The preset of an arm with some of its fields changed."""
    experiment = Experiment(
        name="test",
        workload=Workload(trace=""),
        arm=[Arm(name="arm", emulated=kind)],
        wan=Wan(**(wan or {})),
        emulator=EmulatorOptions(),
    )
    return msgspec.structs.replace(emulator_spec(experiment.arm[0], experiment, wan_backend), **changes)
