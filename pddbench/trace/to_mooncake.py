"""Write a trace as Mooncake JSON lines: what the format can express, and in words what it cannot.

A block id stands for a whole prefix: the tokens of a context up to a place are known by the row that brought the last
of them and by the place (`trace.contexts`), so two prompts get the same id exactly where they are the same tokens. A
last block that is not full has an id that only a prompt of the same tokens shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from pddbench.errors import InputError
from pddbench.trace.canonical import replacing
from pddbench.trace.contexts import Segment, contexts, cut
from pddbench.trace.hits import donor_indices, planned_hits
from pddbench.trace.model import Row, Trace
from pddbench.trace.mooncake import BLOCK_TOKENS, MS_PER_S

SUFFIX = ".mooncake.jsonl"


class MooncakeLine(msgspec.Struct, frozen=True):
    """A request as Mooncake writes it; the timestamp in ms, whole where it can be."""

    timestamp: int | float
    input_length: int
    output_length: int
    hash_ids: list[int]


def write_mooncake(trace: Trace, path: Path, block_tokens: int = BLOCK_TOKENS) -> list[str]:
    """Write the rows by start time; what is lost, a sentence each. `InputError` if the format cannot express them."""
    rows = trace.rows
    lines = mooncake_lines(rows, block_tokens)
    encoder = msgspec.json.Encoder()
    order = sorted(range(len(rows)), key=lambda i: lines[i].timestamp)
    try:
        with replacing(path) as file:
            for i in order:
                file.write(encoder.encode(lines[i]) + b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error
    return losses(rows, block_tokens, order) + (["text, roles and tools"] if trace.content else [])


def mooncake_lines(rows: Sequence[Row], block_tokens: int = BLOCK_TOKENS) -> list[MooncakeLine]:
    """The rows in their order; every one needs a recorded start."""
    ids: dict[tuple[int, int], int] = {}
    lines = []
    for row, path in zip(rows, contexts(rows, donor_indices(rows)), strict=True):
        if row.start_s is None:
            problem = "has no recorded start, and Mooncake has nothing but starts; a trace of gaps stays canonical"
            raise InputError(f"request {row.request_id!r} {problem}")
        prompt = cut(path, row.input_tokens)
        hash_ids = [ids.setdefault(key, len(ids)) for key in _block_keys(prompt, row.input_tokens, block_tokens)]
        lines.append(MooncakeLine(_ms(row.start_s), row.input_tokens, row.output_tokens, hash_ids))
    return lines


def _block_keys(prompt: Sequence[Segment], length: int, block: int) -> list[tuple[int, int]]:
    """(row that brought the last token, place after it) of each block."""
    keys = []
    segment = iter(prompt)
    current = next(segment, None)
    for end in [*range(block, length + 1, block), *([length] if length % block else [])]:
        while current is not None and current.end < end:
            current = next(segment, None)
        if current is not None:
            keys.append((current.owner, end))
    return keys


def _ms(start_s: float) -> int | float:
    milliseconds = round(start_s * MS_PER_S, 3)
    return int(milliseconds) if milliseconds.is_integer() else milliseconds


def losses(rows: Sequence[Row], block_tokens: int, order: Sequence[int]) -> list[str]:
    """What Mooncake cannot say of these rows, a sentence each, with how many it concerns."""
    said = []
    if follow := sum(bool(row.parents) for row in rows):
        said.append(f"sessions, parents and gaps of {follow:,} requests: each starts at its recorded time")
    if kinds := {row.kind for row in rows} - {"root"}:
        said.append(f"kinds ({', '.join(sorted(kinds))}) and request ids")
    prompt, both = (int(planned_hits(rows, basis).sum()) for basis in ("prompt", "prompt+output"))
    if both > prompt:
        said.append(f"hits in replies: {both - prompt:,} tokens on the basis prompt+output")
    kept = _hits_in_blocks(rows, block_tokens)
    if kept < prompt:
        said.append(f"hits in parts of a block of {block_tokens}: {prompt - kept:,} of {prompt:,} tokens")
    if list(order) != list(range(len(rows))):
        said.append("the order of the rows: they are written by start time, which moves hits between requests")
    return said


def _hits_in_blocks(rows: Sequence[Row], block: int) -> int:
    """Planned hits as block ids show them: whole blocks, or a whole prompt that was there before."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for row, path in zip(rows, contexts(rows, donor_indices(rows)), strict=True):
        keys = _block_keys(cut(path, row.input_tokens), row.input_tokens, block)
        for key in keys:
            if key not in seen:
                break
            total = total + (row.input_tokens % block if key is keys[-1] and row.input_tokens % block else block)
        seen.update(keys)
    return total
