"""From planned hits to prompts: one pass along the lines of turns gives every slot its length and its hit in tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pddbench.trace.quota.lengths import Draw, Floats, longest
from pddbench.trace.quota.spec import QuotaSpec
from pddbench.trace.quota.structure import Role, Structure

_FAR = 3.0  # nor may a compaction make it so many times shorter


@dataclass
class Prompts:
    """By slot: tokens of the prompt, those of them that hit, and how it came about.

    `appends`: the prompt is the whole context of the slot before it (prompt and reply) and new text. `misfits`: slots
    whose bucket no prompt of whole tokens on this context is in.
    """

    inputs: list[int]
    hits: list[int]
    appends: list[bool]
    kinds: list[str]
    misfits: list[int] = field(default_factory=list)

    @classmethod
    def blank(cls, n: int) -> Prompts:
        """All still to be filled in."""
        return cls([0] * n, [0] * n, [False] * n, [""] * n)

    def put(self, slot: int, input_tokens: int, hit_tokens: int, kind: str, appends: bool = False) -> None:
        """Fill one slot in."""
        self.inputs[slot], self.hits[slot], self.kinds[slot] = input_tokens, hit_tokens, kind
        self.appends[slot] = appends


@dataclass
class Builder:
    """What does not change between passes. `low_kind` is wanted where a turn hits low, `is_user` names an append."""

    spec: QuotaSpec
    structure: Structure
    bucket: list[int]
    low: list[bool]
    fixed_input: list[int]
    fixed_hit: list[int]
    low_kind: list[str]
    is_user: list[bool]
    longest: float
    near: float

    @classmethod
    def drawn(
        cls, spec: QuotaSpec, structure: Structure, assigned: tuple[Sequence[int], ...], low: Sequence[bool], draw: Draw
    ) -> Builder:
        """With kinds drawn by their weights; `assigned`: bucket, fixed input, fixed hit by slot."""
        n = len(structure.role)
        weights = np.cumsum([spec.low_kinds.tool, spec.low_kinds.edit, spec.low_kinds.compaction])
        kinds = np.searchsorted(weights, draw.uniforms(n) * weights[-1], side="right")
        names = [("tool", "edit", "compaction")[k] for k in kinds.tolist()]
        users = (draw.uniforms(n) < spec.user_share).tolist()
        bucket, fixed_input, fixed_hit = assigned
        return cls(
            spec,
            structure,
            list(bucket),
            list(low),
            list(fixed_input),
            list(fixed_hit),
            names,
            users,
            longest(spec.input),
            spec.low_kinds.stretch,
        )

    def build(self, shares: Floats, resets: Floats) -> Prompts:
        """One pass: `shares` are planned hits, `resets` the lengths of prompts that are free to choose (by slot)."""
        made = Prompts.blank(len(self.bucket))
        roles, previous, tokens = (
            column.tolist() for column in (self.structure.role, self.structure.previous, self.structure.system_tokens)
        )
        columns = zip(roles, previous, tokens, shares.tolist(), resets.tolist(), strict=True)
        for slot, (role, before, system, share, reset) in enumerate(columns):
            if role == Role.TURN:
                context = made.inputs[before]
                if self.low[slot]:
                    self._low_turn(made, slot, context, system, share, reset)
                else:
                    self._append(made, slot, context, share, reset)
            elif self.fixed_input[slot]:
                kind = "singular" if role == Role.SINGULAR else self._root_kind(slot)
                made.put(slot, self.fixed_input[slot], self.fixed_hit[slot], kind)
            elif role == Role.ROOT:
                self._root(made, slot, system, share)
            else:
                made.put(slot, max(self._rounded(reset), system + self.spec.block_tokens), 0, "root")
        return made

    def keep_kinds(self, made: Prompts) -> None:
        """From now on every low turn is of the kind that it is in `made`, so that lengths change without jumps."""
        self.near = np.inf
        for slot, kind in enumerate(made.kinds):
            whole = made.hits[slot] == self.structure.system_tokens[slot]
            self.low_kind[slot] = "tool" if made.appends[slot] else "compaction" if whole else "edit" if kind else kind

    def _root(self, made: Prompts, slot: int, system: int, share: float) -> None:
        """A system prompt (a longer prompt than the law allows: only its beginning), then new text."""
        kind, most = self._root_kind(slot), self.longest
        if system > share * most:
            length = self._rounded(most)
            made.put(slot, length, self._hit_in(made, slot, length, share), kind)
        else:
            made.put(slot, self._length_for(made, slot, system, share), system, kind)

    def _root_kind(self, slot: int) -> str:
        return "subagent" if self.structure.spawner[slot] >= 0 else "root"

    def _append(self, made: Prompts, slot: int, context: int, share: float, reset: float) -> None:
        """The context before and new text; where that would be longer than the law allows, a return to an earlier
        point of the context, to a length of the law.
        """
        if context <= share * self.longest:
            kind = "user" if self.is_user[slot] else "tool"
            made.put(slot, self._length_for(made, slot, context, share), context, kind, appends=True)
        else:
            length = self._rounded(min(reset, self.longest))
            made.put(slot, length, self._hit_in(made, slot, length, share), "edit")

    def _low_turn(self, made: Prompts, slot: int, context: int, system: int, share: float, reset: float) -> None:
        """Much new text, a change somewhere in the context, or a fresh start after the system prompt.

        The kind that is wanted, if it does not make the prompt much longer than `reset`; else a change of the context
        to that length; where the context is too short for this, the whole of it and new text.
        """
        kind, longest = self.low_kind[slot], min(self.longest, self.near * reset)
        enough = 0.0 if self.near == np.inf else reset / _FAR
        if kind == "compaction" and 0 < system <= context and share * enough <= system <= share * longest:
            length = self._length_for(made, slot, system, share)
            made.put(slot, length, system, "compaction" if length < context else "edit")
        elif share * reset > context or (kind == "tool" and context <= share * longest):
            self._append(made, slot, context, share, reset)
        else:
            length = self._rounded(reset)
            made.put(slot, length, self._hit_in(made, slot, length, share), "edit")

    def _rounded(self, length: float) -> int:
        block = self.spec.block_tokens
        return max(block, round(length / block) * block)

    def _inside(self, slot: int, hit: int, length: int) -> bool:
        """Whether this hit lies in the slot's bucket, by the very division that a count makes."""
        if length < hit + self.spec.min_fresh_tokens:
            return False
        low, high = self.spec.edges[self.bucket[slot]], self.spec.edges[self.bucket[slot] + 1]
        return low <= hit / length < high or hit / length == high == 1.0

    def _length_for(self, made: Prompts, slot: int, hit: int, share: float) -> int:
        """The prompt length with which `hit` tokens are nearest to `share` and in the slot's bucket."""
        block = self.spec.block_tokens
        shortest = -(-(hit + self.spec.min_fresh_tokens) // block) * block
        length = max(shortest, round(hit / share / block) * block)
        for candidate in (length, length + block, length - block, length + 2 * block):
            if self._inside(slot, hit, candidate):
                return candidate
        made.misfits.append(slot)
        return max(length, hit + block)

    def _hit_in(self, made: Prompts, slot: int, length: int, share: float) -> int:
        """The hit that is nearest to `share` in a prompt of this length, and in the slot's bucket."""
        block = self.spec.block_tokens
        most = max(0, length - self.spec.min_fresh_tokens) // block * block
        hit = min(most, round(share * length / block) * block)
        for candidate in (hit, hit - block, hit + block):
            if candidate >= 0 and self._inside(slot, candidate, length):
                return candidate
        made.misfits.append(slot)
        return min(hit, length - block)

    def too_short(self, made: Prompts) -> str:
        """What the first misfit means to the user."""
        slot = made.misfits[0]
        low, high = self.spec.edges[self.bucket[slot]], self.spec.edges[self.bucket[slot] + 1]
        return (
            f"a prompt of about {made.inputs[slot]:,} tokens, in blocks of {self.spec.block_tokens} and with at least "
            f"{self.spec.min_fresh_tokens} new tokens, cannot hit a share in [{low:g}, {high:g}]: raise input.mean or "
            "input.min, or lower the share of that bucket"
        )
