"""When each request starts if every one takes the assumed service time: gaps after parents, and nominal starts."""

from __future__ import annotations

from dataclasses import dataclass

from pddbench.trace.quota.lengths import Draw, sample
from pddbench.trace.quota.solve import Solved
from pddbench.trace.quota.spec import Law, QuotaSpec
from pddbench.trace.quota.structure import Structure


@dataclass
class Times:
    """By slot: nominal start and gap in seconds (roots have no gap), and the slots that must have finished before."""

    start_s: list[float]
    gap_s: list[float | None]
    parents: list[tuple[int, ...]]


def times(spec: QuotaSpec, structure: Structure, solved: Solved, draw: Draw) -> Times:
    """Starts in whole milliseconds; a turn's start is its last parent's end plus its gap."""
    n = len(structure.role)
    gaps = _gaps(spec, structure, solved, draw)
    out, end_s = Times([0.0] * n, [None] * n, [()] * n), [0.0] * n
    columns = zip(structure.session.tolist(), structure.previous.tolist(), structure.spawner.tolist(), strict=True)
    for slot, (session, before, spawner) in enumerate(columns):
        parents = tuple(p for p in (before, spawner, structure.joins.get(slot, -1)) if p >= 0)
        if parents:
            out.gap_s[slot] = gaps[slot]
            out.start_s[slot] = round(max(end_s[p] for p in parents) + gaps[slot], 3)
        else:
            out.start_s[slot] = structure.start_s[session]
        out.parents[slot] = parents
        end_s[slot] = out.start_s[slot] + spec.service.base_s + spec.service.token_s * solved.outputs[slot]
    return out


def _gaps(spec: QuotaSpec, structure: Structure, solved: Solved, draw: Draw) -> list[float]:
    """A gap for each slot (roots make no use of theirs), in whole milliseconds, the long ones where they belong."""
    is_user = [kind == "user" for kind in solved.prompts.kinds]
    users, tools = (iter(sample(law, k, draw).tolist()) for law, k in _gap_laws(spec, is_user))
    gaps = [round(next(users if user else tools), 3) for user in is_user]
    turns = [slot for slot, before in enumerate(structure.previous.tolist()) if before >= 0]
    fallen = {slot for slot in turns if _keeps_only_the_system_prompt(structure, solved, slot)}
    wanted = round(spec.eviction.share * len(fallen))
    short = [slot for slot in fallen if gaps[slot] <= spec.eviction.ttl_s]
    long = [slot for slot in turns if gaps[slot] > spec.eviction.ttl_s and slot not in fallen]
    missing = max(0, wanted - (len(fallen) - len(short)))
    for to, source in zip(_shuffled(short, draw)[:missing], _shuffled(long, draw), strict=False):
        gaps[to], gaps[source] = gaps[source], gaps[to]
    return gaps


def _keeps_only_the_system_prompt(structure: Structure, solved: Solved, slot: int) -> bool:
    return not solved.prompts.appends[slot] and solved.prompts.hits[slot] <= structure.system_tokens[slot]


def _shuffled(slots: list[int], draw: Draw) -> list[int]:
    slots = sorted(slots)
    return [slots[i] for i in draw.permutation(len(slots)).tolist()]


def _gap_laws(spec: QuotaSpec, is_user: list[bool]) -> list[tuple[Law, int]]:
    users = sum(is_user)
    return [(spec.user_gap, users), (spec.tool_gap, len(is_user) - users)]
