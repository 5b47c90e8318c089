"""`pddbench bathtub`: a hit sweep's efficiency and revenue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pddbench.cli.common import FINITE, json_object, key_value, options
from pddbench.errors import InputError

_SHAPE = ("length", "output", "step", "requests", "block_tokens")


@click.command()
@click.argument("what", metavar="[DIR|EXPERIMENT]", required=False, type=click.Path(path_type=Path))
@options(
    click.option("--base-url", help="Sweep this endpoint: http://HOST:PORT, with or without /v1."),
    click.option("--model", help="Model name the endpoint serves."),
    click.option("--endpoint", help="/v1/completions (token ids) or /v1/chat/completions (text)."),
    click.option("--target-profile", default="openai", show_default=True, help="Kind of server: vllm, sglang, …"),
    click.option("--token-id-range", default="1000:30000", show_default=True, help="LOW:HIGH ids, special ones out."),
    click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key."),
    click.option("--header", multiple=True, metavar="K=V", help="Extra request header (value never saved)."),
    click.option("--extra-body", metavar="JSON", help="Extra body fields, a JSON object."),
    click.option("--simulate", "simulated", is_flag=True, help="Emulated arms of EXPERIMENT in virtual time."),
    click.option("--length", type=click.IntRange(64), help="Tokens of every prompt [65536]."),
    click.option("--output", type=click.IntRange(1), help="Tokens of every reply [1]."),
    click.option("--step", type=FINITE, help="Between two hits, a share in whole percents [0.04]."),
    click.option("--requests", type=click.IntRange(3), help="Requests of a stage, sent at once [16]."),
    click.option("--block-tokens", type=click.IntRange(1), help="Block of the endpoint's prefix cache [64]."),
    click.option("--rounds", type=click.IntRange(1), help="How often the sweep is made: three give intervals [3]."),
    click.option("--chunk", type=click.IntRange(1), help="Tokens of the server's prefill chunk (attributes dips)."),
    click.option(
        "--cached-price", type=FINITE, default=0.1, show_default=True, help="Price of a cached token / other."
    ),
    click.option("--out", type=click.Path(path_type=Path), help="Run folder [results/<name>-bathtub-<UTC>]."),
    click.option("--wan", help="auto, netem, tun or model.  [the file's [wan] backend, else auto]"),
    click.option("--yes", is_flag=True, help="Agree to load on hosts that are not this machine."),
    click.option("--dry-run", is_flag=True, help="Show what would be sent, and stop."),
    click.option("--quiet", is_flag=True, help="No progress, only the answer."),
    click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON."),
)
def bathtub(what: Path | None, chunk: int | None, cached_price: float, as_json: bool, **given: Any) -> int:
    """Efficiency and revenue over the hit rate: dips, whether tail chunks make them, the valley of revenue, advice.

    DIR is a finished sweep, and is only read. EXPERIMENT (a file) or --base-url makes one first: at each hit, 0 to
    below 100%, as many prompts of one length at once as --requests says, so that the endpoint has a queue.
    """
    from pddbench.report.bathtub import answer

    if what is not None and what.is_dir():
        if given["base_url"]:
            raise InputError(f"{what} is a folder that is only read, --base-url makes a sweep: give one of them")
        return answer(what, chunk, cached_price, as_json=as_json)
    from pddbench.runner import bathtub as runner
    from pddbench.workload.sweep import SweepShape

    if (what is None) == (given["base_url"] is None):
        raise InputError("give a run folder or an experiment file, or an endpoint with --base-url and --model")
    experiment = _endpoint(given) if what is None else _file(what)
    shape = SweepShape(**{name: given[name] for name in _SHAPE if given[name] is not None})
    names = ("rounds", "simulated", "out", "wan", "yes", "quiet", "dry_run")
    sweep = runner.SweepOptions(shape=shape, **{name: given[name] for name in names if given[name] is not None})
    return runner.conduct(experiment, sweep, chunk=chunk, cached_price=cached_price, as_json=as_json)


def _file(what: Path) -> Any:
    from pddbench.workload.load import load_experiment

    return load_experiment(what)


def _endpoint(given: dict[str, Any]) -> Any:
    """The endpoint of the flags as an experiment of one arm."""
    from pddbench.cli.replay import endpoint_path, id_range, with_scheme
    from pddbench.runner.bathtub import endpoint_experiment
    from pddbench.workload.experiment import Arm

    if not given["model"]:
        raise InputError("--base-url needs --model: the name the endpoint serves")
    arm = Arm(
        name="endpoint",
        base_url=with_scheme(given["base_url"]),
        model=given["model"],
        endpoint=endpoint_path(given["endpoint"]),
        profile=given["target_profile"],
        api_key_env=given["api_key_env"],
        headers=dict(key_value(item, "--header") for item in given["header"]),
        extra_body=json_object(given["extra_body"], "--extra-body"),
        token_id_range=id_range(given["token_id_range"]),
        block_tokens=given["block_tokens"],
    )
    return endpoint_experiment(arm)
