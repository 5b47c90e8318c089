"""`pddbench up ARM --engine llamacpp`: the same deployments of real servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pddbench.cli.common import options as joined
from pddbench.cli.serving import keep_up, link_of, say_json
from pddbench.errors import InputError

if TYPE_CHECKING:
    from pddbench.deploy.minipdd.launch import MiniDeployment
    from pddbench.workload.experiment import Experiment

F = TypeVar("F", bound=Callable[..., Any])
_OWN = ("slots", "context_tokens", "threads", "gguf", "handoff", "catch_up_tokens", "kv_type")
_FOR_BOTH = ("no_drc", "wan_profile", "one_way_ms", "rate_mbit", "flow_rate_mbit", "threshold_s", "model")


def engine_options(function: F) -> F:
    """What chooses the engine, and the settings of llama.cpp's servers."""
    return joined(
        click.option("--engine", type=click.Choice(["emulator", "llamacpp"]), default="emulator", show_default=True,
                     help="llamacpp: real servers on this machine."),
        click.option("--slots", type=int, help="llamacpp: slots of each server.  [default: 4]"),
        click.option("--context-tokens", type=int, help="llamacpp: context of a slot.  [default: 8192]"),
        click.option("--threads", type=int, help="llamacpp: threads of each server.  [default: 1]"),
        click.option("--gguf", help="llamacpp: a model file.  [default: a tiny one is made]"),
        click.option("--kv-type", type=click.Choice(["f32", "f16"]), help="llamacpp: KV cache.  [default: f32]"),
        click.option("--flash-attention", is_flag=True, help="llamacpp: flash attention (tokens are not exact)."),
        click.option("--handoff", type=click.Choice(["auto", "one_shot", "catch_up"]),
                     help="llamacpp: how ids are handed over.  [default: auto]"),
        click.option("--catch-up-tokens", type=int, help="llamacpp: ids that are few enough.  [default: 64]"),
    )(function)  # fmt: skip


def serves_engine(options: dict[str, Any]) -> bool:
    """Whether real servers are asked for; takes the engine's options out when not. Raises `InputError`."""
    if options.pop("engine") == "llamacpp":
        return True
    given = {name: options.pop(name) for name in _OWN} | {"flash_attention": options.pop("flash_attention")}
    for name, value in given.items():
        if value:
            raise InputError(f"--{name.replace('_', '-')} is for --engine llamacpp")
    return False


def serve_engine(arm: str, port: int, host: str, backend: str, *, as_json: bool, options: dict[str, Any]) -> int:
    """Serve until a signal; returns its exit code."""
    import msgspec

    from pddbench.deploy.minipdd.launch import MiniDeployment
    from pddbench.deploy.minipdd.presets import mini_spec
    from pddbench.runner.signals import Waiter
    from pddbench.wan.backends import choose, named
    from pddbench.workload.load import check

    experiment = _experiment(arm, options)
    check(experiment, "command line")
    backend = "model" if arm == "baseline" else choose(named(None if backend == "auto" else backend)).backend
    spec = msgspec.structs.replace(mini_spec(experiment.arm[0], experiment, backend), host=host, port=port)
    stop = Waiter()
    with MiniDeployment(spec) as deployment:
        if as_json:
            say_json(arm, deployment.base_url, spec.served_model, spec)
        else:
            _announce(deployment)
        return keep_up(deployment, stop)


def _experiment(arm: str, options: dict[str, Any]) -> Experiment:
    """The one-arm experiment that the options stand for."""
    from pddbench.workload.experiment import Arm, Experiment, LlamaCppOptions, Workload

    given = {name: value for name, value in options.items() if value is not None and value is not False}
    for name in given:
        if name not in (*_OWN, *_FOR_BOTH, "flash_attention"):
            raise InputError(f"--{name.replace('_', '-')} is for emulated deployments only")
    wan = link_of(given)
    own = {name: given[name] for name in (*_OWN, "flash_attention") if name in given}
    return Experiment(
        name="up",
        workload=Workload(trace="none"),  # nothing is replayed here
        arm=[Arm(name=arm, engine="llamacpp", deployment=arm, model=given.get("model"),  # type: ignore[arg-type]
                 threshold_s=given.get("threshold_s"))],
        wan=wan,
        llamacpp=LlamaCppOptions(**own),
    )  # fmt: skip


def _announce(deployment: MiniDeployment) -> None:
    """A few lines: where it is, what it is, and how to drive it."""
    from pddbench.deploy.gguf import vocabulary
    from pddbench.deploy.minipdd.spec import ROLES

    spec = deployment.spec
    click.echo(f"{spec.kind} at {deployment.base_url} (model {spec.served_model!r})")
    click.echo(f"roles: {', '.join(ROLES[spec.kind])}, one llama.cpp server each, {spec.slots} slots a server")
    if spec.kind != "baseline":
        link = spec.link
        how = "model, not packets" if deployment.link is None else spec.wan_backend
        click.echo(
            f"WAN: {how}: {link.profile}, {link.one_way_ms:g} ms one way, {link.rate_mbit:g} Mbit/s, a flow "
            f"{link.flow_rate_mbit:g}; no DRC" + (f"; {deployment.link_words}" if deployment.link else "")
        )
    low, high = vocabulary().free_ids
    ids = "" if spec.gguf else f" --token-id-range {low}:{high}"
    click.echo(f"drive it with: --target-profile llamacpp --model {spec.served_model}{ids}")
    click.echo("tokens are those of a single process" if spec.promises_exactness else
               f"tokens may differ from those of a single process: {spec.why_inexact}")  # fmt: skip
    click.echo("Ctrl-C ends it")
