"""Reader for Dynamo's agentic Mooncake rows: a graph of requests, released by `wait_for` plus waits.

Source: ai-dynamo/dynamo, `request_trace_to_mooncake --agentic` and its replay. Rows hold whole prompts. A row without
`wait_for` starts at its `timestamp` (ms); the others `delay` + `tool_wait_ms` after the last request they wait for. The
block size is not in the file: it is worked out from the numbers of ids, or given. Requests that wait for each other
across sessions (sub-agents have session ids of their own) become one session, as parents must be of the same session.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import msgspec

from pddbench.errors import TraceError
from pddbench.text import printable
from pddbench.trace.model import Header, Trace
from pddbench.trace.nodes import Node, known_counts, rows_of
from pddbench.trace.source import INT32_MAX, decode, file_sha256, numbered_lines
from pddbench.trace.units import time_unit

MS_PER_S = 1000
Tokens = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    request_id: Annotated[str, msgspec.Meta(min_length=1)]
    hash_ids: list[int]
    input_length: Tokens
    output_length: Tokens
    session_id: str = ""
    wait_for: list[str] = []
    timestamp: Milliseconds | None = None
    delay: Milliseconds = 0.0
    tool_wait_ms: Milliseconds = 0.0
    prefix_reset: bool | None = None
    request_kind: str | None = None
    branches: list[str] = []
    tool_events: list[dict[str, Any]] = []
    output_token_ids: list[int] | None = None
    priority: Any = None
    strict_priority: Any = None
    policy_class: Any = None


_SYNONYMS = {
    "delay_ms": "delay",
    "created_time": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
}


def read_dynamo(path: Path, block_tokens: int | None = None) -> Trace:
    """The trace in a file of agentic Mooncake rows."""
    lines = _lines(path)
    block = block_tokens or _block_tokens(lines, path)
    counts: Counter[str] = Counter()
    nodes = _nodes(lines, path, counts)
    for _, line in lines:
        blocks = line.input_length // block, -(-line.input_length // block)
        counts["id_count_mismatches"] += len(line.hash_ids) not in blocks
        counts["zero_outputs"] += line.output_length == 0
        counts["tool_events"] += len(line.tool_events)
    rows = rows_of(nodes, path, block)
    header = Header(
        source=path.name,
        source_format="dynamo",
        source_sha256=file_sha256(path),
        block_tokens=block,
        id_scope="file",
        assumptions=_assumptions(nodes, block, block_tokens is not None, known_counts(counts)),
        counts=known_counts(counts),
    )
    return Trace(header, rows)


def _lines(path: Path) -> list[tuple[int, _Line]]:
    decoder = msgspec.json.Decoder(_Line)
    lines = []
    for number, raw in numbered_lines(path):
        lines.append((number, decode(decoder, _with_known_names(raw), path, number)))
    return lines


def _with_known_names(raw: bytes) -> bytes:
    """The line with the second spelling of a field replaced by the first."""
    if not any(name.encode() in raw for name in _SYNONYMS):
        return raw
    try:
        fields = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return raw  # the decoder of the line says what is wrong
    return msgspec.json.encode({_SYNONYMS.get(name, name): value for name, value in fields.items()})


def _block_tokens(lines: list[tuple[int, _Line]], path: Path) -> int:
    """The one power of two that gives every row its number of ids, last block partial or left out."""
    fitting = [1 << k for k in range(17) if all(_fits(line, 1 << k) for _, line in lines)]
    if len(fitting) == 1:
        return fitting[0]
    found = f"{', '.join(map(str, fitting))} all fit" if fitting else "no power of two fits"
    problem = f"the block size is not in the file and {found} the numbers of ids; give it with --source-block-tokens"
    raise TraceError(path, lines[0][0], "hash_ids", problem)


def _fits(line: _Line, block: int) -> bool:
    return len(line.hash_ids) in (line.input_length // block, -(-line.input_length // block))


def _nodes(lines: list[tuple[int, _Line]], path: Path, counts: Counter[str]) -> list[Node]:
    index_of: dict[str, int] = {line.request_id: i for i, (_, line) in enumerate(lines)}
    parents = []
    for number, line in lines:
        unknown = [name for name in line.wait_for if name not in index_of]
        if unknown:
            raise TraceError(path, number, "wait_for", f"{printable(unknown[0], 80)!r} is not in the file")
        parents.append(list(dict.fromkeys(index_of[name] for name in line.wait_for)))
    sessions = _sessions(lines, parents, counts)
    nodes = []
    turns: Counter[str] = Counter()
    for (number, line), above, session in zip(lines, parents, sessions, strict=True):
        start_s = None if line.timestamp is None else line.timestamp / MS_PER_S
        counts["roots_without_start"] += not above and start_s is None
        nodes.append(
            Node(
                request_id=line.request_id,
                session_id=session,
                turn=turns[line.session_id] if line.session_id else 0,
                input_tokens=line.input_length,
                output_tokens=line.output_length,
                line=number,
                start_s=0.0 if not above and start_s is None else start_s,
                gap_s=(line.delay + line.tool_wait_ms) / MS_PER_S if above else None,
                parents=above,
                hash_ids=line.hash_ids,
                kind=_kind(line, above, lines),
            )
        )
        turns[line.session_id] += 1
    return nodes


def _kind(line: _Line, above: list[int], lines: list[tuple[int, _Line]]) -> str:
    if not above:
        return "root"
    if all(lines[i][1].session_id != line.session_id for i in above):
        return "subagent"
    return "tool" if line.tool_wait_ms > 0 or line.tool_events else "user"


def _sessions(lines: list[tuple[int, _Line]], parents: list[list[int]], counts: Counter[str]) -> list[str]:
    """By row: the session of all that wait for each other or bear the same session id, named after its first row."""
    leader = list(range(len(lines)))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    first_of: dict[str, int] = {}
    for i, (_, line) in enumerate(lines):
        same = [first_of.setdefault(line.session_id, i)] if line.session_id else []
        for other in [*parents[i], *same]:
            a, b = find(i), find(other)
            leader[max(a, b)] = min(a, b)
    counts["merged_sessions"] = len(first_of) - len({find(i) for i in first_of.values()})
    return [lines[find(i)][1].session_id or lines[find(i)][1].request_id for i in range(len(lines))]


def _assumptions(nodes: list[Node], block: int, given: bool, counts: dict[str, int]) -> list[str]:
    starts_s = [node.start_s for node in nodes if node.start_s is not None]
    how = "as given" if given else "the only power of two that fits the numbers of ids"
    said = [
        time_unit(starts_s, "timestamp", "milliseconds", "seconds", "microseconds"),
        "delay and tool_wait_ms are milliseconds; a row starts delay + tool_wait_ms after the last one it waits for",
        f"hash_ids are blocks of {block} tokens ({how}), the same id the same prefix in the whole file",
        "every row holds its whole prompt (cumulative)",
        "ids cover prompts only: what a prompt shares with a reply is not seen, so both hit bases agree",
    ]
    if merged := counts.get("merged_sessions"):
        said.append(f"sessions that wait for another, or another for them: {merged}, counted as part of it")
    if roots := counts.get("roots_without_start"):
        said.append(f"roots without timestamp: {roots}, they start at 0, as in Dynamo's own replay")
    if "tool_events" in counts:
        said.append("tool_events are counted, not kept: their time is in tool_wait_ms")
    if mismatches := counts.get("id_count_mismatches"):
        said.append(
            f"warning: {mismatches} rows whose number of hash_ids is not input / {block} rounded down or up: "
            "ids beyond the input are ignored, tokens beyond the ids are fresh"
        )
    return said
