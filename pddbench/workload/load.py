"""Reading an experiment file: TOML to `Experiment`, every mistake named by its key before any traffic."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pddbench.errors import InputError, suggest
from pddbench.text import redact_url
from pddbench.workload import experiment as ex

_NAME = re.compile(r"[a-z0-9_-]{1,40}")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`(?: - at `(.*)`)?")
_TABLES: dict[str, type[msgspec.Struct]] = {
    "workload": ex.Workload,
    "slo": ex.Slo,
    "wan": ex.Wan,
    "cost": ex.Cost,
    "emulator": ex.EmulatorOptions,
    "llamacpp": ex.LlamaCppOptions,
    "arm[...]": ex.Arm,
}
ENDPOINTS = ("/v1/completions", "/v1/chat/completions")


def load_experiment(path: Path) -> ex.Experiment:
    """Read and check an experiment file; the trace's path is taken relative to it. Raises `InputError`."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; give an experiment file (see workloads/)") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; give the experiment file inside it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    experiment = convert(data, str(path))
    if experiment.workload.trace:
        experiment.workload.trace = _beside(path, experiment.workload.trace)
    for arm in experiment.arm:
        if arm.tokenizer is not None:
            arm.tokenizer = _beside(path, arm.tokenizer)
    if experiment.llamacpp.gguf is not None:
        experiment.llamacpp.gguf = _beside(path, experiment.llamacpp.gguf)
    check(experiment, str(path))
    return experiment


def _beside(path: Path, name: str) -> str:
    """A file named in an experiment file, relative to that file."""
    return name if Path(name).is_absolute() else str((path.parent / name).resolve())


def convert(data: dict[str, Any], where: str) -> ex.Experiment:
    """Plain data to `Experiment`; unknown keys get a suggestion, wrong types are named by their key."""
    try:
        return msgspec.convert(data, ex.Experiment)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {_explain(str(error))}") from None


def _explain(message: str) -> str:
    """A msgspec message as a sentence in the words of the file."""
    if match := _UNKNOWN.fullmatch(message):
        key, at = match.group(1), (match.group(2) or "$").removeprefix("$").lstrip(".")
        at = re.sub(r"\[\d+\]$", "[...]", at)
        known = _TABLES.get(at, ex.Experiment)
        name = f"[{at.replace('[...]', '')}] " if at else ""
        return f"unknown key {key!r} in {name or 'the file '}({suggest(key, list(known.__struct_fields__))})"
    if " - at `" in message:
        problem, at = message.removesuffix("`").rsplit(" - at `", 1)
        return f"{at.removeprefix('$.').removeprefix('$')}: {problem[0].lower()}{problem[1:]}"
    return message


def _require(condition: bool, where: str, sentence: str) -> None:
    if not condition:
        raise InputError(f"{where}: {sentence}")


def check(experiment: ex.Experiment, where: str) -> None:
    """Everything the types cannot say: ranges, names, combinations. Raises `InputError` at the first fault."""
    _require(
        bool(_NAME.fullmatch(experiment.name)), where, f"name {experiment.name!r}: use 1-40 of a-z, 0-9, '_' and '-'"
    )
    _check_workload(experiment.workload, where)
    _positive(experiment.slo, where, "slo")
    _check_events(experiment.wan.events, where)
    _check_emulator(experiment.emulator, where)
    _check_llamacpp(experiment.llamacpp, where)
    for chip, price in experiment.cost.chips.items():
        _require(0 <= price < math.inf, where, f"cost.chips.{chip} = {price}: a price an hour cannot be negative")
    _require(
        0 <= experiment.cost.line < math.inf, where, f"cost.line = {experiment.cost.line}: a price cannot be negative"
    )
    _require(bool(experiment.arm), where, "no [[arm]]: name at least one deployment under test")
    seen: set[str] = set()
    for arm in experiment.arm:
        _require(arm.name not in seen, where, f"arm {arm.name!r} is named twice: arm names must differ")
        seen.add(arm.name)
        _check_arm(arm, experiment, where)
    _check_speed(experiment, where)


def _check_events(events: list[str], where: str) -> None:
    from pddbench.wan.steps import parse_events

    try:
        parse_events(events)
    except InputError as error:
        raise InputError(f"{where}: [wan] events: {error}") from None


def _positive(table: msgspec.Struct, where: str, name: str) -> None:
    for field in table.__struct_fields__:
        value = getattr(table, field)
        if value is not None:
            _require(0 < value < math.inf, where, f"{name}.{field} = {value}: must be a number above 0")


def _check_workload(work: ex.Workload, where: str) -> None:
    _require(bool(work.trace), where, "workload.trace is empty: give the path of a trace")
    needs_rate = work.arrival != "trace"
    _require(
        not needs_rate or work.session_rate is not None,
        where,
        f"workload.arrival = {work.arrival!r} needs workload.session_rate (sessions a second)",
    )
    _require(
        needs_rate or work.session_rate is None,
        where,
        "workload.session_rate has no effect with arrival = 'trace': set arrival to poisson, gamma or constant",
    )
    _require(
        work.session_rate is None or work.time_scale == 1.0,
        where,
        "workload.session_rate and workload.time_scale exclude each other: the rate already sets the pace",
    )
    _require(
        (work.cache == "steady") == (work.warmup_sessions > 0),
        where,
        "workload.cache = 'steady' and workload.warmup_sessions = N (sessions not measured) belong together",
    )
    _require(
        work.ramp_s is None or needs_rate, where, "workload.ramp_s needs an arrival with a session_rate to rise to"
    )
    _require(
        work.history == "recorded" or work.on_parent_failure != "continue",
        where,
        "workload.history = 'live' cannot continue after a failed request: there is no reply to go on from; leave "
        "on_parent_failure out, or set it to 'abandon'",
    )
    for name in (
        "session_rate",
        "burstiness",
        "time_scale",
        "max_start_rate",
        "stall_timeout_s",
        "request_limit_s",
        "ramp_s",
        "duration_s",
    ):
        value = getattr(work, name)
        _require(value is None or 0 < value < 1e6, where, f"workload.{name} = {value}: must be above 0 (and sane)")
    _require(
        work.warmup_s is None or work.duration_s is not None,
        where,
        "workload.warmup_s is the start of the measured window: give its length too, workload.duration_s",
    )
    _require(
        work.warmup_s is None or 0 <= work.warmup_s < 1e6,
        where,
        f"workload.warmup_s = {work.warmup_s}: must be a number of seconds from 0 on (and sane)",
    )
    _require(
        work.idle_cap_s is None or work.idle_cap_s >= 0,
        where,
        f"workload.idle_cap_s = {work.idle_cap_s}: seconds, cannot be negative",
    )
    for name, least in (
        ("repeats", 1),
        ("limit_requests", 1),
        ("max_concurrency", 1),
        ("workers", 1),
        ("warmups", 0),
        ("seed", 0),
        ("warmup_sessions", 0),
    ):
        value = getattr(work, name)
        _require(value is None or value >= least, where, f"workload.{name} = {value}: must be at least {least}")
    _require(work.repeats <= 1000, where, f"workload.repeats = {work.repeats}: more than 1000 repeats are a mistake")
    _require(work.workers <= 256, where, f"workload.workers = {work.workers}: more than 256 workers are a mistake")


def _check_emulator(options: ex.EmulatorOptions, where: str) -> None:
    for name in ("speed", "kv_scale", "block_tokens", "tokens_per_chunk"):
        value = getattr(options, name)
        _require(value > 0, where, f"emulator.{name} = {value}: must be above 0")
    _require(options.threshold_s >= 0, where, f"emulator.threshold_s = {options.threshold_s}: cannot be negative")


_LLAMACPP_LIMITS = {
    "slots": (1, 256),
    "context_tokens": (64, 1 << 20),
    "threads": (1, 1024),
    "catch_up_tokens": (1, 1 << 20),
}


def _check_llamacpp(options: ex.LlamaCppOptions, where: str) -> None:
    for name, (low, high) in _LLAMACPP_LIMITS.items():
        value = getattr(options, name)
        _require(low <= value <= high, where, f"llamacpp.{name} = {value} is out of range: {low} to {high}")


def _check_arm(arm: ex.Arm, experiment: ex.Experiment, where: str) -> None:
    at = f"arm {arm.name!r}"
    _require(bool(_NAME.fullmatch(arm.name)), where, f"{at}: use 1-40 of a-z, 0-9, '_' and '-' for arm names")
    kinds = [arm.emulated, arm.base_url, arm.engine]
    _require(
        sum(kind is not None for kind in kinds) == 1,
        where,
        f"{at}: give one of emulated = 'baseline' | 'naive' | 'pdd', base_url = 'http://…' and engine = 'llamacpp' "
        "(exactly one)",
    )
    _require(
        (arm.engine is None) == (arm.deployment is None),
        where,
        f"{at}: engine = 'llamacpp' and deployment = 'baseline' | 'naive' | 'pdd' belong together",
    )
    for name, role in arm.roles.items():
        _require(role.count >= 0, where, f"{at}: roles.{name}.count = {role.count}: cannot be negative")
        _require(
            not experiment.cost.chips or role.chip in experiment.cost.chips,
            where,
            f"{at}: roles.{name}.chip = {role.chip!r} has no price in [cost] chips"
            f" ({suggest(role.chip, list(experiment.cost.chips))})",
        )
    if arm.base_url is not None:
        _check_external(arm, experiment.workload, where, at)
    if arm.engine is not None:
        _check_engine(arm, experiment.workload, where, at)


def _check_engine(arm: ex.Arm, work: ex.Workload, where: str, at: str) -> None:
    """What a deployment of real servers cannot do is said, not ignored."""
    from pddbench.deploy.minipdd.spec import ROLES

    assert arm.deployment is not None
    _require(
        work.history == "recorded" or work.prompt == "text",
        where,
        f"{at}: engine = 'llamacpp' does not send the ids of its replies, which history = 'live' needs: set "
        "workload.prompt = 'text', or history = 'recorded'",
    )
    for name in ("speed", "kv_scale", "first_token_from_p", "tokens_per_chunk"):
        _require(getattr(arm, name) is None, where, f"{at}: {name} is for emulated arms only")
    _require(
        not arm.drc, where, f"{at}: drc = true cannot be done with llama.cpp: a slot file holds the whole sequence"
    )
    _require(
        arm.block_tokens in (None, 1), where, f"{at}: block_tokens = {arm.block_tokens}: llama.cpp's block is 1 token"
    )
    for name, role in arm.roles.items():
        known = list(ROLES[arm.deployment])
        _require(name in known, where, f"{at} has no role {name!r} ({suggest(name, known)})")
        _require(
            role.count == 1, where, f"{at}: roles.{name}.count = {role.count}: one llama.cpp server a role is started"
        )


def _check_external(arm: ex.Arm, work: ex.Workload, where: str, at: str) -> None:
    from pddbench.deploy.profiles import PROFILES

    assert arm.base_url is not None
    shown = redact_url(arm.base_url)
    try:
        arm.base_url.encode()
        parts = urlsplit(arm.base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # brackets that do not close, bytes that are no text
        usable = False
    _require(usable, where, f"{at}: base_url {shown!r} is not an http:// or https:// URL")
    try:
        parts.port  # noqa: B018 - reading it validates it
    except ValueError:
        raise InputError(f"{where}: {at}: base_url {shown!r} has an impossible port") from None
    _require(
        arm.metrics_url in (None, "off") or str(arm.metrics_url).startswith(("http://", "https://")),
        where,
        f"{at}: metrics_url {arm.metrics_url!r} is neither an http:// or https:// URL nor 'off'",
    )
    _require(bool(arm.model), where, f"{at}: model is missing: name the model the endpoint serves")
    _require(
        arm.profile in PROFILES,
        where,
        f"{at}: unknown profile {arm.profile!r} ({suggest(arm.profile, list(PROFILES))})",
    )
    _require(
        arm.endpoint in (None, *ENDPOINTS),
        where,
        f"{at}: endpoint {arm.endpoint!r} is not supported: use {' or '.join(ENDPOINTS)}",
    )
    _require(
        work.prompt == "text" or arm.endpoint != "/v1/chat/completions",
        where,
        f"{at}: /v1/chat/completions cannot take token ids: set workload.prompt = 'text'",
    )
    _require(
        work.prompt == "text" or PROFILES[arm.profile].token_ids,
        where,
        f"{at}: profile {arm.profile!r} takes no token ids: set workload.prompt = 'text' (replay: --prompt text)",
    )
    _require(
        work.history == "recorded" or work.prompt == "text" or bool(PROFILES[arm.profile].reply_ids),
        where,
        f"{at}: profile {arm.profile!r} has no way to ask for the ids of a reply, which history = 'live' needs: set "
        "workload.prompt = 'text', or history = 'recorded'",
    )
    _require(
        arm.tokenizer is None or work.prompt == "text",
        where,
        f"{at}: tokenizer is for text prompts: set workload.prompt = 'text'",
    )
    low, high = arm.token_id_range
    _require(0 <= low < high, where, f"{at}: token_id_range [{low}, {high}) must be 0 <= low < high")
    _require(
        arm.block_tokens is None or arm.block_tokens > 0, where, f"{at}: block_tokens = {arm.block_tokens}: must be > 0"
    )
    emulated = ("speed", "kv_scale", "threshold_s", "drc", "first_token_from_p", "tokens_per_chunk")
    for name in (*emulated, *ex.Mechanisms.__struct_fields__):
        _require(getattr(arm, name) is None, where, f"{at}: {name} is for emulated arms only")


def _check_speed(experiment: ex.Experiment, where: str) -> None:
    """One run has one clock: a sped-up emulator cannot stand beside a real endpoint or another speed."""
    speeds = {arm_speed(arm, experiment) for arm in experiment.arm}
    _require(
        len(speeds) == 1,
        where,
        f"arms run at different speeds {sorted(speeds)}: set emulator.speed = 1 to mix emulated arms with real ones",
    )


def arm_speed(arm: ex.Arm, experiment: ex.Experiment) -> float:
    """Experiment seconds a wall second of an arm: 1 for a real endpoint."""
    if arm.emulated is None:
        return 1.0
    return arm.speed if arm.speed is not None else experiment.emulator.speed
