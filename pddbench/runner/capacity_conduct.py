"""The flow of `pddbench capacity`: check, agree, search arm by arm, save after every run, answer."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from pddbench import exitcodes
from pddbench.analyze import money
from pddbench.errors import InputError
from pddbench.runner import consent
from pddbench.runner.capacity import (
    FILE,
    VOID,
    ArmSearch,
    Runs,
    SearchOptions,
    State,
    objectives,
    search_arm,
    take_up,
)
from pddbench.workload.experiment import Arm, Experiment, Role

if TYPE_CHECKING:
    from pddbench.trace.model import Trace

_MOST_COUNTS = 2_000_000


@dataclass(frozen=True)
class CapacityOptions:
    """What the command line says besides the search itself."""

    out: Path | None = None
    arms: tuple[str, ...] = ()
    splits: int = 0
    relays: tuple[int, ...] = ()
    hits: tuple[float, ...] = ()
    yes: bool = False
    max_cost: float | None = None
    as_json: bool = False


def conduct(experiment: Experiment, options: SearchOptions, command: CapacityOptions) -> int:
    """Search every arm; returns the exit code. Raises `PddbenchError`."""
    _check(experiment, options, command)
    chosen = [arm for arm in experiment.arm if not command.arms or arm.name in command.arms]
    folder = command.out or _default_folder(experiment.name)
    if command.splits:
        chosen = [*chosen, *_split_arms(experiment, command.splits)]
    chosen = [*chosen, *relay_arms(experiment, command.relays)]
    if command.hits:
        from pddbench.runner.capacity_hits import over_hits

        return over_hits(experiment, options, command, chosen, folder)
    state, code = search_all(experiment, options, command, chosen, folder)
    _answer(state, folder, as_json=command.as_json)
    return code if code is not None else _exit_code(state)


def search_all(
    experiment: Experiment, options: SearchOptions, command: CapacityOptions, chosen: list[Arm], folder: Path,
    trace: Trace | None = None,
) -> tuple[State, int | None]:  # fmt: skip
    """Search every chosen arm, saved after every run; the state, and the exit code of a signal that came."""
    state = _taken_up(folder, experiment, options)
    runs = Runs(experiment, options, folder, trace)
    consent.ask(runs.base, yes=command.yes, max_cost=command.max_cost)
    if state is None:
        state = _new_state(experiment, options, runs)
    code = None
    for arm in chosen:
        found = state.arms.setdefault(arm.name, ArmSearch())
        found.cost_per_hour, found.roles = _cost(arm, experiment)
        found.uses_line = money.uses_line({"emulated": arm.emulated, "roles": found.roles, "line": arm.line})
        code = search_arm(runs, arm, found, options, lambda: save(state, folder), _say(options.quiet))
        if code is not None:
            break
    save(state, folder)
    return state, code


def relay_arms(experiment: Experiment, counts: tuple[int, ...]) -> list[Arm]:
    """Every emulated pdd arm with other counts of relays, all else as it is; their cost differs, and BCR says so."""
    out = []
    for arm in experiment.arm:
        if arm.emulated == "pdd":
            _, roles = _cost(arm, experiment)
            for count in counts:
                chosen = {name: Role(chip=str(role["chip"]), count=int(str(role["count"])) if name != "RLD" else count)
                          for name, role in roles.items()}  # fmt: skip
                out.append(msgspec.structs.replace(arm, name=f"{arm.name}-rld{count}"[:40], roles=chosen))
    return out


def _say(quiet: bool) -> Callable[[str], None]:
    def say(line: str) -> None:
        if not quiet:
            click.echo(line, err=True)

    return say


def _exit_code(state: State) -> int:
    """98 when an arm's search was ended by void runs: what is said of it is not what was asked for."""
    spoilt = [found for found in state.arms.values() if found.stopped and found.stopped.startswith(VOID)]
    return exitcodes.INVALID if spoilt else exitcodes.GOOD


def _default_folder(name: str) -> Path:
    from pddbench.runner.conduct import default_folder

    return default_folder(f"{name}-capacity")


def _check(experiment: Experiment, options: SearchOptions, command: CapacityOptions) -> None:
    from pddbench.errors import suggest

    names = [arm.name for arm in experiment.arm]
    for name in command.arms:
        if name not in names:
            raise InputError(f"--arm {name}: no such arm; {suggest(name, names)}")
    if not any(value is not None for value in msgspec.to_builtins(experiment.slo).values()):
        raise InputError("capacity needs objectives: give the experiment an [slo] table (ttft_sched_ms = 2000, …)")
    if not 0 < options.target < 1:
        raise InputError(f"--target {options.target:g}: a share between 0 and 1 (90% is 0.9)")
    if not 0 < options.half_width < 1:
        raise InputError(f"--half-width {options.half_width:g}: a share between 0 and 1 (5% is 0.05)")
    for flag, value in (("--run-s", options.run_s), ("--start-rate", options.start_rate)):
        if value is not None and not 0 < value < 1e7:
            raise InputError(f"{flag} {value:g}: must be above 0")
    if not 0 <= options.warmup_s < 1e7:
        raise InputError(f"--warmup-s {options.warmup_s:g}: cannot be negative")
    simulated = options.simulated
    if simulated and any(arm.emulated is None for arm in experiment.arm):
        raise InputError("only emulated arms can be simulated: leave the arms with a base_url out")
    for flag, given in (("--splits", command.splits), ("--relays", command.relays), ("--hits", command.hits)):
        if given and not simulated:
            raise InputError(f"{flag} needs --simulate: it runs the search for many deployments")


def _new_state(experiment: Experiment, options: SearchOptions, runs: Runs) -> State:
    emulated = all(arm.emulated for arm in experiment.arm)
    return State(
        name=experiment.name,
        config_sha256=_digest(experiment, options),
        measured="simulated" if options.simulated else "emulated" if emulated else "live",
        target=options.target,
        half_width=options.half_width,
        budget=options.budget,
        warmup_s=options.warmup_s,
        run_s=runs.run_s,
        slo=objectives(experiment),
        currency=experiment.cost.currency,
        prices=dict(experiment.cost.chips),
        line=experiment.cost.line,
        seed=experiment.workload.seed,
    )


def _digest(experiment: Experiment, options: SearchOptions) -> str:
    """What must be the same for a search to go on; budget and half-width may change."""
    fixed = (options.target, options.warmup_s, options.run_s, options.simulated)
    return hashlib.sha256(msgspec.json.encode([msgspec.to_builtins(experiment), fixed], order="sorted")).hexdigest()


def _taken_up(folder: Path, experiment: Experiment, options: SearchOptions) -> State | None:
    """The state of an earlier search in `folder`; arms that ended on their budget or half-width may go on."""
    file = folder / FILE
    if not file.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists and holds no {FILE}: choose another --out")
        return None
    try:
        state = msgspec.json.decode(file.read_bytes(), type=State)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"{file}: cannot be read as the state of a search ({error}); choose another --out") from None
    if state.config_sha256 != _digest(experiment, options):
        raise InputError(f"{folder} holds a search of another experiment, target or run length: choose another --out")
    state.budget, state.half_width = options.budget, options.half_width
    for found in state.arms.values():
        take_up(found, options)
    return state


def save(state: State, folder: Path) -> None:
    """Write `capacity.json`, answers included, so that a crash leaves the old one or the new one."""
    from pddbench.report.capacity import document

    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / (FILE + ".tmp")
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(document(state)), indent=2) + b"\n")
        temporary.replace(folder / FILE)
    except OSError as error:
        raise InputError(f"cannot write to {folder}: {error.strerror}; choose another --out") from None


def _answer(state: State, folder: Path, *, as_json: bool) -> None:
    from pddbench.report import capacity as report

    report.draw(state, folder)
    report.show(state, as_json=as_json)
    if as_json:
        return
    click.echo(f"{folder}: {FILE}, report.html, capacity.png", err=True)


def _cost(arm: Arm, experiment: Experiment) -> tuple[float | None, dict[str, dict[str, object]]]:
    roles = {name: {"chip": role.chip, "count": role.count} for name, role in arm.roles.items()}
    if arm.emulated is not None:
        from pddbench.deploy.presets import ROLES

        roles = {name: {"chip": chip, "count": count} for name, (chip, count) in ROLES[arm.emulated].items()} | roles
    facts = {"emulated": arm.emulated, "roles": roles, "line": arm.line}
    return money.cost_per_hour(facts, msgspec.to_builtins(experiment.cost)), roles


def _split_arms(experiment: Experiment, most: int) -> list[Arm]:
    """For every emulated arm: other counts of its roles for the first arm's money, at most `most` of each.

    Only counts that leave no room for one more chip are tried, those nearest to the arm's own first: an untuned
    baseline is the usual trick, so every arm gets the same chance.
    """
    budget, _ = _cost(experiment.arm[0], experiment)
    if budget is None:
        raise InputError("--splits compares at equal cost: give [cost] chips a price for every chip")
    out: list[Arm] = []
    for arm in experiment.arm:
        _, roles = _cost(arm, experiment)
        out += [_with_counts(arm, roles, counts) for counts in _counts(arm, roles, experiment, budget)[:most]]
    return out


def _counts(
    arm: Arm, roles: dict[str, dict[str, object]], experiment: Experiment, budget: float
) -> list[tuple[int, ...]]:
    """Counts of each role that spend the budget, nearest to the arm's own first."""
    prices = [experiment.cost.chips[str(role["chip"])] for role in roles.values()]
    line = (
        experiment.cost.line if money.uses_line({"emulated": arm.emulated, "roles": roles, "line": arm.line}) else 0.0
    )
    room = budget - line
    own = [int(str(role["count"])) for role in roles.values()]
    spans = [range(1, max(2, int(room // price) + 1)) for price in prices]
    if math.prod(len(span) for span in spans) > _MOST_COUNTS:
        raise InputError(f"--splits: arm {arm.name!r} has too many possible counts: scale the chips down")
    found = []
    for counts in itertools.product(*spans):
        spent = sum(n * price for n, price in zip(counts, prices, strict=True))
        if spent <= room + 1e-9 and spent + min(prices) > room + 1e-9 and list(counts) != own:
            found.append(counts)
    return sorted(found, key=lambda counts: sum(abs(n - m) for n, m in zip(counts, own, strict=True)))


def _with_counts(arm: Arm, roles: dict[str, dict[str, object]], counts: tuple[int, ...]) -> Arm:
    chosen = {
        name: Role(chip=str(role["chip"]), count=n) for (name, role), n in zip(roles.items(), counts, strict=True)
    }
    name = f"{arm.name}-{'-'.join(map(str, counts))}"[:40]
    return msgspec.structs.replace(arm, name=name, roles=chosen)


def search_options(**given: object) -> SearchOptions:
    """Options from the command line, defaults where none was given."""
    return replace(SearchOptions(), **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]
