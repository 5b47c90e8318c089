"""Reader for Mooncake traces: JSON lines of `timestamp` (ms), `input_length`, `output_length`, `hash_ids` (512 tokens).

Source: kvcache-ai/Mooncake, FAST25-release/traces; AIPerf's rows without sessions may lack `hash_ids`.
Every request is a session of its own and a root; ids are compared over the whole file. Times become seconds from the
trace's own zero.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec

from pddbench.errors import TraceError
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.source import INT32_MAX, decode, file_sha256, numbered_lines
from pddbench.trace.trie import PrefixTrie
from pddbench.trace.units import check_seconds, time_unit

BLOCK_TOKENS = 512
MS_PER_S = 1000

Tokens = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


_SESSION_FIELDS = ("session_id", "conversation_id", "delay", "chat_id", "parent_chat_id")


def read_mooncake(path: Path, block_tokens: int | None = None) -> Trace:
    """The trace in a Mooncake file; a bad line is a `TraceError` with its number and field.

    `block_tokens` in place of 512.
    """
    block = block_tokens or BLOCK_TOKENS
    lines = _lines(path)
    in_file_order = all(a.timestamp <= b.timestamp for (_, a), (_, b) in pairwise(lines))
    lines.sort(key=lambda numbered: numbered[1].timestamp)  # stable: equal stamps keep the order of the file
    rows = _rows(lines, block)
    counts = _counts([line for _, line in lines], block)
    header = Header(
        source=path.name,
        source_format="mooncake",
        source_sha256=file_sha256(path),
        block_tokens=block,
        id_scope="file",
        assumptions=_assumptions(rows, counts, in_file_order, block),
        counts=counts,
    )
    return Trace(header, rows)


def _lines(path: Path) -> list[tuple[int, _Line]]:
    decoder = msgspec.json.Decoder(_Line)
    lines = []
    for number, raw in numbered_lines(path):
        try:
            line = decode(decoder, raw, path, number)
            check_seconds(line.timestamp / MS_PER_S, path, number, "timestamp")
            lines.append((number, line))
        except TraceError as error:
            if error.field in _SESSION_FIELDS:
                problem = (
                    "rows with sessions may be increments, not whole prompts: read them with --format mooncake-sessions"
                )
                raise TraceError(path, number, error.field, problem) from error
            raise
    return lines


def _ids(line: _Line) -> list[int]:
    return [] if isinstance(line.hash_ids, msgspec.UnsetType) else line.hash_ids


def _rows(lines: list[tuple[int, _Line]], block: int) -> list[Row]:
    trie = PrefixTrie(block)
    names = [f"L{number}" for number, _ in lines]
    rows = []
    for name, (_, line) in zip(names, lines, strict=True):
        donor, shared = trie.add(_ids(line), line.input_length, line.output_length)
        rows.append(
            Row(
                request_id=name,
                session_id=name,
                turn=0,
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                start_s=line.timestamp / MS_PER_S,
                prefix_of=names[donor] if donor >= 0 else None,
                prefix_tokens=shared,
            )
        )
    return rows


def _counts(lines: list[_Line], block: int) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for line in lines:
        absent = line.hash_ids is msgspec.UNSET
        counts["rows_without_ids"] += absent
        counts["id_count_mismatches"] += not absent and len(_ids(line)) != -(-line.input_length // block)
        counts["zero_outputs"] += line.output_length == 0
        counts["zero_inputs"] += line.input_length == 0
    return {name: n for name, n in counts.items() if n}


def _assumptions(rows: list[Row], counts: dict[str, int], in_file_order: bool, block: int) -> list[str]:
    said = [time_unit([row.start_s or 0.0 for row in rows], "timestamp", "milliseconds", "seconds", "microseconds")]
    said.append(f"hash_ids are blocks of {block} tokens, the same id the same prefix in the whole file")
    said.append("ids cover prompts only: what a prompt shares with a reply is not seen, so both hit bases agree")
    said.append("every request is a session of its own (the format names no sessions)")
    if not in_file_order:
        said.append("timestamps were not ascending: rows are sorted by time, equal times in the order of the file")
    if absent := counts.get("rows_without_ids"):
        said.append(f"rows without hash_ids: {absent}, their prompts are wholly fresh")
    if mismatches := counts.get("id_count_mismatches"):
        said.append(
            f"warning: {mismatches} rows whose number of hash_ids is not input_length / {block} rounded up: "
            "ids beyond the input are ignored, tokens beyond the ids are fresh"
        )
    return said
