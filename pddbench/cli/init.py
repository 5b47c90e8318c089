"""`pddbench init`: an experiment file to start from."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from pddbench.errors import InputError


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("experiment.toml"), show_default=True,
              help="The file to write.")  # fmt: skip
@click.option("--force", is_flag=True, help="Replace an existing file.")
@click.option("--name", default="mine", show_default=True, help="Name of the experiment.")
@click.option("--trace", metavar="FILE", help="Trace to replay [the agentic example, if it is found].")
@click.option("--endpoint", "endpoints", multiple=True, metavar="NAME=URL", help="A live endpoint (may be repeated).")
@click.option("--model", help="Model name that the endpoints serve.")
@click.option("--target-profile", default="openai", show_default=True, help="openai, vllm, sglang, dynamo, llamacpp.")
@click.option("--session-rate", type=float, default=0.5, show_default=True, help="Sessions a second.")
@click.option("--repeats", type=click.IntRange(1), default=2, show_default=True, help="How often each arm runs.")
@click.option("--ttft-ms", type=float, default=2000.0, show_default=True, help="Objective: first token, from due.")
@click.option("--engine", type=click.Choice(("emulator", "llamacpp")), default="emulator", show_default=True,
              help="Without endpoints: emulated arms, or real llama.cpp servers on this machine.")  # fmt: skip
@click.option("--wan", "wan_profile", default="national", show_default=True, help="Link between the clusters.")
def init(out: Path, force: bool, **given: Any) -> int:
    """Write an experiment file with comments: your endpoints, or three arms that are started here when none is given.

    On a terminal it asks for what no flag says; elsewhere it never asks.
    """
    from pddbench.doctor.template import Wishes, write_template

    if not given["endpoints"] and sys.stdin.isatty() and sys.stdout.isatty():
        _ask(given)
    arms = [_endpoint(text) for text in given.pop("endpoints")]
    wishes = Wishes(arms=arms, **given)
    write_template(out, wishes, force=force)
    click.echo(f"{out}: written. Next: pddbench run {out} --dry-run   (shows what would be sent, and sends nothing)")
    return 0


def _ask(given: dict[str, Any]) -> None:
    """The few questions that decide most."""
    url = click.prompt("Base URL of your endpoint (empty: arms that are started here)", default="",
                       show_default=False).strip()  # fmt: skip
    if url:
        given["endpoints"] = (f"mine={url}",)
        given["model"] = given["model"] or click.prompt("Model it serves")
        given["target_profile"] = click.prompt("Kind of server", default=given["target_profile"])
    else:
        kinds = click.Choice(("emulator", "llamacpp"))
        given["engine"] = click.prompt("Emulated arms, or real llama.cpp servers", type=kinds, default=given["engine"])
    given["session_rate"] = click.prompt("Sessions a second", type=float, default=given["session_rate"])


def _endpoint(text: str) -> tuple[str, str]:
    """`NAME=URL` as a pair."""
    name, sign, url = text.partition("=")
    if not sign or "://" not in url:
        raise InputError("--endpoint: give NAME=URL, as in --endpoint mine=http://127.0.0.1:8000/v1")
    return name.strip(), url.strip()
