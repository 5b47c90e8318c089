"""`pddbench capacity`: the largest load at which each arm meets its objectives."""

from __future__ import annotations

from pathlib import Path

import click

from pddbench.cli.common import FINITE, options


@click.command()
@click.argument("experiment", type=click.Path(path_type=Path))
@options(
    click.option("--simulate", "simulated", is_flag=True, help="Emulated arms in virtual time: runs are cheap."),
    click.option("--target", type=FINITE, help="Share of requests that must meet the objectives [0.9]."),
    click.option("--half-width", type=FINITE, help="Stop when the interval is ± this share of the rate [0.05]."),
    click.option("--budget", type=click.IntRange(1), help="At most N runs an arm that count [16]."),
    click.option("--voids", type=click.IntRange(1), help="At most N runs an arm that a busy machine spoils [6]."),
    click.option("--warmup-s", type=FINITE, help="Requests due in the first S seconds do not count [30]."),
    click.option("--run-s", type=FINITE, help="Seconds measured a run [120, or three median sessions]."),
    click.option("--start-rate", type=FINITE, help="First session rate [the experiment's, else the trace's]."),
    click.option("--arm", "arms", multiple=True, metavar="NAME", help="Only this arm (may be repeated)."),
    click.option("--splits", type=click.IntRange(0), default=0, help="Also N other role counts an arm at equal cost."),
    click.option("--relays", metavar="N,…", help="Also the pdd arms with so many RLD."),
    click.option("--hits", metavar="S,…", help="All of it at these hit rates of the trace (shares), into hits.json."),
    click.option("--seed", type=click.IntRange(0), help="Seed of arrivals."),
    click.option("--out", type=click.Path(path_type=Path), help="Folder; an unfinished search in it goes on."),
    click.option("--wan", help="auto, netem, tun or model.  [the file's [wan] backend, else auto]"),
    click.option("--yes", is_flag=True, help="Agree to load on hosts that are not this machine."),
    click.option("--max-cost", type=FINITE, help="Refuse a plan whose tokens cost more (one run)."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("--quiet", is_flag=True, help="No progress, only the answer."),
)
def capacity(
    experiment: Path,
    arms: tuple[str, ...],
    splits: int,
    relays: str | None,
    hits: str | None,
    seed: int | None,
    out: Path | None,
    yes: bool,
    max_cost: float | None,
    as_json: bool,
    **given: object,
) -> int:
    """Find the largest session rate at which each arm of EXPERIMENT meets its [slo] at the target attainment.

    Every run counts (logistic curve, dispersion from a run's thirds and between runs); the search stops at the
    half-width asked for or at the budget, says which, and goes on where it stopped when the same --out is given.
    With prices the benefit-cost ratio (BCR) follows, with its interval.
    """
    from pddbench.runner.capacity_conduct import CapacityOptions, conduct, search_options
    from pddbench.workload.load import check, load_experiment

    loaded = load_experiment(experiment)
    if seed is not None:
        loaded.workload.seed = seed
        if loaded.workload.arrival == "constant":
            click.echo("pddbench: --seed: with arrival = 'constant' a seed changes nothing", err=True)
    if given["simulated"]:
        loaded.emulator.speed = 1.0
        for arm in loaded.arm:
            arm.speed = None
        check(loaded, "command line")
    command = CapacityOptions(
        out=out, arms=arms, splits=splits, relays=tuple(int(n) for n in _numbers(relays, "--relays", whole=True)),
        hits=_numbers(hits, "--hits"), yes=yes, max_cost=max_cost, as_json=as_json,
    )  # fmt: skip
    return conduct(loaded, search_options(**given), command)


def _numbers(text: str | None, flag: str, *, whole: bool = False) -> tuple[float, ...]:
    """`1,2,4` as numbers; `InputError` for anything else."""
    from pddbench.errors import InputError

    if text is None:
        return ()
    try:
        found = tuple(float(int(part)) if whole else float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or any(not 0 <= one < 1e4 or (whole and one < 1) for one in found):
        kind = "counts of 1 and more, as in 1,2,4" if whole else "shares, as in 0.5,0.9"
        raise InputError(f"{flag} {text!r}: give {kind}")
    return found
