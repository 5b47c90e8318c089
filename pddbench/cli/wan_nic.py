"""`pddbench wan apply|show|clear`: a real device, for two real machines."""

from __future__ import annotations

import json
import math
import subprocess
import time
from typing import TYPE_CHECKING, Any

import click

from pddbench import exitcodes
from pddbench.errors import InputError, WorldError

if TYPE_CHECKING:
    from pathlib import Path

    from pddbench.wan.nic import Applied, Shaped
    from pddbench.wan.reach import Carried, Trips
    from pddbench.wan.shape import Shape

_CUSTOM = "custom"
_BEAT_S = 2.0
_END_S = 5.0
_MOST_TIMED = 4  # destinations; one that does not answer is waited for


def shape_from(profile: str, given: dict[str, Any]) -> tuple[str, Shape]:
    """A direction: a profile with figures put in, or (`custom`) the given figures alone. Raises `InputError`."""
    from pddbench.wan.link import resolve_link
    from pddbench.wan.shape import Shape, parse_gilbert, shape_of
    from pddbench.workload.experiment import Wan

    gilbert = parse_gilbert(given["gilbert"]) if given["gilbert"] else None
    if gilbert and given["loss_pct"] is not None:
        raise InputError("--gilbert and --loss-pct are two models of one thing: give one")
    names = ("one_way_ms", "rate_mbit", "jitter_ms", "loss_pct")
    figures = {name: given[name] for name in names if given[name] is not None}
    named = None if profile == _CUSTOM else profile
    link = resolve_link(Wan(profile=named, **figures), backend="packets")  # checks the ranges
    if named is not None:
        return link.profile, shape_of(link, gilbert)
    if not figures and gilbert is None:
        raise InputError("nothing to apply: name a profile (national, …), or custom and figures, as --rate-mbit 100")
    own = {"one_way_ms": 0.0, "rate_mbit": None, "jitter_ms": 0.0, "loss_pct": 0.0} | figures
    delay = own.pop("one_way_ms")
    loss = 0.0 if gilbert else own["loss_pct"]
    return _CUSTOM, Shape(delay, own["rate_mbit"], jitter_ms=own["jitter_ms"], loss_pct=loss, gilbert=gilbert)


def run_apply(profile: str, dev: str, to: tuple[str, ...], command: tuple[str, ...], given: dict[str, Any]) -> int:
    """Shape, run the command or wait, and take it away again; the exit code."""
    from pddbench.runner.signals import catching
    from pddbench.wan import nic, reach
    from pddbench.wan.destination import parse

    name, shape = shape_from(profile, given)
    if given["for_s"] is not None and not 0 < given["for_s"] < math.inf:
        raise InputError(f"--for {given['for_s']:g}: give seconds above 0")
    applied = nic.plan(dev, [parse(text) for text in to], shape, name,
                       ingress=given["ingress"], i_know=given["i_know"])  # fmt: skip
    if given["dry_run"]:
        for argv in nic.commands(applied):
            click.echo(" ".join(argv))
        return exitcodes.GOOD
    with catching() as stop:
        before = [reach.trips(to) for to in applied.to[:_MOST_TIMED]]
        if stop.exit_code is not None:
            return stop.exit_code
        with nic.Shaped(applied) as shaped:
            for line in _measured(applied, before):
                click.echo(line, err=True)
            click.echo(f"{words(applied)}; {_until(command, given['for_s'])}", err=True)
            carried = reach.Carried()
            code = _while_running(command, shaped, stop, carried) if command else _wait(given, shaped, stop, carried)
            found = nic.counters(applied)
            carried.count(found["bytes"])
            click.echo(carried.words(shape, found["packets"], found["drops"]), err=True)
            return code


def _until(command: tuple[str, ...], for_s: float | None) -> str:
    """What ends it."""
    if command:
        return "until the command ends"
    return "Ctrl-C ends it" if for_s is None else f"for {for_s:g} s, or until Ctrl-C ends it"


def _measured(applied: Applied, before: list[Trips]) -> list[str]:
    """What a round trip to each destination takes longer now; for a loss or a rate nothing there could answer."""
    from pddbench.wan import reach

    shape, both = applied.shape, applied.ifb is not None
    lines = []
    for to, trips in zip(applied.to, before, strict=False):
        now = reach.trips(to, slower_ms=4 * (shape.delay_ms + 3 * shape.jitter_ms)) if not trips.why_not else trips
        lines.append(reach.compared(to, trips, now, shape, both))
    return lines


def _wait(given: dict[str, Any], shaped: Shaped, stop: Any, carried: Carried) -> int:
    """Until a signal, or for as long as was asked."""
    until = None if given["for_s"] is None else time.monotonic() + given["for_s"]
    while stop.exit_code is None and (until is None or time.monotonic() < until):
        _beat(shaped, carried)
        time.sleep(min(_BEAT_S, max(0.0, (until or 1e9) - time.monotonic())))
    return stop.exit_code or exitcodes.GOOD


def _beat(shaped: Shaped, carried: Carried) -> None:
    """A sign of life to the keeper, and a count."""
    from pddbench.wan import nic

    shaped.beat()
    carried.count(nic.counters(shaped.applied)["bytes"])


def _while_running(command: tuple[str, ...], shaped: Shaped, stop: Any, carried: Carried) -> int:
    """The command's exit code (128 + its signal); our own signals end it."""
    try:
        popen = subprocess.Popen(command)
    except OSError as error:
        raise InputError(f"cannot run {command[0]!r}: {error.strerror}") from None
    try:
        while True:
            _beat(shaped, carried)
            try:
                code = popen.wait(_BEAT_S)
            except subprocess.TimeoutExpired:
                if stop.exit_code is None:
                    continue
                popen.terminate()
                code = popen.wait(_END_S)
            return stop.exit_code or (code if code >= 0 else 128 - code)
    finally:
        if popen.poll() is None:
            popen.kill()
            popen.wait()


def words(applied: Applied) -> str:
    """A line: what is slowed, how, and what not."""
    shape = applied.shape
    parts = [f"{shape.delay_ms:g} ms"] if shape.delay_ms else []
    parts += [f"jitter {shape.jitter_ms:g} ms"] if shape.jitter_ms else []
    parts += [f"{shape.rate_mbit:g} Mbit/s"] if shape.rate_mbit else []
    parts += [f"loss {100 * shape.loss_share:.3g}%"] if shape.loss_share else []
    both = " and what comes from there" if applied.ifb else ""
    return f"{applied.dev}: to {', '.join(map(str, applied.to))}{both}: {', '.join(parts)} ({applied.profile})"


def run_show(as_json: bool) -> int:
    """What of ours is on this machine's devices."""
    from pddbench.wan import nic

    known = nic.journals()
    lost = nic.leftovers(known)
    if as_json:
        rows = [nic.as_json(applied) for applied in known]
        click.echo(json.dumps({"applied": rows, "without_journal": lost}, indent=2))
        return exitcodes.GOOD
    for applied in known:
        wrong = nic.problems(applied)
        sent = "" if wrong else "; {packets} packets, {drops} dropped".format(**nic.counters(applied))
        state = f"NOT IN FORCE: {'; '.join(wrong)}" if wrong else "in force"
        click.echo(f"{words(applied)}: {state}, since {applied.since_utc} by process {applied.pid}{sent}")
    for facts in lost:
        click.echo(f"{facts['dev']}: shaped by pddbench, but its journal is lost: `pddbench wan clear` removes it")
    if not known and not lost:
        click.echo("nothing is shaped")
    return exitcodes.GOOD


def run_clear(dev: str | None) -> int:
    """Take everything of ours away; harmless when there is nothing."""
    import msgspec

    from pddbench.wan import nic
    from pddbench.wan.inside.undo import forget, undo

    known = nic.journals()
    everything: list[tuple[dict[str, Any], Path | None]]
    everything = [(msgspec.to_builtins(each), each.path) for each in known]
    everything += [(facts, None) for facts in nic.leftovers(known)]
    cleared, left = [], []
    for facts, path in everything:
        if dev not in (None, facts["dev"]):
            continue
        problems = undo(facts)
        left += problems
        if not problems:
            cleared.append(facts["dev"])
            if path is not None:
                forget(path)
    if left:
        raise WorldError(f"not everything could be taken away: {'; '.join(left)}")
    click.echo(f"cleared: {', '.join(cleared)}" if cleared else "nothing to clear")
    return exitcodes.GOOD
