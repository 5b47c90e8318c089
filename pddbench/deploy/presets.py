"""Chips, models and roles of the emulated deployments, each figure with its source, and an arm's spec made of them.

The laws come from public measurements listed in CLAIMS.md. They are not those of one machine: prefill was measured
with MiniMax-M2.5 on 8xH200, decode with DeepSeek-R1 on H20. An emulator built on them checks mechanisms and arithmetic,
never the chips. Chips A and B differ in price only: TTFT claims need the same decode chip in all arms, and no source
gives the decode law of a second chip (scaling by memory bandwidth, 4.8 / 4.0 TB/s, would be an assumption).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from pddbench.deploy.emulator.spec import CROSSES, Chip, EmulatorSpec, Model, RoleChange, RoleSpec
from pddbench.deploy.hardware import HARDWARE, roofline
from pddbench.errors import InputError, suggest
from pddbench.wan.backends import PACKET_BACKENDS
from pddbench.wan.link import resolve_link, wire_link
from pddbench.wan.steps import parse_events
from pddbench.workload.experiment import Arm, EmulatorOptions, Experiment, Mechanisms, Role

# Extend-decode. What rides in the decode step, by roofline: 2 x 37e9 active parameters (R1) / (8 x 148 TFLOPS (H20),
# half of it achieved: an assumption) = 125 us an id. Fixed part: recompute of 100 tokens took 305 ms in the mean with
# sd 4.8 (C10), so nearly all of it does not depend on the number of ids: 305 - 100 x 0.125 = 292.5 ms, which the other
# streams do not wait for.
_EXTEND_E1_S = 2 * 37e9 / (8 * 148e12 * 0.5)
_EXTEND_E0_S = 0.305 - 100 * _EXTEND_E1_S

_SOURCE = (
    "prefill T(u) = 0.395 + 1.47e-5 u + 1.91e-10 u^2 s, MiniMax-M2.5 on 8xH200 (fit +-5%); "
    "decode 21.4 + 0.91 batch ms, R1 on H20; "
    "a step of chunked prefill as a decode step without streams; "
    "extend-decode: 305 ms for 100 ids (C10) and 2 x 37e9 FLOP an id at half of 8 x 148 TFLOPS"
)


def _chip(name: str) -> Chip:
    return Chip(
        name=name,
        prefill_a_s=0.395,
        prefill_b_s=1.47e-5,
        prefill_c_s=2 * 1.91e-10,  # c u (h + u/2) is 1.91e-10 u^2 without a prefix
        decode_c0_s=21.4e-3,
        decode_c1_s=0.91e-3,
        extend_e0_s=_EXTEND_E0_S,
        extend_e1_s=_EXTEND_E1_S,
        source=_SOURCE,
        prefill_step_s=21.4e-3,
    )


CHIPS = {name: _chip(name) for name in ("A", "B")} | {
    chip.name: chip for chip in (roofline(figures) for figures in HARDWARE.values())
}

_MODELS = (
    Model("deepseek-v3-fp8", 40_016, source="DeepSeek-V3, MLA KV in FP8"),
    Model("deepseek-v3-bf16", 70_272, source="DeepSeek-V3/R1, Kimi-K2: MLA KV in bf16"),
    Model("deepseek-v3.2-fp8", 48_068, source="DeepSeek-V3.2: FP8 KV and index"),
    Model("qwen3-235b", 192_512, source="Qwen3-235B"),
    Model("qwen3-32b", 262_144, source="Qwen3-32B"),
    Model("glm-4.5", 376_832, source="GLM-4.5"),
    Model("minimax-m2", 253_952, source="MiniMax-M2"),
    Model("hybrid-1t", 17_100, 180e6, source="hybrid 1T models: S(n) = 180 MB + 17.1 KB n"),
)
MODELS = {model.name: model for model in _MODELS}

ROLES = {
    "baseline": {"P": ("A", 4), "D": ("A", 4)},
    "naive": {"P": ("A", 4), "D": ("B", 4)},
    "pdd": {"P": ("A", 4), "RLD": ("A", 1), "MD": ("B", 4)},
}

_LIMITS = {
    "speed": (0.001, 1000.0),
    "kv_scale": (1.0, 1e9),
    "threshold_s": (0.0, 1e6),
    "block_tokens": (1, 1 << 20),
    "tokens_per_chunk": (1, 1 << 20),
    "chunk_tokens": (0, 1 << 30),
    "tokens_per_step": (1.0, 64.0),
    "threshold_tokens": (0, 1 << 30),
    "relay_tokens": (0, 1 << 30),
    "singular_tokens": (1, 1 << 30),
    "singular_output_tokens": (1, 1 << 30),
    "kv_flows": (1, 1024),
    "catch_up_tokens": (1, 1 << 20),
    "catch_up_rounds": (1, 1000),
    "switch_load": (0.0, 1e6),
    "fabric_gbit": (0.001, 1e6),
    "extend_us": (0.0, 1e6),
}
_ROLE_LIMITS = {
    "kv_tokens": (1, 1 << 40),
    "max_batch": (1, 1 << 20),
    "cache_tokens": (1, 1 << 40),
    "cache_ttl_s": (0.0, 1e9),
}
_PDD_ONLY = {"policy", "relay_tokens", "route_by", "singular", "singular_tokens", "singular_output_tokens", "handoff",
             "catch_up_tokens", "catch_up_rounds", "switch_load", "threshold_tokens"}  # fmt: skip


def emulator_spec(arm: Arm, experiment: Experiment, wan_backend: str = "model") -> EmulatorSpec:
    """The deployment that an emulated arm of an experiment asks for. Raises `InputError` naming arm and field.

    `wan_backend`: one that works here (`wan.backends.choose`).
    """
    if arm.emulated is None:
        raise InputError(f"arm {arm.name!r} is not an emulated one: it has a base_url")
    options = experiment.emulator
    names = ("speed", "kv_scale", "threshold_s", "drc", "tokens_per_chunk")
    chosen = {name: getattr(options, name) if (own := getattr(arm, name)) is None else own for name in names}
    chosen["block_tokens"] = options.block_tokens if arm.block_tokens is None else arm.block_tokens
    chosen |= _mechanisms(arm, options)
    _check_limits(arm.name, chosen)
    link = resolve_link(experiment.wan, wan_backend)
    if wan_backend in PACKET_BACKENDS:
        wire_link(link, chosen["kv_scale"], chosen["speed"])  # refuses a scale that leaves nothing
        _check_packets(arm.name, chosen)
    extend_us = chosen.pop("extend_us", None)
    roles = _roles(arm, experiment)
    if extend_us is not None:
        roles = {name: _with_extend(role, extend_us / 1e6) for name, role in roles.items()}
    return EmulatorSpec(
        arm=arm.emulated,
        roles=roles,
        model=_model(options.model),
        link=link,
        first_token_from_p=_first_token_from_p(arm, options.first_token_from_p),
        wan_backend=wan_backend,
        served_model=arm.model or "emulated",
        link_steps=parse_events(experiment.wan.events) if arm.emulated in CROSSES else (),
        **chosen,
    )


def _with_extend(role: RoleSpec, token_s: float) -> RoleSpec:
    return msgspec.structs.replace(role, chip=msgspec.structs.replace(role.chip, extend_e1_s=token_s))


def _mechanisms(arm: Arm, options: EmulatorOptions) -> dict[str, Any]:
    """Switches that are given, the arm's own before the common ones."""
    out: dict[str, Any] = {}
    for name in Mechanisms.__struct_fields__:
        own = getattr(arm, name)
        if own is not None and name in _PDD_ONLY and arm.emulated != "pdd":
            raise InputError(f"arm {arm.name!r}: {name} is a matter of pdd arms only")
        value = own if own is not None else getattr(options, name)
        if value is not None:
            out[name] = value
    if "changes" in out:
        roles = ROLES[str(arm.emulated)]
        for change in out["changes"]:
            if change.role not in roles:
                raise InputError(
                    f"arm {arm.name!r}, changes: no role {change.role!r}: {suggest(change.role, list(roles))}"
                )
            if not 0 <= change.at_s < math.inf or not 1 <= abs(change.count) <= 10_000:
                raise InputError(
                    f"arm {arm.name!r}, changes: at_s must be 0 or more, count from -10000 to 10000, not 0"
                )
        there = {name: arm.roles[name].count if name in arm.roles else count for name, (_, count) in roles.items()}
        for change in sorted(out["changes"], key=lambda change: change.at_s):
            if there[change.role] + change.count < 0:
                raise InputError(
                    f"arm {arm.name!r}, changes: {-change.count} {change.role} cannot go at {change.at_s:g} s, "
                    f"{there[change.role]} are there"
                )
            there[change.role] += change.count
        out["changes"] = tuple(RoleChange(change.at_s, change.role, change.count) for change in out["changes"])
    return out


def _check_packets(name: str, chosen: dict[str, Any]) -> None:
    """Over packets a transfer is one fresh connection."""
    for key, plain in (("kv_flows", 1), ("kv_warm", False), ("kv_streaming", False)):
        if chosen.get(key, plain) != plain:
            raise InputError(
                f"arm {name!r}, {key}: over packets each KV transfer is one fresh TCP connection: take "
                '`--wan model`, or [wan] backend = "model"'
            )


def _check_limits(name: str, chosen: dict[str, Any]) -> None:
    for key, (low, high) in _LIMITS.items():
        value = chosen.get(key)
        if value is not None and not low <= value <= high:
            raise InputError(f"arm {name!r}: {key} = {value:g} is out of range: {low:g} to {high:g}")


def _model(name: str) -> Model:
    if name not in MODELS:
        raise InputError(f"[emulator] unknown model {name!r}: {suggest(name, list(MODELS))}")
    return MODELS[name]


def _first_token_from_p(arm: Arm, default: bool) -> bool:
    if arm.first_token_from_p and arm.emulated != "naive":
        raise InputError(f"arm {arm.name!r}: first_token_from_p is a variant of naive only")
    own = arm.first_token_from_p
    return arm.emulated == "naive" and (default if own is None else own)


def _roles(arm: Arm, experiment: Experiment) -> dict[str, RoleSpec]:
    """The arm's roles: its preset, with those it names put in their place."""
    assert arm.emulated is not None
    roles = {name: Role(chip=chip, count=count) for name, (chip, count) in ROLES[arm.emulated].items()}
    for name, role in arm.roles.items():
        if name not in roles:
            raise InputError(f"arm {arm.name!r} has no role {name!r}: {suggest(name, list(roles))}")
        roles[name] = role
    return {name: _role(arm.name, name, role, experiment) for name, role in roles.items()}


def _role(arm: str, role: str, given: Role, experiment: Experiment) -> RoleSpec:
    chip, count = given.chip, given.count
    if chip not in CHIPS:
        raise InputError(f"arm {arm!r}, role {role}: unknown chip {chip!r}: {suggest(chip, list(CHIPS))}")
    if not 1 <= count <= 10_000:
        raise InputError(f"arm {arm!r}, role {role}: count = {count} is out of range: 1 to 10000")
    if experiment.cost.chips and chip not in experiment.cost.chips:
        raise InputError(f"arm {arm!r}, role {role}: [cost] chips has no price for chip {chip!r}")
    bounds = {key: value for key in _ROLE_LIMITS if (value := getattr(given, key)) is not None}
    for key, value in bounds.items():
        low, high = _ROLE_LIMITS[key]
        if not low <= value <= high:
            raise InputError(f"arm {arm!r}, role {role}: {key} = {value:g} is out of range: {low:g} to {high:g}")
    return RoleSpec(CHIPS[chip], count, **bounds)


def table(spec: EmulatorSpec) -> str:
    """One line on an arm's roles: `P 4xA, RLD 1xA, MD 4xB`."""
    return ", ".join(f"{name} {role.count}x{role.chip.name}" for name, role in spec.roles.items())


def with_port(spec: EmulatorSpec, host: str, port: int) -> EmulatorSpec:
    """The same deployment, served at a given address."""
    return msgspec.structs.replace(spec, host=host, port=port)
