"""`pddbench wan`: what this host can do for a WAN, two commands on both sides of one, and a real device."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import click

from pddbench import exitcodes
from pddbench.cli.common import key_value, options
from pddbench.cli.groups import Group
from pddbench.errors import InputError

if TYPE_CHECKING:
    from pddbench.wan.link import Link
    from pddbench.wan.openlink import WanLink
    from pddbench.wan.shape import Shape
    from pddbench.wan.verify import Verification


@click.group(cls=Group)
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


_figure_options = options(
    click.option("--one-way-ms", type=float, help="One-way delay of the link."),
    click.option("--rate-mbit", type=float, help="Rate of the link."),
    click.option("--jitter-ms", type=float, help="Standard deviation of the one-way delay."),
    click.option("--loss-pct", type=float, help="Random loss, percent of packets each way."),
    click.option(
        "--gilbert", metavar="P,R[,B[,G]]", help="Bursty loss instead: percent to the bad state, back, loss in each."
    ),
)
_link_options = options(
    _figure_options,
    click.option(
        "--back", multiple=True, metavar="NAME=VALUE", help="A figure of the way from B to A, as one_way_ms=30."
    ),
    click.option(
        "--event",
        "events",
        multiple=True,
        metavar="TEXT",
        help="'cut AT FOR', 'flap AT DOWN UP TIMES' or 'brown-out AT FOR SHARE', seconds.",
    ),
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
    from msgspec import to_builtins

    from pddbench.wan.execute import run_on_both_sides, split_commands
    from pddbench.wan.openlink import open_shapes
    from pddbench.wan.schedule import Scheduled, check_rates
    from pddbench.wan.steps import not_reached, parse_events

    server, client = split_commands(command[1:] if command[:1] == ("--",) else command)
    link, shapes = _link(profile, given)
    steps = parse_events(given["events"])
    check_rates(steps, *shapes)
    signal.signal(signal.SIGTERM, _interrupt)  # until the commands run: as Ctrl-C, with everything taken down
    taken = _packets(backend)
    with _out(facts) as out, open_shapes(*shapes, taken) as opened:
        found = None if no_verify else opened.verify()
        _announce(link, taken, opened, found)
        if strict and found is not None and not found.ok:
            return exitcodes.INVALID
        with Scheduled(opened, steps) as beside:
            code = run_on_both_sides(opened, server, client)
        if beside.error is not None:
            raise beside.error
        for words in filter(None, (change.late_words() for change in beside.applied)):
            click.echo(f"WAN: NOT AS ASKED: {words}", err=True)
        if missed := not_reached(given["events"], {change.wanted_s for change in beside.applied}):
            click.echo(f"not reached before the client ended: {', '.join(missed)}", err=True)
        if out is not None:
            changes = [to_builtins(change) for change in beside.applied]
            json.dump({**opened.facts, "changes": changes, "counters": opened.counters()}, out, indent=2)
    return code


@wan.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--dev", required=True, help="The device that the traffic leaves by.")
@click.option("--to", required=True, multiple=True, metavar="CIDR[:PORTS]", help="Only traffic to there; repeatable.")
@click.option("--ingress", is_flag=True, help="Delay what comes from there too (through an ifb device).")
@click.option("--i-know", is_flag=True, help="Also on the default route's device, or where you are logged in from.")
@click.option("--for", "for_s", type=float, metavar="S", help="End by itself after S seconds.")
@click.option("--dry-run", is_flag=True, help="Print the commands, and change nothing.")
@_figure_options
@click.argument("profile")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def apply(dev: str, to: tuple[str, ...], profile: str, command: tuple[str, ...], **given: Any) -> int:
    """Shape a real device: PROFILE [-- COMMAND …]; the profile `custom` has only the figures that are given.

    Only traffic to (and, with --ingress, from) the destination is slowed, for as long as this command runs. Run it on
    both machines, each delaying what it sends. A killed pddbench leaves a device that is cleared within a minute.
    """
    from pddbench.cli.wan_nic import run_apply

    command = command[1:] if command[:1] == ("--",) else command
    return run_apply(profile, dev, to, command, given)


@wan.command()
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def show(as_json: bool) -> int:
    """Show which devices `wan apply` shapes, and whether that is still in force."""
    from pddbench.cli.wan_nic import run_show

    return run_show(as_json)


@wan.command()
@click.option("--dev", help="Only this device.")
def clear(dev: str | None) -> int:
    """Take away whatever `wan apply` left on this machine's devices; harmless when there is nothing."""
    from pddbench.cli.wan_nic import run_clear

    return run_clear(dev)


_FIGURES = ("one_way_ms", "rate_mbit", "jitter_ms", "loss_pct")


def _link(profile: str, given: dict[str, Any]) -> tuple[Link, tuple[Shape, Shape]]:
    """The profile with the given figures put in, and what each direction does."""
    from pddbench.wan.link import resolve_link
    from pddbench.wan.shape import parse_gilbert, shape_of
    from pddbench.workload.experiment import Wan

    gilbert = parse_gilbert(given["gilbert"]) if given["gilbert"] else None
    given_back = [_back_figure(text) for text in given["back"]]
    names = [name for name, _ in given_back]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise InputError(f"--back {twice} is given twice")
    if gilbert and (given["loss_pct"] is not None or "loss_pct" in names):
        raise InputError("--gilbert and a loss_pct are two models of one thing: give one")
    figures = {name: given[name] for name in _FIGURES if given[name] is not None}
    back = {**figures, **dict(given_back)}
    link, other = (resolve_link(Wan(profile=profile, **each), backend="packets") for each in (figures, back))
    return link, (shape_of(link, gilbert), shape_of(other, gilbert))


def _back_figure(text: str) -> tuple[str, float]:
    name, value = key_value(text, "--back")
    try:
        if name in _FIGURES:
            return name, float(value)
    except ValueError:
        pass
    raise InputError(f"--back takes one of {', '.join(_FIGURES)} and a number, not {text!r}")


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
    there, back = (_words(shape) for shape in opened.shapes)
    figures = there if there == back else f"there {there}; back {back}"
    sides = f"client at {opened.side_a.address}, server at {opened.side_b.address}"
    click.echo(f"WAN: {taken}, {link.profile}: {figures}; {sides}", err=True)
    for finding in found.findings if found else []:
        click.echo(f"WAN: {'as asked' if finding.ok else 'NOT AS ASKED'}: {finding.words()}", err=True)


def _words(shape: Shape) -> str:
    """A direction in a few words."""
    words = f"{shape.delay_ms:g} ms one way, {shape.rate_mbit:g} Mbit/s"
    words += f", jitter {shape.jitter_ms:g} ms" if shape.jitter_ms else ""
    return words + (f", loss {100 * shape.loss_share:.3g}%" if shape.loss_share else "")
