"""`pddbench wan`: what this host can do for a WAN, and any two commands on both sides of one."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import click

from pddbench import exitcodes
from pddbench.cli.common import options
from pddbench.errors import InputError

if TYPE_CHECKING:
    from pddbench.wan.link import Link
    from pddbench.wan.openlink import WanLink
    from pddbench.wan.verify import Verification


@click.group()
def wan() -> None:
    """Probe and use the WAN between two sides: real netem, user-space packets, or the model."""


@wan.command()
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def probe(as_json: bool) -> None:
    """Try every backend in namespaces of our own; say which works, else the kernel's own reason."""
    from pddbench.wan.probe import probe_all

    found = probe_all()
    auto = next(each.backend for each in found if each.works)
    if as_json:
        rows = [{"backend": p.backend, "works": p.works, "reason": p.reason} for p in found]
        click.echo(json.dumps({"auto": auto, "backends": rows}, indent=2))
        return
    for each in found:
        click.echo(f"{each.backend:<6} {'works' if each.works else 'does not work'}: {each.reason}")
    click.echo(f"--wan auto takes {auto}")


_link_options = options(
    click.option("--one-way-ms", type=float, help="One-way delay of the link."),
    click.option("--rate-mbit", type=float, help="Rate of the link."),
    click.option("--jitter-ms", type=float, help="Standard deviation of the one-way delay."),
    click.option("--loss-pct", type=float, help="Random loss, percent of packets each way."),
)


@wan.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--wan", "backend", default="auto", show_default=True, help="auto, netem or tun.")
@_link_options
@click.option("--no-verify", is_flag=True, help="Do not measure the link before the commands run.")
@click.option("--strict", is_flag=True, help="A link that is not as asked is exit 98, before the commands run.")
@click.option("--facts", type=click.Path(dir_okay=False), help="Write what was read back and measured, as JSON.")
@click.argument("profile")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def execute(
    backend: str, no_verify: bool, strict: bool, facts: str | None, profile: str, command: tuple[str, ...], **given: Any
) -> int:
    """Run commands on both sides of a link: PROFILE -- [SERVER … :::] CLIENT …

    The server runs in side B, the client in side A, each in a network namespace of its own with nothing but loopback
    and the link; both start at once. PDDBENCH_WAN_LOCAL and PDDBENCH_WAN_PEER hold the two addresses. Ends with the
    client's exit code.
    """
    from pddbench.wan.execute import run_on_both_sides, split_commands
    from pddbench.wan.openlink import open_link

    server, client = split_commands(command[1:] if command[:1] == ("--",) else command)
    link = _link(profile, given)
    signal.signal(signal.SIGTERM, _interrupt)  # until the commands run: as Ctrl-C, with everything taken down
    taken = _packets(backend)
    with _out(facts) as out, open_link(link, taken) as opened:
        found = None if no_verify else opened.verify()
        _announce(link, taken, opened, found)
        if strict and found is not None and not found.ok:
            return exitcodes.INVALID
        code = run_on_both_sides(opened, server, client)
        if out is not None:
            json.dump({**opened.facts, "counters": opened.counters()}, out, indent=2)
    return code


def _link(profile: str, given: dict[str, Any]) -> Link:
    """The profile with the given figures put in."""
    from pddbench.wan.link import resolve_link
    from pddbench.workload.experiment import Wan

    figures = {name: value for name, value in given.items() if value is not None}
    return resolve_link(Wan(profile=profile, **figures), backend="packets")


def _packets(backend: str) -> str:
    """A backend with packets; there is nothing to run commands over otherwise."""
    from pddbench.wan.probe import require

    taken, tried = require(backend)
    if taken == "model":
        why = "; ".join(f"{each.backend}: {each.reason}" for each in tried if not each.works)
        raise InputError(f"wan exec needs real packets: {why or 'the model has none'}")
    return taken


def _interrupt(number: int, _: object) -> None:
    raise SystemExit(exitcodes.SIGTERM)


def _out(path: str | None) -> Any:
    """The file for the facts, opened before anything runs; none: nothing."""
    from contextlib import nullcontext
    from pathlib import Path

    if path is None:
        return nullcontext()
    try:
        return Path(path).open("w", encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def _announce(link: Link, taken: str, opened: WanLink, found: Verification | None) -> None:
    """One line about the link, and one for each finding, on stderr: stdout is the commands'."""
    figures = f"{link.one_way_ms:g} ms one way, {link.rate_mbit:g} Mbit/s"
    figures += f", jitter {link.jitter_ms:g} ms" if link.jitter_ms else ""
    figures += f", loss {link.loss_pct:g}%" if link.loss_pct else ""
    sides = f"client at {opened.side_a.address}, server at {opened.side_b.address}"
    click.echo(f"WAN: {taken}, {link.profile}: {figures}; {sides}", err=True)
    for finding in found.findings if found else []:
        click.echo(f"WAN: {'as asked' if finding.ok else 'NOT AS ASKED'}: {finding.words()}", err=True)
