"""From a specification to canonical rows, in order of start, in memory that does not grow with the trace.

A long trace is made in parts of about `PART_REQUESTS` requests: each has its share of every bucket (whole numbers that
sum to the total exactly), the mean hit and the mean input of the whole. Sessions of a part start after those of the
part before; their turns interleave, so rows wait until no later part can start before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from pddbench.errors import InputError
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.quota.assign import assign
from pddbench.trace.quota.histogram import largest_remainder, slice_counts
from pddbench.trace.quota.lengths import Draw
from pddbench.trace.quota.prompts import Prompts
from pddbench.trace.quota.solve import Resets, Solved, Unsettled, solve
from pddbench.trace.quota.spec import Law, QuotaSpec, check_spec
from pddbench.trace.quota.structure import Role, Structure, Systems, lay_out
from pddbench.trace.quota.times import Times, times

PART_REQUESTS = 20_000
_ATTEMPTS = 4


@dataclass
class _Pending:
    """A row that lacks only its donor, if that is the latest request with system prompt `system`."""

    row: Row
    needs_system: bool
    system: int  # that its prompt begins with in full, or needs; -1: none
    has_system: bool


def generate(spec: QuotaSpec, requests: int, seed: int) -> Trace:
    """The trace of `requests` requests in memory; `InputError` where the specification cannot be met."""
    return Trace(header(spec, requests, seed), list(generate_rows(spec, requests, seed)))


def header(spec: QuotaSpec, requests: int, seed: int) -> Header:
    """The header of the trace that these three values make."""
    return Header(
        source=f"pddbench trace synth: {spec.name}, {requests} requests, seed {seed}",
        source_format="synthetic",
        licence="Apache-2.0",
        assumptions=[
            "made by a generator to a specification (extra.spec): it was not observed anywhere",
            "hits are as specified for an infinite cache on the prompt basis, in blocks of "
            f"{spec.block_tokens} tokens or a divisor of it",
            f"starts after the first turn assume a service time of {spec.service.base_s:g} s + "
            f"{spec.service.token_s:g} s an output token",
        ],
        extra={"spec": msgspec.json.decode(msgspec.json.encode(spec)), "requests": requests, "seed": seed},
    )


def with_sessions(spec: QuotaSpec, requests: int, sessions: int) -> QuotaSpec:
    """The specification with as many turns a session as give this number of sessions (singular ones not counted)."""
    turns = (requests - round(spec.singular.share * requests)) / sessions
    if turns < 1:
        raise InputError(f"{sessions:,} sessions need at least as many requests that are not singular")
    most = max(spec.turns.max, 8 * turns)
    if spec.turns.kind == "quantiles" or turns == 1:
        return msgspec.structs.replace(spec, turns=Law(kind="fixed", mean=turns, max=most))
    return msgspec.structs.replace(spec, turns=msgspec.structs.replace(spec.turns, mean=turns, max=most))


def generate_rows(spec: QuotaSpec, requests: int, seed: int) -> Iterator[Row]:
    """The rows one by one, donors and parents first, in order of nominal start."""
    check_spec(spec)
    if requests < 1:
        raise InputError(f"a trace of {requests} requests cannot be made")
    counts = largest_remainder(spec.shares, requests)
    n_singular = round(spec.singular.share * requests)
    parts = max(1, round(requests / PART_REQUESTS))
    systems, resets = Systems.drawn(spec, requests, Draw(seed, "systems")), Resets()
    latest: dict[int, str] = {}
    pending: list[_Pending] = []
    from_s, session = 0.0, 0
    for part in range(parts):
        mine, mine_singular = slice_counts(counts, part, parts), slice_counts([n_singular], part, parts)[0]
        made = _part(spec, mine, mine_singular, from_s, systems, resets, (seed, part))
        structure = made.structure
        pending += _rows(made, session)
        pending.sort(key=_start_s)
        session, from_s = session + len(structure.start_s), structure.last_start_s
        ready = len(pending) if part == parts - 1 else sum(_start_s(item) <= from_s for item in pending)
        yield from (_finished(item, latest) for item in pending[:ready])
        del pending[:ready]


@dataclass
class _Part:
    """Some consecutive sessions, ready to be written."""

    structure: Structure
    solved: Solved
    when: Times


def _part(
    spec: QuotaSpec,
    counts: list[int],
    n_singular: int,
    from_s: float,
    systems: Systems,
    resets: Resets,
    seed: tuple[int, int],
) -> _Part:
    """A part with these counts; where one arrangement does not settle, others are tried."""
    for attempt in range(_ATTEMPTS):
        draw, warm = Draw(*seed, attempt), systems.warm.copy()
        structure = lay_out(spec, sum(counts), n_singular, from_s, systems, draw)
        try:
            solved = solve(spec, structure, assign(structure, counts, spec, draw), resets, draw)
        except Unsettled:
            systems.warm, resets.logs = warm, None
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            return _Part(structure, solved, times(spec, structure, solved, draw))
    raise AssertionError("unreachable")


def _start_s(item: _Pending) -> float:
    assert item.row.start_s is not None  # every generated row has one
    return item.row.start_s


def _finished(item: _Pending, latest: dict[int, str]) -> Row:
    row = item.row
    if item.needs_system:
        row = msgspec.structs.replace(row, prefix_of=latest[item.system])
    if item.has_system:
        latest[item.system] = row.request_id
    return row


def _rows(part: _Part, first_session: int) -> list[_Pending]:
    structure, solved, when = part.structure, part.solved, part.when
    names = _names(structure, first_session)
    is_side = _in_subagents(structure)
    made, in_full = solved.prompts, _begin_with_system(structure, solved.prompts)
    systems, turns, tokens = structure.system.tolist(), structure.turn.tolist(), structure.system_tokens.tolist()
    out = []
    for slot, before in enumerate(structure.previous.tolist()):
        hit, appends = made.hits[slot], made.appends[slot]
        needs_system = systems[slot] >= 0 and 0 < hit <= tokens[slot] and not appends
        row = Row(
            request_id=names[slot],
            session_id=names[slot].split(".")[0],
            turn=turns[slot],
            input_tokens=made.inputs[slot],
            output_tokens=solved.outputs[slot],
            parents=tuple(names[parent] for parent in when.parents[slot]),
            start_s=when.start_s[slot],
            gap_s=when.gap_s[slot],
            prefix_of=names[before] if hit and not needs_system else None,
            prefix_tokens=hit + (solved.outputs[before] if appends else 0),
            kind="subagent" if is_side[slot] else made.kinds[slot],
        )
        out.append(_Pending(row, needs_system, systems[slot], in_full[slot]))
    return out


def _names(structure: Structure, first_session: int) -> list[str]:
    """`s` (singular: `x`), the session's number, and the request's number in it."""
    numbers: dict[int, int] = {}
    names = []
    for session, role in zip(structure.session.tolist(), structure.role.tolist(), strict=True):
        numbers[session] = numbers.get(session, -1) + 1
        letter = "x" if role == Role.SINGULAR else "s"
        names.append(f"{letter}{first_session + session:06d}.{numbers[session]}")
    return names


def _in_subagents(structure: Structure) -> list[bool]:
    side: list[bool] = []
    for before, spawner in zip(structure.previous.tolist(), structure.spawner.tolist(), strict=True):
        side.append(spawner >= 0 or (before >= 0 and side[before]))
    return side


def _begin_with_system(structure: Structure, made: Prompts) -> list[bool]:
    """By slot: the prompt begins with the whole of its shared system prompt."""
    full: list[bool] = []
    columns = zip(structure.role.tolist(), structure.system.tolist(), structure.system_tokens.tolist(), strict=True)
    for slot, (role, system, tokens) in enumerate(columns):
        hit, before = made.hits[slot], int(structure.previous[slot])
        if system < 0:
            full.append(False)
        elif role == Role.COLD or (hit == tokens and not made.appends[slot]):
            full.append(True)
        else:
            full.append(hit > tokens and full[before])
    return full
