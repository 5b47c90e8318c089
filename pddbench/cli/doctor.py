"""`pddbench doctor`: what will and will not work on this machine."""

from __future__ import annotations

import click


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the probes as JSON.")
def doctor(as_json: bool) -> int:
    """Look at kernel, clocks, cores, limits, netem and TUN: what works here, what does not, and what to do.

    Changes nothing, sends nothing, takes under a second. Exit 0 when runs with emulated arms will work, else 1.
    """
    import msgspec

    from pddbench import exitcodes
    from pddbench.doctor.advice import show, works
    from pddbench.doctor.probes import examine

    probes = examine()
    answer = works(probes)
    if as_json:
        plain = {"probes": msgspec.to_builtins(probes), "works": answer}
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2).decode())
    else:
        show(probes)
    needed = ("loopback", "native reader")
    runs = all(probe.status != "missing" for probe in probes if probe.name in needed)
    return exitcodes.GOOD if runs else exitcodes.WORLD_FAILED
