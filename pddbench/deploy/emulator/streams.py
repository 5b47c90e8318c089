"""Answers being produced, and who made which tokens of them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pddbench.deploy.emulator.steps import StepLog
from pddbench.deploy.emulator.tokens import TokenChain


class Stream:
    """An answer being produced: `made` tokens so far, how long it will be, and ids to extend before it goes on.

    `context_tokens` is its prompt. `chain` holds the tokens themselves; None: only their number is kept.
    """

    __slots__ = ("chain", "context_tokens", "extend_tokens", "finish_step", "joined_step", "limit", "lost_kv", "made",
                 "made_before", "rid", "seed")  # fmt: skip

    def __init__(
        self,
        rid: int,
        seed: int,
        limit: int,
        handed: Iterable[int] | int = (),
        extend_tokens: int = 0,
        context_tokens: int = 0,
        by_token: bool = True,
    ) -> None:
        self.rid, self.seed, self.limit, self.extend_tokens = rid, seed, limit, extend_tokens
        self.context_tokens = context_tokens
        self.chain: TokenChain | None = None
        if isinstance(handed, int):
            self.made = handed
        else:
            self.chain = TokenChain(seed, handed) if by_token else None
            self.made = len(self.chain.ids) if self.chain is not None else len(list(handed))
        self.made_before = self.made  # when it joined its batch
        self.joined_step = self.finish_step = 0
        self.lost_kv = False  # preempted: its KV must be computed again

    @property
    def done(self) -> bool:
        """All its tokens are there."""
        return self.made >= self.limit

    def made_at(self, step: int, tokens_per_step: float) -> int:
        """Tokens it has made when `step` steps of its instance are over."""
        made = self.made_before + tokens_after_steps(step - self.joined_step, tokens_per_step)
        return min(self.limit, made)


def tokens_after_steps(steps: int, tokens_per_step: float) -> int:
    """Whole tokens that a stream has made in so many steps."""
    return math.floor(steps * tokens_per_step + 1e-9)


Step = list[tuple[Stream, int, int]]  # stream, index of its new token, the token


class Stretch:
    """Tokens [first, first + count) of a request, made by consecutive steps of one instance (from `step` on)."""

    __slots__ = ("count", "first", "log", "rid", "step", "tokens_per_step")

    def __init__(self, rid: int, first: int, count: int, log: StepLog, step: int, tokens_per_step: float) -> None:
        self.rid, self.first, self.count, self.log = rid, first, count, log
        self.step, self.tokens_per_step = step, tokens_per_step
