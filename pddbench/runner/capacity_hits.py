"""`pddbench capacity --hits`: capacities of all deployments at several hit rates, the best measured anew.

With constant arrivals nothing is drawn: a run with another seed is the same run, so nothing is measured anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from pddbench import exitcodes
from pddbench.analyze.capacity import Estimate
from pddbench.errors import InputError
from pddbench.runner.capacity import ArmSearch, SearchOptions, State
from pddbench.runner.capacity_conduct import CapacityOptions, search_all
from pddbench.workload.experiment import Arm, Experiment

FILE = "hits.json"
_FRESH = 500  # added to the seed of the search that measures a chosen deployment anew


class HitRow(msgspec.Struct, kw_only=True):
    """A deployment's capacity at a hit rate. `hit`: token-weighted, planned. `of`: the experiment's arm it belongs to.

    `best`: has the highest BCR of that arm's deployments. `anew`: the figure is from a second search with another seed,
    as of many noisy figures the highest is too high by luck; false where there was no rival or arrivals are constant.
    """

    hit: float
    arm: str
    of: str
    best: bool
    anew: bool
    estimate: Estimate
    roles: dict[str, dict[str, Any]]
    uses_line: bool
    cost_per_hour: float | None
    requests_a_session: float | None
    input_tokens_a_session: float | None
    cached_tokens_a_session: float | None
    output_tokens_a_session: float | None
    runs: int


class Hits(msgspec.Struct, kw_only=True):
    """`hits.json`: every deployment at every hit rate. `seeded`: whether a seed changes arrivals; not constant ones."""

    schema_version: int = 2
    seeded: bool
    name: str
    measured: str
    target: float
    slo: dict[str, float]
    currency: str
    prices: dict[str, float]
    line: float
    first: str
    rows: list[HitRow] = []


def over_hits(
    experiment: Experiment, options: SearchOptions, command: CapacityOptions, chosen: list[Arm], folder: Path
) -> int:
    """Search all deployments at every hit, save `hits.json` after each, print the answer; the exit code."""
    from pddbench.report import hits as report
    from pddbench.trace.read import read_trace
    from pddbench.workload.rehit import planned_hit, with_hit

    work = experiment.workload
    trace = read_trace(Path(work.trace), work.format)
    traces = [with_hit(trace, hit) for hit in command.hits]  # what is impossible is said before anything runs
    seeded = work.arrival != "constant"
    found: Hits | None = None
    for made in traces:
        hit = planned_hit(made)
        place = folder / f"hit-{1000 * hit:04.0f}"
        state, code = search_all(experiment, options, command, chosen, place, made)
        if code is not None:
            return code
        best, alone = _best(state, experiment)
        rivals = [arm for arm in chosen if arm.name in best - alone] if seeded else []
        again: dict[str, ArmSearch] = {}
        if rivals:
            second, code = _anew(experiment, options, command, rivals, place, made)
            if code is not None:
                return code
            again = second.arms
        if found is None:
            found = Hits(seeded=seeded, name=state.name, measured=state.measured, target=state.target, slo=state.slo,
                         currency=state.currency, prices=state.prices, line=state.line,
                         first=next(iter(state.arms)))  # fmt: skip
        found.rows += [
            _row(hit, name, again.get(name, one), experiment, best=name in best, anew=name in again)
            for name, one in state.arms.items()
        ]
        _save(found, folder)
    assert found is not None
    report.show(found, folder, found.prices, found.line, as_json=command.as_json)
    return exitcodes.GOOD


def _anew(
    experiment: Experiment, options: SearchOptions, command: CapacityOptions, arms: list[Arm], place: Path, trace: Any
) -> tuple[State, int | None]:  # fmt: skip
    """The chosen deployments searched again from another seed."""
    other = msgspec.convert(msgspec.to_builtins(experiment), Experiment)
    other.workload.seed += _FRESH
    return search_all(other, options, command, arms, place / "anew", trace)


def belongs_to(name: str, experiment: Experiment) -> str:
    """The experiment's arm whose deployment `name` is (`pdd-4-1-4` is one of `pdd`)."""
    own = [arm.name for arm in experiment.arm if name == arm.name or name.startswith(f"{arm.name}-")]
    return max(own, key=len)


def _best(state: State, experiment: Experiment) -> tuple[set[str], set[str]]:
    """Of every arm of the experiment the deployment with the highest capacity for its cost; and those without rival."""
    best: dict[str, tuple[float, str]] = {}
    for name, one in state.arms.items():
        if one.estimate is None or one.estimate.rate is None:
            continue
        worth = one.estimate.rate / (one.cost_per_hour or 1.0)
        of = belongs_to(name, experiment)
        best[of] = max(best.get(of, (0.0, "")), (worth, name))
    alone = {of for of in best if sum(belongs_to(name, experiment) == of for name in state.arms) == 1}
    return {name for _, name in best.values()}, {best[of][1] for of in alone}


def _row(hit: float, name: str, one: ArmSearch, experiment: Experiment, *, best: bool, anew: bool) -> HitRow:
    from pddbench.report.capacity import mean_of

    assert one.estimate is not None
    kinds = ("requests_a_session", "input_tokens_a_session", "cached_tokens_a_session", "output_tokens_a_session")
    means = {kind: mean_of(one, kind) for kind in kinds}
    return HitRow(
        hit=hit, arm=name, of=belongs_to(name, experiment), best=best, anew=anew, estimate=one.estimate,
        roles=one.roles, uses_line=one.uses_line, cost_per_hour=one.cost_per_hour, runs=len(one.points), **means,
    )  # fmt: skip


def _save(found: Hits, folder: Path) -> None:
    try:
        (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n")
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None
    click.echo(f"{folder}: {FILE} with {len({row.hit for row in found.rows})} hit rates", err=True)
