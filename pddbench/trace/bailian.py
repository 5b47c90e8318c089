"""Reader for the Qwen-Bailian traces: JSON lines of chats, linked by `parent_chat_id`, with 16-token block ids.

Source: alibaba-edu/qwen-bailian-usagetraces-anon. Timestamps are seconds. Every row holds its whole prompt. A parent
that is not in the file (the trace is a window of a longer one) makes its child a root.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec

from pddbench.errors import TraceError
from pddbench.trace.model import Header, Trace
from pddbench.trace.nodes import Node, known_counts, rows_of
from pddbench.trace.source import INT32_MAX, decode, file_sha256, numbered_lines
from pddbench.trace.units import time_unit

BLOCK_TOKENS = 16
NO_PARENT = -1

Tokens = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    chat_id: int
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int]
    parent_chat_id: int = NO_PARENT
    type: str = ""
    turn: Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)] = 1


def read_bailian(path: Path, block_tokens: int | None = None) -> Trace:
    """The trace in a Bailian file; `block_tokens` in place of 16."""
    block = block_tokens or BLOCK_TOKENS
    decoder = msgspec.json.Decoder(_Line)
    lines = [(number, decode(decoder, raw, path, number)) for number, raw in numbered_lines(path)]
    counts: Counter[str] = Counter()
    nodes = _nodes(lines, path, counts)
    for _, line in lines:
        counts["id_count_mismatches"] += len(line.hash_ids) != -(-line.input_length // block)
        counts["zero_outputs"] += line.output_length == 0
        counts["zero_inputs"] += line.input_length == 0
        counts[f"type_{line.type}"] += bool(line.type)
    header = Header(
        source=path.name,
        source_format="bailian",
        source_sha256=file_sha256(path),
        block_tokens=block,
        id_scope="file",
        assumptions=_assumptions([line.timestamp for _, line in lines], known_counts(counts), block),
        counts=known_counts(counts),
    )
    return Trace(header, rows_of(nodes, path, block))


def _nodes(lines: list[tuple[int, _Line]], path: Path, counts: Counter[str]) -> list[Node]:
    index_of: dict[int, int] = {}
    for i, (number, line) in enumerate(lines):
        if line.chat_id in index_of:
            raise TraceError(path, number, "chat_id", f"{line.chat_id} is already in the file")
        index_of[line.chat_id] = i
    parents = [index_of.get(line.parent_chat_id) for _, line in lines]
    roots = [_root(i, parents, path, lines[i][0]) for i in range(len(lines))]
    nodes = []
    for (number, line), parent, root in zip(lines, parents, roots, strict=True):
        counts["absent_parents"] += parent is None and line.parent_chat_id != NO_PARENT
        if parent is not None:
            counts["unknown_gaps"] += 1
            counts["children_before_their_parents"] += line.timestamp < lines[parent][1].timestamp
        nodes.append(
            Node(
                request_id=str(line.chat_id),
                session_id=str(lines[root][1].chat_id),
                turn=max(0, line.turn - 1),
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                line=number,
                start_s=line.timestamp,
                parents=[] if parent is None else [parent],
                hash_ids=line.hash_ids,
                kind="root" if parent is None else "user",
            )
        )
    return nodes


def _root(i: int, parents: list[int | None], path: Path, number: int) -> int:
    """The first chat of a chain; a chain that returns to itself is an error."""
    start = i
    steps = 0
    while (parent := parents[i]) is not None:
        i, steps = parent, steps + 1
        if i == start or steps > len(parents):
            raise TraceError(path, number, "parent_chat_id", "the chain of parents is a circle")
    return i


def _assumptions(starts_s: list[float], counts: dict[str, int], block: int) -> list[str]:
    said = [
        time_unit(starts_s, "timestamp", "seconds", faster="milliseconds"),
        "every row holds its whole prompt (cumulative)",
        f"hash_ids are blocks of {block} tokens, the same id the same prefix in the whole file",
        "ids cover prompts only: what a prompt shares with a reply is not seen, so both hit bases agree",
        "when a reply ended is not recorded: gaps after a parent are unknown (timing think waits 0 s, timing trace "
        "keeps the recorded starts)",
    ]
    if absent := counts.get("absent_parents"):
        said.append(f"rows whose parent is not in the file: {absent}, they start a session of their own")
    if mismatches := counts.get("id_count_mismatches"):
        said.append(
            f"warning: {mismatches} rows whose number of hash_ids is not input_length / {block} rounded up: "
            "ids beyond the input are ignored, tokens beyond the ids are fresh"
        )
    return said
