"""Who follows whom: sessions of turns, sub-agents beside them, singular requests, and where the low hits fall.

A *slot* is a request whose lengths are not known yet. Slots are listed session by session, each after the slot whose
context it goes on from; singular requests come last.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from pddbench.errors import InputError
from pddbench.trace.quota.lengths import Draw, mean_of, sample
from pddbench.trace.quota.spec import QuotaSpec

Ints = npt.NDArray[np.int64]
LOW_BELOW = 0.90  # buckets that end here or earlier hold the low hits, which cluster and change the context


class Role(IntEnum):
    """What a slot is, which decides how its prompt is built."""

    COLD = 0  # the root of a session that shares with nobody before it
    ROOT = 1  # a root (of a session or of a sub-agent) on a shared system prompt
    TURN = 2  # a turn on the context before it
    SINGULAR = 3


@dataclass
class Line:
    """A session's slots as they are laid out: `joins` maps a main-line slot to the last slot of a sub-agent."""

    session: list[int] = field(default_factory=list)
    previous: list[int] = field(default_factory=list)
    spawner: list[int] = field(default_factory=list)
    turn: list[int] = field(default_factory=list)
    joins: dict[int, int] = field(default_factory=dict)

    def add(self, session: int, previous: int, spawner: int, turn: int) -> int:
        """A slot after `previous` (-1: it starts a line), a sub-agent's first one after `spawner`; its number."""
        self.session.append(session)
        self.previous.append(previous)
        self.spawner.append(spawner)
        self.turn.append(turn)
        return len(self.session) - 1


@dataclass
class Structure:
    """Slots as columns, shape (n,). `start_s` is by session, singular ones included."""

    session: Ints
    previous: Ints  # the slot whose context this one goes on from, -1 for roots
    spawner: Ints  # of the first slot of a sub-agent: the main-line slot it follows, else -1
    turn: Ints
    role: Ints
    system_tokens: Ints  # of the system prompt that the slot's session begins with, 0: its own
    system: Ints  # its number, -1: its own
    joins: dict[int, int]
    start_s: list[float]

    @property
    def last_start_s(self) -> float:
        """Of the sessions (singular ones start before)."""
        return max(self.start_s)

    @property
    def cold(self) -> npt.NDArray[np.bool_]:
        """Slots whose hit is 0 because nobody has sent their system prompt before."""
        cold: npt.NDArray[np.bool_] = self.role == Role.COLD
        return cold


@dataclass
class Systems:
    """The shared system prompts, and which of them have been sent already."""

    tokens: list[int]
    warm: set[int] = field(default_factory=set)

    @classmethod
    def drawn(cls, spec: QuotaSpec, requests: int, draw: Draw) -> Systems:
        """System prompts of lengths after the law, multiples of the block; at most one for five sessions."""
        block = spec.block_tokens
        sessions = requests * (1 - spec.singular.share) / max(1.0, mean_of(spec.turns))
        count = min(spec.system.count, max(1, int(sessions / 5)))
        tokens = sample(spec.system.tokens, count, draw) if count else np.zeros(0)
        return cls([max(block, int(n / block + 0.5) * block) for n in tokens.tolist()])

    def pick(self, spec: QuotaSpec, draw: Draw) -> int:
        """One of them, the first ones more often (weights 1, 1/2, 1/3, …); -1 for a session with its own."""
        if not self.tokens or draw.one() < spec.system.cold_share:
            return -1
        weights = np.cumsum(1 / np.arange(1, len(self.tokens) + 1))
        return int(np.searchsorted(weights, draw.one() * weights[-1], side="right"))


def lay_out(spec: QuotaSpec, n: int, n_singular: int, from_s: float, systems: Systems, draw: Draw) -> Structure:
    """Slots for n requests, `n_singular` of them singular, in sessions that start from `from_s` on."""
    turns = _turns(spec, n - n_singular, draw)
    starts = _starts(spec, len(turns), from_s, draw)
    line = Line()
    for session, length in enumerate(turns):
        _add_session(line, session, length, spec, draw)
    for number in range(n_singular):
        line.add(len(turns) + number, -1, -1, 0)
    begin, end = from_s, starts[-1] if starts else from_s + n_singular / spec.arrival.session_rate
    starts += sorted(round(begin + (end - begin) * draw.one(), 3) for _ in range(n_singular))
    return _with_roles(line, starts, n - n_singular, spec, systems, draw)


def _turns(spec: QuotaSpec, n: int, draw: Draw) -> list[int]:
    """Turns of each session, n in all."""
    if n == 0:
        return []
    sessions = min(n, max(1, round(n / max(1.0, mean_of(spec.turns)))))
    drawn = np.maximum(1, np.round(sample(spec.turns, sessions, draw)).astype(np.int64))
    order = draw.permutation(sessions)
    step = 1 if drawn.sum() < n else -1
    while (missing := n - int(drawn.sum())) != 0:  # a turn more (or less) for sessions in turn, the longer ones first
        able = order[drawn[order] + step >= 1]
        able = able[np.argsort(-drawn[able], kind="stable")][: abs(missing)]
        drawn[able] += step
    return [int(length) for length in drawn]


def _starts(spec: QuotaSpec, sessions: int, from_s: float, draw: Draw) -> list[float]:
    """Start times in order: gaps of a gamma law with mean 1/rate, in whole milliseconds."""
    shape, clock, starts = spec.arrival.shape, from_s, []
    for _ in range(sessions):
        clock += _gamma(shape, draw) / shape / spec.arrival.session_rate
        starts.append(round(clock, 3))
    return starts


def _gamma(shape: float, draw: Draw) -> float:
    """A gamma variate of scale 1 (Marsaglia and Tsang 2000; below shape 1 by the usual power of a uniform)."""
    if shape == 1.0:
        return float(-np.log1p(-draw.one()))
    if shape < 1.0:
        return _gamma(shape + 1.0, draw) * float((1.0 - draw.one()) ** (1.0 / shape))
    d = shape - 1 / 3
    c = 1 / np.sqrt(9 * d)
    while True:
        x = np.sqrt(-2 * np.log1p(-draw.one())) * np.cos(2 * np.pi * draw.one())
        v = (1 + c * x) ** 3
        if v > 0 and np.log1p(-draw.one()) < 0.5 * x * x + d - d * v + d * np.log(v):
            return float(d * v)


def _add_session(line: Line, session: int, length: int, spec: QuotaSpec, draw: Draw) -> None:
    """`length` slots: a main line, and now and then a sub-agent after one of its turns, joining two turns later."""
    side = 0
    if draw.one() < spec.subagents.share:
        room = length - 3  # the main line keeps the turn before, the one beside and the one that joins
        most = min(spec.subagents.max_turns, room)
        if most >= spec.subagents.min_turns:
            side = spec.subagents.min_turns + draw.below(most - spec.subagents.min_turns + 1)
    spawn = draw.below(length - side - 2) if side else -1
    last, joining = -1, -1
    for turn in range(length - side):
        slot = line.add(session, last, -1, turn)
        if side and turn == spawn + 2:
            line.joins[slot] = joining
        last = slot
        if side and turn == spawn:
            joining = _add_subagent(line, session, slot, side)


def _add_subagent(line: Line, session: int, spawner: int, turns: int) -> int:
    last = -1
    for turn in range(turns):
        last = line.add(session, last, spawner if turn == 0 else -1, turn)
    return last


def _with_roles(
    line: Line, starts: list[float], n_sessions_slots: int, spec: QuotaSpec, systems: Systems, draw: Draw
) -> Structure:
    session, previous, spawner = (np.array(x, dtype=np.int64) for x in (line.session, line.previous, line.spawner))
    role = np.where(previous >= 0, Role.TURN, Role.ROOT).astype(np.int64)
    role[n_sessions_slots:] = Role.SINGULAR
    system_of = np.array([systems.pick(spec, draw) for _ in starts], dtype=np.int64)
    tokens = np.array([*systems.tokens, 0], dtype=np.int64)  # number -1 is the last: none
    root = np.flatnonzero((previous < 0) & (spawner < 0))
    role[(previous < 0) & (system_of[session] < 0) & (role == Role.ROOT)] = Role.COLD
    for slot in root[np.argsort(np.array(starts)[session[root]], kind="stable")].tolist():
        _meet(slot, int(session[slot]), system_of, role, systems)
    system = system_of[session]
    return Structure(
        session,
        previous,
        spawner,
        np.array(line.turn, dtype=np.int64),
        role,
        tokens[system],
        system,
        line.joins,
        starts,
    )


def _meet(slot: int, session: int, system_of: Ints, role: Ints, systems: Systems) -> None:
    """Roots in order of start: the first of a system prompt hits nothing; a singular one then gets its own prompt."""
    system = int(system_of[session])
    if system < 0 or system in systems.warm:
        return
    if role[slot] == Role.SINGULAR:
        system_of[session] = -1
        return
    systems.warm.add(system)
    role[slot] = Role.COLD


def low_turns(n: int, n_low: int, lag1: float, draw: Draw) -> npt.NDArray[np.bool_]:
    """Which of n turns in a row hit low: exactly `n_low`, in runs as a two-state Markov chain with this lag-1 makes.

    Given the number of runs, a Markov chain's runs are a uniform composition of their total; so they are here.
    """
    if n_low > n:
        raise InputError(f"{n_low} low hits are to fall on {n} turns: fewer low hits or fewer sessions are needed")
    n_high = n - n_low
    stay = lag1 + (1 - lag1) * n_low / max(n, 1)
    runs = min(max(round(n_low * (1 - stay)), 1), n_low, n_high + 1) if n_low else 0
    low = _composition(n_low, runs, draw)
    high = _composition(n_high + 2, runs + 1, draw)  # the first and the last may be empty
    high[0] -= 1
    high[-1] -= 1 if runs else 0
    out = np.zeros(n, dtype=np.bool_)
    at = 0
    for before, length in zip(high.tolist(), low.tolist(), strict=False):
        at += before
        out[at : at + length] = True
        at += length
    return out


def _composition(total: int, parts: int, draw: Draw) -> Ints:
    """`parts` whole numbers of at least 1 that sum to `total`, uniformly among all such lists."""
    if parts <= 1:
        return np.full(parts, total, dtype=np.int64)
    cuts = np.sort(draw.permutation(total - 1)[: parts - 1]) + 1
    return np.diff(np.concatenate([[0], cuts, [total]]))
