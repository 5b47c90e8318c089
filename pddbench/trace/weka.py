"""Reader for WEKA / kv-cache-tester files: one JSON document an agent session, with sub-agents inside.

Source: callanjfox/kv-cache-tester, traces/. Times are seconds. What is assumed, and why:

* `hash_ids` are blocks of `block_size` tokens, local to the file (shared by the main line and its sub-agents);
  their number is the input divided by the block size, rounded down or up.
* The end of a request is `t + api_time`, and a gap is the recorded start minus the end of the last parent. This is
  what `think_time` says too, rounded to whole seconds; but where a request lacks `api_time`, the next `think_time`
  counts from the last end that *is* known (a request earlier), so `think_time` is not used.
* Times inside a sub-agent count from its spawn time, unless all of them are at or after it: then they are absolute.
* A sub-agent starts after the main-line request before its spawn; it joins the next main-line request if it ended
  before that one started, and never otherwise. Without `api_time` its end is its spawn plus `duration_ms`.
* `turn` counts from 0 on each line of the conversation (main line, sub-agent).
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from pddbench.errors import TraceError
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.source import INT32_MAX, check_file, decode, file_sha256, read_content
from pddbench.trace.trie import PrefixTrie

Tokens = Annotated[int, msgspec.Meta(ge=0, le=INT32_MAX)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
COMPACTION_SHARE = 0.5  # a shorter prompt that keeps less than this of the one before it
_T = TypeVar("_T")
_SUFFIXES = (".json", ".json.gz", ".json.zst")


class _Document(msgspec.Struct):
    requests: list[msgspec.Raw]
    block_size: Annotated[int, msgspec.Meta(ge=1)]
    id: str = ""
    hash_id_scope: str = "local"


class _Entry(msgspec.Struct):
    type: str = "n"
    requests: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Request(msgspec.Struct):
    t: Seconds
    input_tokens: Tokens = msgspec.field(name="in")
    output_tokens: Tokens = msgspec.field(name="out")
    hash_ids: list[int]
    api_time: Seconds | None = None
    input_types: list[str] = []


class _SubAgent(msgspec.Struct):
    t: Seconds
    requests: list[msgspec.Raw]
    agent_id: str = ""
    duration_ms: Seconds | None = None


class _Time(msgspec.Struct):
    t: Seconds


_TIME = msgspec.json.Decoder(_Time)
_DOCUMENT, _ENTRY = msgspec.json.Decoder(_Document), msgspec.json.Decoder(_Entry)
_REQUEST, _SUB_AGENT = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_SubAgent)


@dataclass(eq=False)
class _Turn:
    """A request at its place: start and end in seconds of the file, end None where it is not known."""

    request: _Request
    start_s: float
    end_s: float | None
    parents: list[_Turn] = field(default_factory=list)
    request_id: str = ""
    place: int = 0  # on its line


@dataclass(frozen=True)
class _Place:
    """Where an entry is: its name, and for each level of nesting the entries up to and with its own."""

    name: str
    before: tuple[list[msgspec.Raw], ...] = ()

    def line(self, content: bytes) -> int:
        """Line number of the entry, found by passing the entries before it."""
        at = 0
        for entries in self.before:
            at = content.find(b"[", content.find(b'"requests"', at))
            for raw in entries[:-1]:
                at = content.find(bytes(raw), at) + len(bytes(raw))
            at = content.find(bytes(entries[-1]), at)
        return content.count(b"\n", 0, max(at, 0)) + 1


@dataclass(eq=False)
class _Line:
    """The main line of the conversation or a sub-agent: its turns by time, and the line that spawned it."""

    name: str
    spawner: _Line | None = None
    spawn_s: float = 0.0
    duration_s: float | None = None
    turns: list[_Turn] = field(default_factory=list)


def read_weka(path: Path) -> Trace:
    """The session in a file, or the sessions in the `*.json[.gz|.zst]` files of a folder, in the order of names."""
    files = _files(path)
    header = Header(
        source=path.name,
        source_format="weka",
        id_scope="file",
        source_sha256=folder_sha256(path) if path.is_dir() else file_sha256(path),
    )
    rows: list[Row] = []
    counts: Counter[str] = Counter()
    seen: dict[str, Path] = {}
    blocks: set[int] = set()
    for file in files:
        document = _Reading(file)
        if document.session in seen:
            raise TraceError(file, 1, "id", f"session {document.session!r} is already in {seen[document.session].name}")
        seen[document.session] = file
        rows += document.rows(counts)
        counts["files_with_wider_ids"] += document.id_scope != "local"
        blocks.add(document.block_tokens)
    header.block_tokens = blocks.pop() if len(blocks) == 1 else None
    header.counts = {name: n for name, n in counts.items() if n}
    header.assumptions = _assumptions(header.counts, len(files) if path.is_dir() else None)
    return Trace(header, rows)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith(_SUFFIXES))
    if not files:
        raise TraceError(path, None, None, "the folder holds no *.json file of a trace")
    for file in files:
        check_file(file)
    return files


def folder_sha256(path: Path) -> str:
    """SHA-256 of the lines `sha256  name` of a folder's trace files, as sha256sum prints them."""
    lines = [f"{file_sha256(file)}  {file.name}\n" for file in _files(path)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


class _Reading:
    """One file while it is read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = read_content(path)
        document = decode(_DOCUMENT, self._content, path, self._line_of_error)
        self.session = document.id or path.name.split(".")[0]
        self.block_tokens, self.id_scope = document.block_size, document.hash_id_scope
        self._lines = [_Line("")]
        self._fill(self._lines[0], document.requests, _Place("requests"), 0.0)
        if not any(line.turns for line in self._lines):
            raise TraceError(path, 1, "requests", "the file holds no request")

    def _line_of_error(self) -> int:
        """Line at which the document stops being JSON; 1 if it is JSON."""
        try:
            json.loads(self._content)
        except json.JSONDecodeError as error:
            return error.lineno
        except (UnicodeDecodeError, RecursionError):
            return 1
        return 1

    def _fill(self, line: _Line, entries: list[msgspec.Raw], place: _Place, zero_s: float) -> None:
        """Put requests on `line` and sub-agents on lines of their own, whatever their order in the file."""
        for i, raw in enumerate(entries):
            here = _Place(f"{place.name}[{i}]", (*place.before, entries[: i + 1]))
            entry = self._decode(_ENTRY, raw, here)
            if entry.type == "subagent" or entry.requests is not msgspec.UNSET:
                self._sub_agent(line, raw, here, zero_s)
            else:
                self._turn(line, raw, here, zero_s)
        line.turns.sort(key=lambda turn: turn.start_s)

    def _decode(self, decoder: msgspec.json.Decoder[_T], raw: msgspec.Raw, place: _Place) -> _T:
        return decode(decoder, raw, self._path, lambda: place.line(self._content), place.name)

    def _turn(self, line: _Line, raw: msgspec.Raw, place: _Place, zero_s: float) -> None:
        request = self._decode(_REQUEST, raw, place)
        start_s = zero_s + request.t
        line.turns.append(_Turn(request, start_s, None if request.api_time is None else start_s + request.api_time))

    def _sub_agent(self, line: _Line, raw: msgspec.Raw, place: _Place, zero_s: float) -> None:
        agent = self._decode(_SUB_AGENT, raw, place)
        name = agent.agent_id or f"subagent_{len(self._lines):03d}"
        if any(name == other.name for other in self._lines):
            name += f".{len(self._lines)}"
        spawn_s = zero_s + agent.t
        sub = _Line(name, line, spawn_s, None if agent.duration_ms is None else agent.duration_ms / 1000)
        self._lines.append(sub)
        inner = _Place(f"{place.name}.requests", place.before)
        first_s = min((self._decode(_TIME, entry, inner).t for entry in agent.requests), default=0.0)
        self._fill(sub, agent.requests, inner, 0.0 if first_s >= spawn_s else spawn_s)

    def rows(self, counts: Counter[str]) -> list[Row]:
        """The rows by start time, with parents and donors before them; what was met is added to `counts`."""
        self._link(counts)
        ordered = self._by_time()
        trie = PrefixTrie(self.block_tokens)
        ids: list[str] = []
        rows = []
        for line, turn in ordered:
            request = turn.request
            donor, shared = trie.add(request.hash_ids, request.input_tokens, request.output_tokens)
            ids.append(turn.request_id)
            rows.append(
                Row(
                    request_id=turn.request_id,
                    session_id=self.session,
                    turn=turn.place,
                    input_tokens=request.input_tokens,
                    output_tokens=request.output_tokens,
                    parents=tuple(parent.request_id for parent in turn.parents),
                    start_s=turn.start_s,
                    gap_s=_gap_s(turn, counts),
                    prefix_of=ids[donor] if donor >= 0 else None,
                    prefix_tokens=shared,
                    kind=_kind(line, turn),
                )
            )
            self._count(request, counts)
        return rows

    def _link(self, counts: Counter[str]) -> None:
        """Names and parents: each line is a chain; sub-agents hang on the line that spawned them."""
        for line in self._lines:
            stem = f"{self.session}/{line.name}/" if line.name else f"{self.session}/"
            for i, turn in enumerate(line.turns):
                turn.request_id, turn.place = f"{stem}{i}", i
                if i:
                    turn.parents.append(line.turns[i - 1])
        for line in self._lines[1:]:
            counts["subagents"] += 1
            counts["empty_subagents"] += not line.turns
            if line.spawner is not None and line.turns:
                counts["joined_subagents"] += _hang(line, line.spawner)

    def _by_time(self) -> list[tuple[_Line, _Turn]]:
        """All turns by start; at equal times the spawning line first."""
        placed = [(turn.start_s, i, line, turn) for i, line in enumerate(self._lines) for turn in line.turns]
        placed.sort(key=lambda item: item[:2])
        return [(line, turn) for _, _, line, turn in placed]

    def _count(self, request: _Request, counts: Counter[str]) -> None:
        floor, ceil = request.input_tokens // self.block_tokens, -(-request.input_tokens // self.block_tokens)
        counts["id_count_mismatches"] += len(request.hash_ids) not in (floor, ceil)
        counts["zero_outputs"] += request.output_tokens == 0
        counts["zero_inputs"] += request.input_tokens == 0
        counts["missing_api_times"] += request.api_time is None


def _hang(sub: _Line, spawner: _Line) -> bool:
    """Give a sub-agent its parent, and make it a parent of the spawner's next turn if it ended before. Joined?"""
    after = bisect_right([turn.start_s for turn in spawner.turns], sub.spawn_s)
    if after:
        sub.turns[0].parents.append(spawner.turns[after - 1])
    last = sub.turns[-1]
    if last.end_s is None and sub.duration_s is not None:
        last.end_s = max(last.start_s, sub.spawn_s + sub.duration_s)
    ends = [turn.end_s for turn in sub.turns if turn.end_s is not None]
    if after == len(spawner.turns) or last.end_s is None or max(ends) >= spawner.turns[after].start_s:
        return False
    spawner.turns[after].parents.append(last)
    return True


def _gap_s(turn: _Turn, counts: Counter[str]) -> float | None:
    """Recorded start minus the last parent's end: None if an end is not known, 0 if negative; both counted."""
    if not turn.parents:
        return None
    ends = [parent.end_s for parent in turn.parents]
    known = [end for end in ends if end is not None]
    if len(known) < len(ends):
        counts["unknown_gaps"] += 1
        return None
    gap_s = round(turn.start_s - max(known), 6)
    counts["negative_gaps"] += gap_s < 0
    return max(0.0, gap_s)


def _kind(line: _Line, turn: _Turn) -> str:
    if line.spawner is not None:
        return "subagent"
    if turn.place == 0:
        return "root"
    if _is_compaction(line.turns[turn.place - 1].request, turn.request):
        return "compaction"
    return "tool" if "tool_result" in turn.request.input_types else "user"


def _is_compaction(before: _Request, now: _Request) -> bool:
    """A shorter prompt that keeps less than half of the blocks of the one before it on the same line."""
    if now.input_tokens >= before.input_tokens:
        return False
    kept = 0
    for a, b in zip(before.hash_ids, now.hash_ids, strict=False):
        if a != b:
            break
        kept += 1
    return kept < COMPACTION_SHARE * len(before.hash_ids)


def _assumptions(counts: dict[str, int], files: int | None) -> list[str]:
    said = [
        "times are seconds; a gap is the recorded start minus the last parent's end (t + api_time), not think_time",
        "ids are local to a file, sub-agents included; tokens beyond the ids are fresh",
        "ids cover prompts only: what a prompt shares with a reply is not seen, so both hit bases agree",
        "times inside a sub-agent count from its spawn, unless all of them are at or after it",
        "a sub-agent joins the next main-line turn only if it ended before that turn started",
        "kind compaction: a shorter prompt that keeps less than half of the blocks of the one before it",
    ]
    if files is not None:
        said.append(f"{files} *.json files of the folder, a session each, without a common clock: each starts at its 0")
    if wider := counts.get("files_with_wider_ids"):
        said.append(f"warning: {wider} files say that their ids are not local; they are compared within each file only")
    if mismatches := counts.get("id_count_mismatches"):
        said.append(
            f"warning: {mismatches} requests whose number of hash_ids is not input / block size rounded down or up: "
            "ids beyond the input are ignored, tokens beyond the ids are fresh"
        )
    return said
