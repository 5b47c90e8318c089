"""What a generated trace is to be: the specification, as Python value and as TOML."""

from __future__ import annotations

import tomllib
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import msgspec

from pddbench.errors import InputError

DEFAULT_EDGES = (0.0, 0.90, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0)


class Law(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A law of lengths (tokens), counts or times (seconds).

    `lognormal` takes `mean` (of what remains between `min` and `max`) and `sigma` (of the logarithm), `exponential` a
    `mean`, `uniform` its `min` and `max`, `fixed` a `mean`; `quantiles` lists pairs (share, value) and interpolates
    the logarithm between them, all times a factor that gives the `mean`, if there is one.
    """

    kind: Literal["lognormal", "exponential", "uniform", "fixed", "quantiles"] = "lognormal"
    mean: float | None = None
    sigma: float = 0.5
    min: float = 0.0
    max: float = 2.0**31 - 1
    points: tuple[tuple[float, float], ...] = ()


class Singular(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests on their own: a very long prompt, a short reply, hardly any hit. `share` of all requests."""

    share: float = 0.0
    input: Law = Law(kind="uniform", min=131_072, max=262_144)
    max_output: int = 499


class SystemPrompts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`count` system prompts that sessions share; a `cold_share` of the sessions has one of its own."""

    count: int = 6
    tokens: Law = Law(mean=14_500, sigma=0.15, min=4_096, max=24_000)
    cold_share: float = 0.0


class LowKinds(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a turn comes to hit less than 90%, as weights.

    `tool`: much new text on the kept context. `edit`: the context is changed somewhere. `compaction`: only the system
    prompt is kept. What the lengths do not allow becomes one of the others; `stretch`: for the sake of its kind a
    prompt may be so many times longer than the law of lengths asked for.
    """

    tool: float = 0.6
    edit: float = 0.15
    compaction: float = 0.25
    stretch: float = 1.3


class Subagents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `share` of the sessions has a sub-agent of `min_turns` to `max_turns` requests beside its main line."""

    share: float = 0.0
    min_turns: int = 3
    max_turns: int = 10


class Eviction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What long breaks do: a cache with time to live `ttl_s` has forgotten the context, and agents rewrite it.

    A `share` of the turns that keep only the system prompt comes after a gap longer than `ttl_s`. Gaps are exchanged
    between turns, so that their laws stay as they are.
    """

    ttl_s: float = 300.0
    share: float = 0.0


class Arrival(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Session starts: a renewal process with gamma gaps; `shape` 1 is Poisson, less than 1 comes in bursts."""

    session_rate: float = 0.02
    shape: float = 1.0


class Service(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Assumed service time, only for the nominal `start_s` of turns: `base_s` + `token_s` x output tokens."""

    base_s: float = 2.0
    token_s: float = 0.02


class QuotaSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trace to be generated.

    `shares` (of all requests) belong to the buckets between `edges` (shares of the input that hit; the last bucket
    includes 1). Hits are those of an infinite cache on the `prompt` basis. `input` is the law of all requests that
    are not singular, but its `mean` is that of *all* requests. All prompts and hits are multiples of `block_tokens`,
    so that an engine with blocks of this size (or a divisor of it) hits exactly what is planned.
    """

    name: str = "custom"
    note: str = ""
    sources: tuple[str, ...] = ()
    edges: tuple[float, ...] = DEFAULT_EDGES
    shares: tuple[float, ...] = (0.160, 0.064, 0.074, 0.079, 0.197, 0.231, 0.195)
    mean_hit: float = 0.90
    input: Law = Law(mean=65_536, sigma=0.55, min=6_000, max=200_000)
    output: Law = Law(mean=512, sigma=1.1, min=1, max=16_384)
    singular: Singular = Singular()
    system: SystemPrompts = SystemPrompts()
    turns: Law = Law(mean=69.4, sigma=0.93, min=1, max=560)
    low_lag1: float = 0.3
    low_kinds: LowKinds = LowKinds()
    user_share: float = 0.06
    tool_gap: Law = Law(mean=20, sigma=1.2, min=0.2, max=1_800)
    user_gap: Law = Law(mean=300, sigma=1.5, min=2, max=7_200)
    eviction: Eviction = Eviction()
    subagents: Subagents = Subagents()
    arrival: Arrival = Arrival()
    service: Service = Service()
    block_tokens: int = 1
    min_fresh_tokens: int = 8


def check_spec(spec: QuotaSpec) -> QuotaSpec:
    """The specification itself, or `InputError` for the first value that cannot be."""
    _check_histogram(spec)
    _check_ranges(spec)
    for name in ("input", "output", "turns", "tool_gap", "user_gap"):
        _check_law(name, getattr(spec, name))
    _check_law("singular.input", spec.singular.input)
    _check_law("system.tokens", spec.system.tokens)
    return spec


def _check_histogram(spec: QuotaSpec) -> None:
    edges, shares = spec.edges, spec.shares
    if len(edges) < 2 or edges[0] != 0 or edges[-1] != 1 or any(a >= b for a, b in pairwise(edges)):
        raise InputError(f"edges {list(edges)} must rise from 0 to 1")
    if len(shares) != len(edges) - 1:
        raise InputError(f"{len(edges)} edges make {len(edges) - 1} buckets, but {len(shares)} shares are given")
    if min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
        raise InputError(f"the shares of the buckets must be at least 0 and sum to 1, not {sum(shares):g}")
    if not 0 <= spec.mean_hit <= 1:
        raise InputError(f"mean_hit {spec.mean_hit:g} is not a share between 0 and 1")


def _check_ranges(spec: QuotaSpec) -> None:
    limits: tuple[tuple[str, float, float, float], ...] = (
        ("singular.share", spec.singular.share, 0, 0.99),
        ("singular.max_output", spec.singular.max_output, 1, 2**31 - 1),
        ("system.count", spec.system.count, 0, 10_000),
        ("system.cold_share", spec.system.cold_share, 0, 1),
        ("low_lag1", spec.low_lag1, 0, 0.95),
        ("user_share", spec.user_share, 0, 1),
        ("low_kinds.stretch", spec.low_kinds.stretch, 1, 1e6),
        ("eviction.ttl_s", spec.eviction.ttl_s, 0, 1e9),
        ("eviction.share", spec.eviction.share, 0, 1),
        ("subagents.share", spec.subagents.share, 0, 1),
        ("subagents.min_turns", spec.subagents.min_turns, 1, 10_000),
        ("subagents.max_turns", spec.subagents.max_turns, spec.subagents.min_turns, 10_000),
        ("arrival.session_rate", spec.arrival.session_rate, 1e-9, 1e9),
        ("arrival.shape", spec.arrival.shape, 1e-2, 1e4),
        ("service.base_s", spec.service.base_s, 0, 3600),
        ("service.token_s", spec.service.token_s, 0, 3600),
        ("block_tokens", spec.block_tokens, 1, 4096),
        ("min_fresh_tokens", spec.min_fresh_tokens, 1, 2**20),
    )
    for name, value, low, high in limits:
        if not low <= value <= high:
            raise InputError(f"{name} = {value:g} is not between {low:g} and {high:g}")
    weights = (spec.low_kinds.tool, spec.low_kinds.edit, spec.low_kinds.compaction)
    if min(weights) < 0 or sum(weights) <= 0:
        raise InputError("low_kinds must be weights of at least 0, one of them above 0")


def _check_law(name: str, law: Law) -> None:
    if not 0 <= law.min <= law.max:
        raise InputError(f"{name}: min {law.min:g} must be between 0 and max {law.max:g}")
    if law.kind in ("lognormal", "exponential", "fixed") and law.mean is None:
        raise InputError(f"{name}: a law of kind {law.kind!r} needs its mean")
    if law.mean is not None and not law.min <= law.mean <= law.max:
        raise InputError(f"{name}: mean {law.mean:g} must lie between min {law.min:g} and max {law.max:g}")
    if law.kind == "lognormal" and not 0 <= law.sigma <= 5:
        raise InputError(f"{name}: sigma {law.sigma:g} is not between 0 and 5")
    if law.kind == "quantiles":
        _check_points(name, law)


def _check_points(name: str, law: Law) -> None:
    shares, values = [p for p, _ in law.points], [v for _, v in law.points]
    if len(shares) < 2 or shares[0] != 0 or shares[-1] != 1 or shares != sorted(set(shares)):
        raise InputError(f"{name}: points must be (share, value) with shares rising from 0 to 1")
    if values[0] <= 0 or values != sorted(values):
        raise InputError(f"{name}: the values of points must be above 0 and not fall")


def load_spec(path: Path | str) -> QuotaSpec:
    """The specification in a TOML file; `InputError` names the file and the key."""
    try:
        with Path(path).open("rb") as file:
            return spec_from_dict(tomllib.load(file), str(path))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not TOML: {error}") from error


def spec_from_dict(fields: dict[str, Any], where: str) -> QuotaSpec:
    """The specification that a TOML document holds; `where` is named in errors."""
    try:
        return check_spec(msgspec.convert(fields, QuotaSpec))
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}") from error
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def dump_spec(spec: QuotaSpec) -> str:
    """The specification as TOML, tables last; `load_spec` reads it back."""
    fields = msgspec.to_builtins(spec)
    lines = [f"{key} = {_toml(value)}" for key, value in fields.items() if not isinstance(value, dict)]
    for key, value in fields.items():
        if isinstance(value, dict):
            lines += _table(key, value)
    return "\n".join(lines) + "\n"


def _table(name: str, fields: dict[str, Any]) -> list[str]:
    lines = ["", f"[{name}]"]
    for key, value in _said(fields).items():
        lines.append(f"{key} = {_inline(value) if isinstance(value, dict) else _toml(value)}")
    return lines


def _inline(fields: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {_toml(value)}" for key, value in _said(fields).items()) + " }"


def _said(fields: dict[str, Any]) -> dict[str, Any]:
    """Without what is not given, and of a law without what its kind does not use."""
    idle = {"sigma"} if fields.get("kind") not in (None, "lognormal") else set()
    return {key: value for key, value in fields.items() if value not in (None, (), []) and key not in idle}


def _toml(value: Any) -> str:
    """Strings and numbers are written alike in JSON and TOML (no null, no infinity occurs here)."""
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return msgspec.json.encode(value).decode()
