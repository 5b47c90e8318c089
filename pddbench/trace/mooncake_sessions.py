"""Reader for Mooncake rows with sessions (AIPerf, Dynamo): whole prompts or increments, which look alike.

Sources: ai-dynamo/aiperf (`session_id`, `delay` in ms; a later row holds the *new* tokens of its turn, the prompt being
the whole conversation so far and these) and Dynamo's `mooncake` / `mooncake-delta`. Rows of a session are its turns in
the order of the file. `mooncake-cumulative` and `mooncake-delta` name the meaning; `mooncake-sessions` decides from the
block ids: whole prompts begin with the blocks of the turn before, increments never do. Where that does not decide, it
is an error to guess.
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

BLOCK_TOKENS = 512
MS_PER_S = 1000
_UNITS = ("milliseconds", "seconds", "microseconds")

Tokens = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]
TEXT_FIELDS = ("messages", "text_input", "payload", "message_mode", "tools")


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    session_id: Annotated[str, msgspec.Meta(min_length=1)]
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[int] = []
    timestamp: Milliseconds | None = None
    delay: Milliseconds | None = None
    type: str = ""


def read_sessions(path: Path, block_tokens: int | None = None) -> Trace:
    """Whole prompts or increments, as the block ids show; `TraceError` where they do not."""
    return _read(path, block_tokens, None)


def read_cumulative(path: Path, block_tokens: int | None = None) -> Trace:
    """Every row holds its whole prompt."""
    return _read(path, block_tokens, True)


def read_delta(path: Path, block_tokens: int | None = None) -> Trace:
    """Rows after a session's first hold only what is new."""
    return _read(path, block_tokens, False)


def _read(path: Path, block_tokens: int | None, cumulative: bool | None) -> Trace:
    block = block_tokens or BLOCK_TOKENS
    lines = _lines(path)
    before = _turn_before(lines)
    if cumulative is None:
        cumulative, said = _decide(lines, before, path)
    else:
        said = "as named by the format"
    counts: Counter[str] = Counter()
    nodes = _nodes(lines, before, cumulative, path, counts)
    for _, line in lines:
        counts["id_count_mismatches"] += bool(line.hash_ids) and len(line.hash_ids) != -(-line.input_length // block)
        counts["rows_without_ids"] += not line.hash_ids
        counts["zero_outputs"] += line.output_length == 0
    header = Header(
        source=path.name,
        source_format="mooncake-cumulative" if cumulative else "mooncake-delta",
        source_sha256=file_sha256(path),
        block_tokens=block,
        id_scope="file",
        assumptions=_assumptions(nodes, cumulative, said, block, known_counts(counts)),
        counts=known_counts(counts),
    )
    return Trace(header, rows_of(nodes, path, block))


def _lines(path: Path) -> list[tuple[int, _Line]]:
    decoder = msgspec.json.Decoder(_Line)
    lines = []
    for number, raw in numbered_lines(path):
        try:
            lines.append((number, decode(decoder, raw, path, number)))
        except TraceError as error:
            if error.field in TEXT_FIELDS:
                problem = "rows with text in place of lengths are not read; only input_length and hash_ids are"
                raise TraceError(path, number, error.field, problem) from error
            raise
    return lines


def _turn_before(lines: list[tuple[int, _Line]]) -> list[int | None]:
    """By row: the row before it in its session."""
    last: dict[str, int] = {}
    before: list[int | None] = []
    for i, (_, line) in enumerate(lines):
        before.append(last.get(line.session_id))
        last[line.session_id] = i
    return before


def _decide(lines: list[tuple[int, _Line]], before: list[int | None], path: Path) -> tuple[bool, str]:
    """Are later turns whole prompts? And the evidence, in words."""
    pairs = [(lines[b][1], lines[i][1]) for i, b in enumerate(before) if b is not None]
    if not pairs:
        return True, "no session has a second turn, so it makes no difference"
    with_ids = [(a, b) for a, b in pairs if a.hash_ids and b.hash_ids]
    if with_ids:
        same = sum(a.hash_ids[0] == b.hash_ids[0] for a, b in with_ids)
        said = f"{same} of {len(with_ids)} later turns begin with the block that the turn before begins with"
        if same == 0 or same > len(with_ids) / 2:
            return same > 0, said
    else:
        shorter = sum(b.input_length < a.input_length + a.output_length for a, b in pairs)
        said = f"{shorter} of {len(pairs)} later turns are shorter than the prompt and reply before them"
        if shorter > len(pairs) / 2:
            return False, said
    number = next(lines[i][0] for i, b in enumerate(before) if b is not None)
    problem = f"{said}: whole prompts or increments? Say --format mooncake-cumulative or --format mooncake-delta"
    raise TraceError(path, number, "session_id", problem)


def _nodes(
    lines: list[tuple[int, _Line]],
    before: list[int | None],
    cumulative: bool,
    path: Path,
    counts: Counter[str],
) -> list[Node]:
    nodes: list[Node] = []
    for (number, line), previous in zip(lines, before, strict=True):
        start_s = None if line.timestamp is None else line.timestamp / MS_PER_S
        parent = None if previous is None else nodes[previous]
        if parent is None and start_s is None:
            counts["sessions_without_start"] += 1
            start_s = 0.0
        if parent is None and line.delay:
            raise TraceError(path, number, "delay", "is given on the first row of a session, which follows nothing")
        counts["unknown_gaps"] += parent is not None and line.delay is None
        inputs = line.input_length
        if parent is not None and not cumulative:
            inputs += parent.input_tokens + parent.output_tokens
            if inputs > INT32_MAX:
                raise TraceError(path, number, "input_length", f"the increments add up to {inputs} tokens")
        nodes.append(
            Node(
                request_id=f"L{number}",
                session_id=line.session_id,
                turn=0 if parent is None else parent.turn + 1,
                input_tokens=inputs,
                output_tokens=line.output_length,
                line=number,
                start_s=start_s,
                gap_s=None if parent is None or line.delay is None else line.delay / MS_PER_S,
                parents=[] if previous is None else [previous],
                extends=None if cumulative else previous,
                hash_ids=line.hash_ids,
                kind="root" if parent is None else "user",
            )
        )
    return nodes


def _assumptions(nodes: list[Node], cumulative: bool, evidence: str, block: int, counts: dict[str, int]) -> list[str]:
    meaning = (
        "whole prompts (cumulative)" if cumulative else "increments: prompt = prompt and reply before + new tokens"
    )
    said = [
        f"rows of a session are {meaning}; {evidence}",
        time_unit([node.start_s for node in nodes if node.start_s is not None], "timestamp", *_UNITS),
        "delay is milliseconds from the end of the turn before",
        f"hash_ids are blocks of {block} tokens, the same id the same prefix in the whole file",
    ]
    if cumulative:
        said.append("ids cover prompts only: what a prompt shares with a reply is not seen, so both hit bases agree")
    else:
        said.append(
            "sharing across sessions is seen on first turns only (ids of an increment say nothing of its prefix)"
        )
    if unknown := counts.get("unknown_gaps"):
        said.append(
            f"later turns without delay: {unknown}, their gaps are unknown (timing think waits 0 s, timing trace keeps "
            "recorded starts)"
        )
    if missing := counts.get("rows_without_ids"):
        said.append(f"rows without hash_ids: {missing}, what they bring is wholly fresh")
    if starts := counts.get("sessions_without_start"):
        said.append(f"sessions without timestamp: {starts}, they start at 0 (use arrival = poisson, gamma or constant)")
    if mismatches := counts.get("id_count_mismatches"):
        said.append(
            f"warning: {mismatches} rows whose number of hash_ids is not input_length / {block} rounded up: "
            "ids beyond the input are ignored, tokens beyond the ids are fresh"
        )
    return said
