"""The experiment file: a workload on several arms (TOML), its types and defaults. Read by `workload.load`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Arrival = Literal["trace", "poisson", "gamma", "constant"]
Timing = Literal["think", "trace", "none"]
ArmKind = Literal["baseline", "naive", "pdd"]
Engine = Literal["llamacpp"]


class _Strict(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A table of the experiment file: unknown keys are errors."""


class Workload(_Strict):
    """A trace and how it is sent. Times in seconds, rates a second; `session_rate` excludes `time_scale` != 1.

    `cache`: `cold` (warm-ups have tokens of their own), `primed` (what sessions share is sent before the start, with
    the run's salt), `steady` (the first `warmup_sessions` of the trace fill the caches, unmeasured).
    """

    trace: str
    format: str | None = None
    arrival: Arrival = "trace"
    session_rate: float | None = None
    burstiness: float = 1.0  # gamma arrivals: shape of the gaps, 1 = Poisson, below 1 burstier
    timing: Timing = "think"  # when a next turn is sent: after reply and gap, as recorded, at once
    idle_cap_s: float | None = None  # no gap inside a session is longer
    time_scale: float = 1.0  # factor on recorded starts and gaps: 0.1 is ten times faster
    prompt: Literal["token_ids", "text"] = "token_ids"  # exact ids, or words
    history: Literal["recorded", "live"] = "recorded"  # live: the endpoint's own replies go into later prompts
    cache: Literal["cold", "primed", "steady"] = "cold"
    output: Literal["exact", "natural"] = "exact"  # pinned lengths, or as the model ends
    on_parent_failure: Literal["continue", "abandon"] | None = None  # default: continue; always abandon with live
    seed: int = 1  # of arrivals and words; salts are always fresh
    repeats: int = 1  # how often each arm runs; the order is palindromic
    limit_requests: int | None = None  # only the first ones of the trace
    warmups: int = 0  # requests with tokens of their own before the start
    warmup_sessions: int = 0  # cache = "steady": the first sessions run as the others do but are not measured
    duration_s: float | None = None  # measure what is due in a window of that length; whole sessions without it
    warmup_s: float | None = None  # start of that window after the first arrival; default: ramp_s, else 0
    ramp_s: float | None = None  # session arrivals rise from nothing to session_rate over this time
    max_start_rate: float | None = None  # requests a second; a brake, never the pacer
    max_concurrency: int | None = None  # requests in flight; a brake too
    workers: int = 1  # client processes; sessions are split whole, brakes in equal parts
    stall_timeout_s: float = 300.0  # no byte for that long: outcome `timeout`
    request_limit_s: float = 3600.0  # no end for that long, whatever bytes come: outcome `timeout`

    @property
    def parent_failure(self) -> Literal["continue", "abandon"]:
        """What happens to the turns after a request that failed; without a reply there is no live history."""
        return "abandon" if self.history == "live" else self.on_parent_failure or "continue"


class Slo(_Strict):
    """Objectives a request must meet, all of those given; milliseconds."""

    ttft_ms: float | None = None
    ttft_sched_ms: float | None = None
    ttst_ms: float | None = None
    max_gap_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    e2e_sched_ms: float | None = None


class Wan(_Strict):
    """The link between the datacentres: a named profile, figures of its own, or a profile with some replaced.

    `backend`: what makes it; `--wan` on the command line goes before.
    """

    backend: Literal["auto", "netem", "tun", "model"] | None = None
    profile: str | None = None  # metro, regional, national, continental or congested
    one_way_ms: float | None = None  # delay each way
    rate_mbit: float | None = None  # of the whole link
    flow_rate_mbit: float | None = None  # what one TCP flow can reach (window, pacing)
    loss_pct: float | None = None  # of packets, each way
    jitter_ms: float | None = None  # standard deviation of the delay
    congestion_control: Literal["cubic", "reno", "bbr"] = "cubic"  # of the connections over the link
    events: list[str] = []  # 'cut AT FOR', 'flap AT DOWN UP TIMES', 'brown-out AT FOR SHARE': seconds of each repeat


class Cost(_Strict):
    """Prices an hour: each chip by name, and the line for arms that use one."""

    chips: dict[str, float] = {}
    line: float = 0.0
    currency: str = "USD"


class Role(_Strict):
    """How many instances of a role an arm has, and on which chip (a name of the cost sheet).

    Of emulated arms also the bounds of one instance: KV memory of running streams and streams at once; and the size of
    the role's prefix cache and the life of its unused blocks. None: no bound.
    """

    chip: str  # a name of [cost] chips
    count: int  # instances
    kv_tokens: int | None = None
    max_batch: int | None = None
    cache_tokens: int | None = None
    cache_ttl_s: float | None = None


class RoleChange(_Strict):
    """Emulated arms: instances of a role that go (`count` below 0) or come, seconds after the deployment's start."""

    at_s: float
    role: str
    count: int


class Mechanisms(_Strict, kw_only=True):
    """What an emulated arm does, each to be switched; None: as `[emulator]` says, else the emulator's default.

    docs/emulator.md has the meaning of each.
    """

    chunk_tokens: int | None = None
    chunk_packing: bool | None = None
    tokens_per_step: float | None = None
    rld_cache: bool | None = None
    placement: Literal["pool", "prefix", "session", "least_loaded"] | None = None
    md_placement: Literal["pool", "prefix"] | None = None
    threshold_tokens: int | None = None
    policy: Literal["two", "three"] | None = None
    relay_tokens: int | None = None
    route_by: Literal["md", "p"] | None = None
    singular: Literal["off", "oracle", "predictor"] | None = None
    singular_tokens: int | None = None
    singular_output_tokens: int | None = None
    count_in_flight: bool | None = None
    kv_flows: int | None = None
    kv_warm: bool | None = None
    kv_streaming: bool | None = None
    cancel_finished: bool | None = None
    handoff: Literal["one_shot", "catch_up", "dynamic", "direct_kv"] | None = None
    catch_up_tokens: int | None = None
    catch_up_rounds: int | None = None
    switch_load: float | None = None
    fabric_gbit: float | None = None
    extend_us: float | None = None  # of the step in which an id is recomputed; None: the chip's
    changes: list[RoleChange] | None = None


class EmulatorOptions(Mechanisms):
    """Settings common to all emulated arms; an arm may replace any of them.

    `speed`: experiment seconds a wall second. `kv_scale` divides the KV bytes really sent and the link's real rate.
    `threshold_s`: predicted transfer time above which a request goes P-RLD-MD, seconds.
    """

    speed: float = 1.0
    kv_scale: float = 100.0
    model: str = "deepseek-v3-fp8"
    block_tokens: int = 64
    threshold_s: float = 0.4
    drc: bool = True  # decode-side radix cache: only un-hit KV crosses the WAN
    first_token_from_p: bool = False  # naive only: P sends the first token, the second waits
    tokens_per_chunk: int = 1


class LlamaCppOptions(_Strict):
    """Settings common to all arms with `engine = "llamacpp"`: real servers on this machine (docs/engines.md).

    `slots`, `context_tokens` (of a slot) and `threads` are those of each server. `gguf`: a model file; without one a
    tiny model with random weights is made. `handoff`: `auto` hands over at once up to `catch_up_tokens` eager tokens,
    else in rounds of catching up.
    """

    slots: int = 4
    context_tokens: int = 8192
    threads: int = 1
    flash_attention: bool = False
    kv_type: Literal["f16", "f32"] = "f32"
    handoff: Literal["auto", "one_shot", "catch_up"] = "auto"
    catch_up_tokens: int = 64
    gguf: str | None = None


class Arm(Mechanisms):
    """One deployment under test: an emulated one (`emulated`), one of real servers that are started here (`engine` and
    `deployment`), or any live OpenAI-compatible endpoint (`base_url`)."""  # fmt: skip

    name: str
    emulated: ArmKind | None = None  # this, or engine and deployment, or base_url
    engine: Engine | None = None  # real servers that are started here
    deployment: ArmKind | None = None  # which arrangement of them
    base_url: str | None = None  # of a live endpoint, with or without /v1
    model: str | None = None
    endpoint: str | None = None  # /v1/completions or /v1/chat/completions; default by `prompt`
    profile: str = "openai"
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    extra_body: dict[str, Any] = {}
    cache_domain: str | None = None
    token_id_range: tuple[int, int] = (1000, 30000)  # [low, high) ids free of special tokens
    tokenizer: str | None = None  # tokenizer.json: text prompts exact to the token (extra `text`)
    block_tokens: int | None = None  # block size of the endpoint's prefix cache; None: not known
    metrics_url: str | None = None  # the endpoint's counters; default: /metrics beside its /v1; "off": none
    cost_per_mtok_input: float | None = None  # what a million input tokens cost there
    cost_per_mtok_output: float | None = None  # what a million output tokens cost there
    roles: dict[str, Role] = {}  # what is deployed, for the cost
    seam_free: bool | None = None  # never hands a reply over: the control that blind seam detection is calibrated on
    line: bool | None = None  # whether the WAN line is part of this arm's cost; default: naive and pdd
    speed: float | None = None
    kv_scale: float | None = None
    threshold_s: float | None = None
    drc: bool | None = None
    first_token_from_p: bool | None = None
    tokens_per_chunk: int | None = None


class Experiment(_Strict):
    """A workload on several arms, repeated, with objectives, link, prices and checks."""

    name: str
    workload: Workload
    arm: list[Arm]
    slo: Slo = msgspec.field(default_factory=Slo)
    wan: Wan = msgspec.field(default_factory=Wan)
    cost: Cost = msgspec.field(default_factory=Cost)
    emulator: EmulatorOptions = msgspec.field(default_factory=EmulatorOptions)
    llamacpp: LlamaCppOptions = msgspec.field(default_factory=LlamaCppOptions)
    check: dict[str, Literal["fail", "warn"]] = {}
    allow: list[str] = []
