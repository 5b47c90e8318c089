"""`pddbench up ARM`: serve a deployment as a live OpenAI endpoint until a signal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pddbench.cli.serving import keep_up, link_of, say_json, tell_problems
from pddbench.cli.up_engine import engine_options, serve_engine, serves_engine

if TYPE_CHECKING:
    from pddbench.deploy.emulator.launch import Deployment
    from pddbench.wan.backends import Choice
    from pddbench.workload.experiment import Experiment


@click.command()
@click.argument("arm", type=click.Choice(["baseline", "naive", "pdd"]))
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="0: any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--speed", type=float, help="Model seconds a wall second.  [default: 1]")
@click.option("--kv-scale", type=float, help="Divides the KV bytes really sent.  [default: 100]")
@click.option("--wan", "backend", default="auto", show_default=True, help="auto, netem, tun or model.")
@click.option("--wan-profile", help="metro, regional, national, continental or congested.  [default: national]")
@click.option("--one-way-ms", type=float, help="One-way delay of the link.")
@click.option("--rate-mbit", type=float, help="Rate of the link.")
@click.option("--flow-rate-mbit", type=float, help="What one TCP flow can reach.")
@click.option("--threshold", "threshold_s", type=float, metavar="S",
              help="pdd: predicted KV transfer time above which RLD is used.  [default: 0.4]")  # fmt: skip
@click.option("--no-drc", is_flag=True, help="No decode-side radix cache: all KV crosses the WAN.")
@click.option("--first-token-from-p", is_flag=True, help="naive: P sends the first token.")
@click.option("--model", default=None, help="Whose KV size to emulate.  [default: deepseek-v3-fp8]")
@click.option("--block-tokens", type=int, help="Block of the prefix caches.  [default: 64]")
@click.option("--tokens-per-chunk", type=int, help="Tokens bundled in one SSE event.  [default: 1]")
@click.option("--json", "as_json", is_flag=True, help="Say where it is and what, as one line of JSON.")
@engine_options
def up(arm: str, port: int, host: str, backend: str, as_json: bool, **options: Any) -> int:
    """Serve the deployment ARM: baseline, naive or pdd; emulated, or of real llama.cpp servers (--engine llamacpp)."""
    if serves_engine(options):
        return serve_engine(arm, port, host, backend, as_json=as_json, options=options)
    from pddbench.deploy.emulator.launch import launch
    from pddbench.deploy.presets import emulator_spec, with_port
    from pddbench.runner.signals import Waiter
    from pddbench.wan.backends import Choice, choose, named

    experiment = _experiment(arm, options)
    name = named(None if backend == "auto" else backend)
    choice = Choice("model", name) if arm == "baseline" else choose(name)
    spec = with_port(emulator_spec(experiment.arm[0], experiment, choice.backend), host, port)
    stop = Waiter()
    with launch(spec) as deployment:
        told = tell_problems(deployment.link_problems)  # those from before the start come before "Ctrl-C ends it"
        if as_json:
            say_json(arm, deployment.base_url, spec.served_model, spec)
        else:
            _announce(deployment, choice)
        return keep_up(deployment, stop, told)


def _experiment(arm: str, options: dict[str, Any]) -> Experiment:
    """The one-arm experiment that the options stand for."""
    from pddbench.workload.experiment import Arm, EmulatorOptions, Experiment, Workload

    given = {name: value for name, value in options.items() if value is not None}
    wan = link_of(given)
    own = {"drc": not given.pop("no_drc"), "first_token_from_p": given.pop("first_token_from_p")}
    return Experiment(
        name="up",
        workload=Workload(trace=""),
        arm=[Arm(name=arm, emulated=arm, **own)],  # type: ignore[arg-type]
        wan=wan,
        emulator=EmulatorOptions(**given),
    )


def _announce(deployment: Deployment, choice: Choice) -> None:
    """A few lines: where it is, and what."""
    from pddbench.deploy.presets import table
    from pddbench.wan.words import why, wire_words

    spec = deployment.spec
    click.echo(f"{spec.arm} at {deployment.base_url} (model {spec.served_model!r}, KV of {spec.model.name})")
    click.echo(
        f"roles: {table(spec)}; speed {spec.speed:g}, KV bytes / {spec.kv_scale:g}, block {spec.block_tokens} tokens"
    )
    if spec.arm != "baseline":
        link = spec.link
        click.echo(
            f"WAN: {why(choice.backend, choice.asked, choice.reason)}: {link.profile}, {link.one_way_ms:g} ms one way, "
            f"{link.rate_mbit:g} Mbit/s, a flow {link.flow_rate_mbit:g}; DRC {'on' if spec.drc else 'off'}"
            + (f"; RLD when KV needs more than {spec.threshold_s:g} s" if spec.arm == "pdd" else "")
        )
    if deployment.guard is not None:
        click.echo(f"measured before the start: {wire_words(deployment.guard.facts(), spec.kv_scale, spec.speed)}")
    click.echo("Ctrl-C ends it")
