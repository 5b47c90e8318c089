"""What follows from the probes: which commands will work here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from pddbench.doctor.probes import Probe

_SIGNS = {"ok": "✓", "warn": "!", "missing": "–"}


def works(probes: Sequence[Probe]) -> dict[str, bool]:
    """What a user may want to do here, and whether it will work."""
    good = {probe.name: probe.status == "ok" for probe in probes}
    reads = all(probe.status != "missing" for probe in probes if probe.name == "native reader")
    loopback = good["loopback"] and reads
    return {
        "replay against your own endpoint": good["disk"] and reads,
        "simulate, report": good["disk"],
        "run and up with emulated arms (--wan model)": loopback,
        'run and up with real llama.cpp servers (engine = "llamacpp")': loopback and good["llama.cpp"],
        "measurements at the first try (cores, timers, files)": good["cores"] and good["timers"] and good["open files"],
        "runs of emulated arms over netem": loopback and _packets(probes, "netem"),
        "runs of emulated arms over TUN": loopback and _packets(probes, "TUN"),
    }


def _packets(probes: Sequence[Probe], name: str) -> bool:
    """The machine can and this version has it: what the probe itself says."""
    probe = next(probe for probe in probes if probe.name == name)
    return probe.status == "ok" and probe.means.startswith("--wan")


def show(probes: Iterable[Probe]) -> None:
    """One block a probe, then what will and will not work."""
    probes = list(probes)
    for probe in probes:
        click.echo(f"{_SIGNS[probe.status]} {probe.name}: {probe.found}")
        click.echo(f"    {probe.means}")
        if probe.advice:
            click.echo(f"    → {probe.advice}")
    click.echo()
    for what, fine in works(probes).items():
        click.echo(f"{'will work' if fine else 'will not':>9}  {what}")
