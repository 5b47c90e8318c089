"""Everything that can be known before traffic: the plan, the arms as they will be driven, tokens, cost, duration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from pddbench.deploy.profiles import PROFILES, Profile
from pddbench.errors import InputError
from pddbench.replay.exchange import Target, endpoint_url
from pddbench.replay.headers import request_headers
from pddbench.replay.split import share_of_places, usable_workers
from pddbench.runner.order import cache_domain, palindromic
from pddbench.trace.model import Trace
from pddbench.workload.experiment import Arm, Experiment
from pddbench.workload.load import arm_speed
from pddbench.workload.plan import Plan, make_plan, planned_duration_s
from pddbench.workload.requests import as_columns
from pddbench.workload.tokenizer import single_token_words
from pddbench.workload.words import WORDS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from pddbench.deploy.emulator.spec import EmulatorSpec
    from pddbench.deploy.minipdd.spec import MiniSpec

    Ints = npt.NDArray[np.int64]

_OURS = {"stream", "prompt", "messages", "model", "n", "max_tokens", "max_completion_tokens", "min_tokens"}
_LOOPBACK = ("localhost", "::1")


@dataclass
class ArmSetup:
    """One arm as it will be driven. `url` is None until it is up for an arm that is started here: an emulated one
    (`spec`) or one of real servers (`mini`)."""  # fmt: skip

    arm: Arm
    profile: Profile
    chat: bool
    token_ids: bool
    speed: float
    block_tokens: int | None
    url: str | None = None
    spec: EmulatorSpec | None = None
    mini: MiniSpec | None = None
    words: tuple[str, ...] = WORDS  # of text prompts
    overhead_tokens: int = 0
    turn_overhead_tokens: int = 0  # of each pair of messages more, with live history
    live: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The arm's name."""
        return self.arm.name

    @property
    def fields(self) -> dict[str, Any]:
        """Body fields besides prompt and limit, the arm's own `extra_body` last."""
        ids = self.profile.reply_ids if self.live and self.token_ids else {}
        return {**self.pin, **ids, **self.arm.extra_body}

    pin: dict[str, Any] = field(default_factory=dict)


@dataclass
class Prepared:
    """An experiment ready to run: what will be sent to whom, in which order. `trace` keeps only its header."""

    experiment: Experiment
    trace: Trace
    trace_requests: int
    trace_sha256: str
    plan: Plan
    arms: list[ArmSetup]
    wan_backend: str
    wan: dict[str, Any]

    @property
    def order(self) -> list[tuple[str, int]]:
        """(arm, repeat) in order of execution."""
        return palindromic([setup.name for setup in self.arms], self.experiment.workload.repeats)

    @cached_property
    def workers(self) -> int:
        """Client processes of each run: those asked for, but no more than there are sessions."""
        return usable_workers(self.plan, self.experiment.workload.workers)

    @property
    def speed(self) -> float:
        """Experiment seconds a wall second; one for all arms."""
        return self.arms[0].speed

    def tokens(self) -> tuple[int, int]:
        """Input and output tokens of one arm over all repeats."""
        repeats, requests = self.experiment.workload.repeats, as_columns(self.plan.requests)
        tokens_in, tokens_out = (int(requests.ints(name).sum()) for name in ("input_tokens", "output_tokens"))
        return tokens_in * repeats, tokens_out * repeats

    def cost(self) -> float | None:
        """What the endpoints with known token prices will charge for all repeats; None without any price."""
        tokens_in, tokens_out = self.tokens()
        bills = [
            (setup.arm.cost_per_mtok_input or 0.0) * tokens_in / 1e6
            + (setup.arm.cost_per_mtok_output or 0.0) * tokens_out / 1e6
            for setup in self.arms
            if setup.arm.cost_per_mtok_input is not None or setup.arm.cost_per_mtok_output is not None
        ]
        return sum(bills) if bills else None

    def remote_hosts(self) -> list[str]:
        """Hosts that are not this machine's loopback, where load may cost somebody money."""
        hosts = {urlsplit(setup.arm.base_url).hostname or "" for setup in self.arms if setup.arm.base_url}
        return sorted(host for host in hosts if not is_loopback(host))

    def duration_s(self) -> float:
        """Wall seconds all runs take at least: schedules and think times, without service times."""
        return planned_duration_s(self.plan) / self.speed * len(self.order)


def is_loopback(host: str) -> bool:
    """Whether a URL's host is this machine's loopback."""
    import ipaddress

    if host in _LOOPBACK:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def prepare(experiment: Experiment, wan: str | None = None) -> Prepared:
    """Read the trace, make the plan and set up the arms. Raises `InputError`; sends nothing to anybody.

    `wan`: the backend asked for on the command line; packets are tried in namespaces of our own.
    """
    from pddbench.trace.read import read_as_columns, sha256_of

    work = experiment.workload
    trace = read_as_columns(Path(work.trace), work.format)
    header, requests = trace.header, len(trace)
    plan = make_plan(trace, work)
    backend, wan_facts = _wan(experiment, wan)
    prepared = Prepared(
        experiment=experiment,
        trace=Trace(header, []),  # its rows are in the plan: a million of them need not be kept twice
        trace_requests=requests,
        trace_sha256=sha256_of(Path(work.trace)),
        plan=plan,
        arms=[arm_setup(arm, experiment, backend) for arm in experiment.arm],
        wan_backend=backend,
        wan=wan_facts,
    )
    share_of_places(work.max_concurrency, prepared.workers, 0)  # refused here, before traffic
    if any(setup.mini is not None for setup in prepared.arms):
        _check_context(plan, experiment.llamacpp.context_tokens)
    return prepared


def _check_context(plan: Plan, context_tokens: int) -> None:
    """Real servers refuse what does not fit into a slot; that is known from the plan."""
    requests = as_columns(plan.requests)
    longest = int((requests.ints("input_tokens") + requests.ints("output_tokens")).max())
    if longest > context_tokens:
        raise InputError(
            f"llamacpp.context_tokens = {context_tokens}: the longest request has {longest} tokens, prompt and reply; "
            "raise it, or take a shorter trace"
        )


def _wan(experiment: Experiment, given: str | None) -> tuple[str, dict[str, Any]]:
    """The backend of the run, proved, and what the manifest says of it."""
    from pddbench.deploy.emulator.spec import CROSSES
    from pddbench.wan.backends import PACKET_BACKENDS, choose, named
    from pddbench.wan.link import resolve_link

    name = named(given, experiment.wan.backend)
    link = resolve_link(experiment.wan, "packets")  # wrong names and figures are errors without emulated arms too
    if not any((arm.emulated or arm.deployment) in CROSSES for arm in experiment.arm):
        if (given or experiment.wan.backend) in PACKET_BACKENDS:
            raise InputError(
                f"WAN backend {name!r} is for the link of arms that are started here, and none (naive, pdd) has one: "
                "`pddbench wan exec` runs your own commands on both sides of a link"
            )
        if experiment.wan.events:
            raise InputError(
                "[wan] events change the link of arms that are started here, and none (naive, pdd) has one: leave them "
                "out, or see `pddbench wan exec --event`"
            )
        return "none", {"backend": "none"}
    choice = choose(name)
    link = resolve_link(experiment.wan, choice.backend)
    facts = {field: getattr(choice, field) for field in ("backend", "asked", "reason", "tried")}
    if experiment.wan.events:
        facts["events"] = experiment.wan.events
    return choice.backend, {**facts, "link": msgspec.to_builtins(link), "profile": link.profile}


def arm_setup(arm: Arm, experiment: Experiment, backend: str) -> ArmSetup:
    """How an arm will be driven; missing keys and impossible combinations are errors here, before traffic."""
    text = experiment.workload.prompt == "text"
    exact = experiment.workload.output == "exact"
    if arm.emulated is not None:
        from pddbench.deploy.presets import emulator_spec

        spec = emulator_spec(arm, experiment, backend)
        setup = ArmSetup(arm, PROFILES["emulated"], text, not text, arm_speed(arm, experiment), spec.block_tokens)
        setup.spec = spec
    elif arm.engine is not None:
        from pddbench.deploy.minipdd.presets import completed, mini_spec

        profile = PROFILES["llamacpp"]
        setup = ArmSetup(completed(arm, experiment), profile, text, not text, 1.0, profile.block_tokens)
        setup.mini = mini_spec(arm, experiment, backend)
    else:
        endpoint = arm.endpoint or ("/v1/chat/completions" if text else "/v1/completions")
        profile = PROFILES[arm.profile]
        setup = ArmSetup(arm, profile, endpoint.endswith("/chat/completions"), not text, 1.0, None)
        setup.block_tokens = arm.block_tokens if arm.block_tokens is not None else profile.block_tokens
        setup.url = endpoint_url(str(arm.base_url), endpoint)
        _check_credentials(arm)
    taken = sorted(_OURS & set(arm.extra_body))
    if taken:
        raise InputError(f"arm {arm.name!r}: extra_body must not set {', '.join(taken)}: the plan decides them")
    setup.pin = dict(setup.profile.pin) if exact else {}
    setup.live = experiment.workload.history == "live"
    if arm.tokenizer is not None:
        setup.words = single_token_words(arm.tokenizer)
    setup.facts["cache_domain"] = cache_domain(arm)
    return setup


def _check_credentials(arm: Arm) -> None:
    """The key is there, and there is one credential, not two."""
    given = urlsplit(str(arm.base_url)).username is not None
    named = bool(arm.api_key_env) or any(name.lower() == "authorization" for name in arm.headers)
    if given and named:
        raise InputError(f"arm {arm.name!r}: credentials in base_url and an Authorization header: give one of them")
    request_headers(Target(url=str(arm.base_url), headers=arm.headers, api_key_env=arm.api_key_env))


@dataclass(frozen=True)
class Measured:
    """Columns of the planned requests of phase `measure`; int64, shape (n,) each. `sessions` is their number."""

    input_tokens: Ints
    output_tokens: Ints
    cached_tokens_planned: Ints
    sessions: int

    @classmethod
    def of(cls, plan: Plan) -> Measured:
        """Those of a plan."""
        requests = as_columns(plan.requests)
        rows = requests.is_one_of("phase", ("measure",))
        return cls(
            requests.ints("input_tokens")[rows],
            requests.ints("output_tokens")[rows],
            requests.ints("cached_tokens_planned")[rows],
            len(set(requests.ints("session")[rows].tolist())),
        )

    @property
    def hit_rates(self) -> npt.NDArray[np.float64]:
        """Planned hit of each, as a share of its input."""
        return self.cached_tokens_planned / self.input_tokens

    def hit_histogram(self, edges: Sequence[float]) -> list[int]:
        """How many are in each bucket of planned hit rate (`edges` as shares; the last bucket is closed)."""
        import numpy as np

        counts, _ = np.histogram(self.hit_rates, np.asarray(edges))
        return [int(n) for n in counts]
