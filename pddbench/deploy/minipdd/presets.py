"""What an experiment says about an arm of real servers, as a `MiniSpec`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pddbench.deploy.emulator.spec import CROSSES
from pddbench.deploy.gguf import vocabulary
from pddbench.deploy.minipdd.launch import require_engine
from pddbench.deploy.minipdd.spec import MiniSpec
from pddbench.errors import InputError
from pddbench.wan.backends import PACKET_BACKENDS
from pddbench.wan.link import resolve_link
from pddbench.wan.steps import parse_events
from pddbench.workload.experiment import Arm, Experiment

_UNTOLD = Arm(name="").token_id_range
_MODEL = "pddbench-tiny-random"


def mini_spec(arm: Arm, experiment: Experiment, wan_backend: str) -> MiniSpec:
    """The deployment that an arm asks for. Raises `InputError`."""
    assert arm.deployment is not None
    require_engine()
    options = experiment.llamacpp
    if options.gguf is not None and not _is_gguf(Path(options.gguf)):
        raise InputError(f"[llamacpp] gguf = {options.gguf!r} is not a GGUF file")
    threshold_s = experiment.emulator.threshold_s if arm.threshold_s is None else arm.threshold_s
    if threshold_s < 0:
        raise InputError(f"arm {arm.name!r}: threshold_s = {threshold_s:g} cannot be negative")
    steps = parse_events(experiment.wan.events) if arm.deployment in CROSSES else ()
    if steps and wan_backend not in PACKET_BACKENDS:
        raise InputError(
            f"arm {arm.name!r}: [wan] events of real servers need packets: --wan netem or tun, not {wan_backend}"
        )
    return MiniSpec(
        kind=arm.deployment,
        link_steps=steps,
        link=resolve_link(experiment.wan, wan_backend),
        wan_backend=wan_backend,
        threshold_s=threshold_s,
        served_model=arm.model or _MODEL,
        seed=0,
        **{name: getattr(options, name) for name in options.__struct_fields__},
    )


def completed(arm: Arm, experiment: Experiment) -> Arm:
    """The arm with what is known of the model of our own: its name, and the ids that prompts may hold."""
    told = arm.token_id_range != _UNTOLD
    if experiment.llamacpp.gguf is None:
        free = vocabulary().free_ids
        if told and not free[0] <= arm.token_id_range[0] < arm.token_id_range[1] <= free[1]:
            raise InputError(f"arm {arm.name!r}: token_id_range {list(arm.token_id_range)} is not within {list(free)}")
        return msgspec.structs.replace(
            arm, model=arm.model or _MODEL, token_id_range=arm.token_id_range if told else free
        )
    if not told and experiment.workload.prompt == "token_ids":
        raise InputError(
            f"arm {arm.name!r}: give token_id_range = [low, high): which ids of {experiment.llamacpp.gguf} are plain "
            "tokens is not known here"
        )
    return msgspec.structs.replace(arm, model=arm.model or Path(experiment.llamacpp.gguf).stem)


def _is_gguf(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    except OSError:
        return False
