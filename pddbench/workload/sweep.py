"""A hit sweep that any endpoint can run: stages of one hit each, every stage whole before the next begins.

The stages are a chain of one session: each has a donor that puts its prefix into the cache, then requests that share
it and are sent at once, so that there is a queue; the next stage's donor waits for all of them. No time has to be
guessed, whatever the endpoint's speed.
"""

from __future__ import annotations

from dataclasses import dataclass

from pddbench.errors import InputError
from pddbench.trace.model import Header, Row, Trace

DONOR = "donor"


@dataclass(frozen=True)
class SweepShape:
    """Prompts of `length` tokens, replies of `output`; hits of 0, `step`, … below 100%; `requests` a stage at once."""

    length: int = 65_536
    output: int = 1
    step: float = 0.04
    requests: int = 16
    block_tokens: int = 64

    def percents(self) -> list[int]:
        """The hits, whole percents."""
        step = round(100 * self.step)
        if not 1 <= step <= 12 or abs(step - 100 * self.step) > 1e-9:
            raise InputError(f"--step {self.step:g}: whole percents of hit from 0.01 to 0.12")
        return list(range(0, 100, step))


def sweep_trace(shape: SweepShape) -> Trace:
    """The sweep as a trace of one session; request ids are `h42-donor`, `h42-0`, … as stages of 42% hit."""
    if shape.length < 10 * shape.block_tokens:
        raise InputError(
            f"--length {shape.length}: below ten cache blocks of {shape.block_tokens} tokens hits are coarse"
        )
    rows: list[Row] = []
    before: tuple[str, ...] = ()
    for percent in shape.percents():
        kept = shape.length * percent // 100 // shape.block_tokens * shape.block_tokens
        donor = f"h{percent:02d}-{DONOR}"
        if kept:
            rows.append(_row(donor, kept, 1, before))
            before = (donor,)
        mine = [f"h{percent:02d}-{n}" for n in range(shape.requests)]
        rows += [_row(name, shape.length, shape.output, before, donor if kept else None, kept) for name in mine]
        before = tuple(mine)
    header = Header(source=f"pddbench bathtub: {shape}", source_format="synthetic", licence="Apache-2.0")
    return Trace(header, [_numbered(row, i) for i, row in enumerate(rows)])


def _row(
    name: str, tokens: int, output: int, parents: tuple[str, ...], donor: str | None = None, kept: int = 0
) -> Row:  # fmt: skip
    return Row(name, "sweep", 0, tokens, output, parents, None if parents else 0.0, 0.0 if parents else None, donor,
               kept, "tool" if parents else "root")  # fmt: skip


def _numbered(row: Row, turn: int) -> Row:
    import msgspec

    return msgspec.structs.replace(row, turn=turn)
