"""Traces of our own making, from a seed alone: the same on every platform and with every version of numpy.

Only `random.Random.random` is used (its sequence is guaranteed), and times are rounded to milliseconds.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from pddbench.trace.model import Header, Row, Trace

SYSTEM_TOKENS = 8192
ROOT_FRESH, BIG_FRESH, SUBAGENT_FRESH = (1000, 6000), (4000, 12000), (1000, 3000)
SMALL_FRESH, MEDIUM_FRESH, MEDIUM_SHARE = (20, 300), (300, 1500), 0.3  # tool results: mostly a line or a few
OUTPUT_TOKENS = (60, 160)
GAP_S = (0.5, 5.0)
TURNS = (4, 6)
SESSIONS_PER_S = 0.8
LOW_HIT_SHARE = 0.15  # of the turns after the first: much new text on a kept context, an edited or a compacted one
LOW_HIT_KINDS = ("tool", "edit", "compaction")
SUBAGENT_SHARE = 0.08  # of the sessions
SUBAGENT_TURNS = 2


def agentic_small(sessions: int = 130, seed: int = 1) -> Trace:
    """A small agentic trace: `sessions` conversations of 4 to 6 turns on one shared system prompt of 8192 tokens.

    A turn's prompt is the context before it (prompt and reply) plus a tool result: mostly 20-300 tokens, at times
    300-1500. About 15% of
    the turns hit little: 4000-12000 fresh tokens on the kept context, on an edited one, or on the bare system prompt
    (compaction). In about 8% of the sessions a sub-agent starts after the first turn, runs beside the second and
    joins the third. Sessions start as a Poisson process of 0.8 a second.
    """
    maker = _Maker(random.Random(seed))
    for number in range(sessions):
        maker.session(f"s{number:03d}")
    header = Header(
        source=f"pddbench trace synth --preset agentic-small --sessions {sessions} --seed {seed}",
        source_format="synthetic",
        licence="Apache-2.0",
        assumptions=["made by a generator: it shows the shape of agentic traffic, it was not observed anywhere"],
        extra={"preset": "agentic-small", "sessions": sessions, "seed": seed},
    )
    return Trace(header, maker.rows)


PRESETS = {"agentic-small": agentic_small}


@dataclass
class _Maker:
    """The rows made so far."""

    random: random.Random
    rows: list[Row] = field(default_factory=list)
    clock_s: float = 0.0

    def session(self, name: str) -> None:
        """One conversation: a root, turns one after the other, now and then a sub-agent beside the second turn."""
        self.clock_s += -math.log(1.0 - self.random.random()) / SESSIONS_PER_S
        turns = self._between(TURNS)
        has_subagent = self.random.random() < SUBAGENT_SHARE
        last = self._root(name)
        joining: list[Row] = []
        for turn in range(1, turns):
            spawner, last = last, self._next_turn(last, turn, joining)
            joining = self._subagent(spawner) if has_subagent and turn == 1 else []

    def _between(self, bounds: tuple[int, int]) -> int:
        low, high = bounds
        return low + int(self.random.random() * (high - low + 1))

    def _tool_result(self) -> int:
        return self._between(MEDIUM_FRESH if self.random.random() < MEDIUM_SHARE else SMALL_FRESH)

    def _gap_s(self) -> float:
        return round(GAP_S[0] + self.random.random() * (GAP_S[1] - GAP_S[0]), 3)

    def _add(self, row: Row) -> Row:
        self.rows.append(row)
        return row

    def _root(self, session: str) -> Row:
        donor = self.rows[0] if self.rows else None
        return self._add(
            Row(
                request_id=f"{session}.0",
                session_id=session,
                turn=0,
                input_tokens=SYSTEM_TOKENS + self._between(ROOT_FRESH),
                output_tokens=self._between(OUTPUT_TOKENS),
                start_s=round(self.clock_s, 3),
                prefix_of=donor.request_id if donor else None,
                prefix_tokens=SYSTEM_TOKENS if donor else 0,
                kind="root",
            )
        )

    def _next_turn(self, last: Row, turn: int, joining: list[Row]) -> Row:
        """The turn after `last`, and after the sub-agents that end in `joining`."""
        context = last.input_tokens + last.output_tokens
        kind, kept, fresh = "tool", context, self._tool_result()
        if self.random.random() < LOW_HIT_SHARE:
            kind, fresh = LOW_HIT_KINDS[self._between((0, 2))], self._between(BIG_FRESH)
            kept = {"tool": context, "compaction": SYSTEM_TOKENS}.get(kind) or self._between((SYSTEM_TOKENS, context))
        return self._add(
            Row(
                request_id=f"{last.session_id}.{turn}",
                session_id=last.session_id,
                turn=turn,
                input_tokens=kept + fresh,
                output_tokens=self._between(OUTPUT_TOKENS),
                parents=(last.request_id, *(row.request_id for row in joining)),
                gap_s=self._gap_s(),
                prefix_of=last.request_id,
                prefix_tokens=kept,
                kind=kind,
            )
        )

    def _subagent(self, spawner: Row) -> list[Row]:
        """A sub-agent's own short conversation on the same system prompt, started after `spawner`; its last row."""
        donor, kept, parent = spawner, SYSTEM_TOKENS, spawner
        for turn in range(SUBAGENT_TURNS):
            parent = self._add(
                Row(
                    request_id=f"{spawner.session_id}.a{turn}",
                    session_id=spawner.session_id,
                    turn=turn,
                    input_tokens=kept + (self._tool_result() if turn else self._between(SUBAGENT_FRESH)),
                    output_tokens=self._between(OUTPUT_TOKENS),
                    parents=(parent.request_id,),
                    gap_s=self._gap_s(),
                    prefix_of=donor.request_id,
                    prefix_tokens=kept,
                    kind="subagent",
                )
            )
            donor, kept = parent, parent.input_tokens + parent.output_tokens
        return [parent]
