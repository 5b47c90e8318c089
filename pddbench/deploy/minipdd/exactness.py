"""Are the tokens those of a single process? Every answer is asked for again, of one server that does nothing else."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from pddbench.deploy.minipdd.cluster_a import Job
from pddbench.deploy.minipdd.llama import Generation, Llama
from pddbench.deploy.minipdd.messages import pack_ids, unpack_ids

KEPT_BYTES = 256 << 20  # of ids; answers beyond that are counted as not checked


@dataclass
class _Answer:
    prompt: bytes
    out: bytes
    ignore_eos: bool
    tokens: int
    mode: str
    handoff_token: int


class Exactness:
    """The answers of a run and how they compare. `figures` are for the run folder."""

    def __init__(self) -> None:
        self._waiting: deque[_Answer] = deque()
        self._kept_bytes = 0
        self._counts: dict[str, int] = dict.fromkeys(
            ("replies", "differing", "one_shot", "one_shot_differing", "catch_up", "catch_up_differing", "not_kept"), 0
        )
        self._first_differences: list[int] = []

    def keep(self, job: Job) -> None:
        """Remember a complete answer."""
        answer = _Answer(
            pack_ids(job.ids), pack_ids(job.out), job.ignore_eos, job.tokens,
            str((job.handoff or {}).get("mode", "")), int((job.handoff or {}).get("token", -1)),
        )  # fmt: skip
        size = len(answer.prompt) + len(answer.out)
        if self._kept_bytes + size > KEPT_BYTES:
            self._counts["not_kept"] += 1
            return
        self._kept_bytes += size
        self._waiting.append(answer)

    async def check(self, single: Llama, limit_s: float) -> dict[str, float]:
        """Check what waits, for at most about `limit_s` seconds: the figures so far, `waiting` among them."""
        until = time.monotonic() + limit_s
        while self._waiting and time.monotonic() < until:
            answer = self._waiting.popleft()
            self._kept_bytes -= len(answer.prompt) + len(answer.out)
            self._count(answer, await self._again(answer, single))
        first = min(self._first_differences, default=-1)
        return {**self._counts, "waiting": len(self._waiting), "first_difference_token": first}

    async def _again(self, answer: _Answer, single: Llama) -> list[int]:
        """The same prompt to the single process, nothing cached."""
        async with single.slot() as slot:
            pieces = single.generate(
                Generation(), unpack_ids(answer.prompt), answer.tokens, slot, ignore_eos=answer.ignore_eos, cache=False
            )
            return [piece.token async for piece in pieces]

    def _count(self, answer: _Answer, again: list[int]) -> None:
        out = unpack_ids(answer.out)
        differs = out != again
        for name in ("replies", answer.mode):
            if name:
                self._counts[name] += 1
                self._counts["differing" if name == "replies" else f"{name}_differing"] += differs
        if differs:
            pairs = enumerate(zip(out, again, strict=False))
            self._first_differences.append(next((i for i, (a, b) in pairs if a != b), min(len(out), len(again))))
