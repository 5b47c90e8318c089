"""Read a trace of any known format: which one is seen from the content, or given by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.errors import InputError, TraceError, suggest
from pddbench.text import printable
from pddbench.trace.azure import read_azure
from pddbench.trace.bailian import read_bailian
from pddbench.trace.burstgpt import read_burstgpt
from pddbench.trace.canonical import read_canonical
from pddbench.trace.conversations import read_sharegpt, read_sweagent
from pddbench.trace.dynamo import read_dynamo
from pddbench.trace.model import Trace
from pddbench.trace.mooncake import read_mooncake
from pddbench.trace.mooncake_sessions import read_cumulative, read_delta, read_sessions
from pddbench.trace.otel import read_otel
from pddbench.trace.source import PARQUET_MAGIC, check_file, file_sha256, head, is_json, numbered_lines, read_content
from pddbench.trace.tracelab import read_tracelab
from pddbench.trace.units import MOST_S
from pddbench.trace.weka import folder_sha256, read_weka

if TYPE_CHECKING:
    from pddbench.trace.columns import Columns

FORMATS: dict[str, Callable[[Path], Trace]] = {
    "canonical": read_canonical,
    "mooncake": read_mooncake,
    "mooncake-sessions": read_sessions,
    "mooncake-cumulative": read_cumulative,
    "mooncake-delta": read_delta,
    "dynamo": read_dynamo,
    "weka": read_weka,
    "bailian": read_bailian,
    "azure": read_azure,
    "burstgpt": read_burstgpt,
    "tracelab": read_tracelab,
    "otel": read_otel,
    "sharegpt": read_sharegpt,
    "sweagent": read_sweagent,
}
_WITH_BLOCKS: dict[str, Callable[[Path, int | None], Trace]] = {
    "mooncake": read_mooncake,
    "mooncake-sessions": read_sessions,
    "mooncake-cumulative": read_cumulative,
    "mooncake-delta": read_delta,
    "dynamo": read_dynamo,
    "bailian": read_bailian,
}

# fields that tell a format by its first object; the first that fits
_SIGNS: tuple[tuple[str, frozenset[str]], ...] = (
    ("canonical", frozenset({"schema_version"})),
    ("dynamo", frozenset({"request_id", "hash_ids", "wait_for"})),
    ("dynamo", frozenset({"request_id", "hash_ids", "output_length"})),
    ("tracelab", frozenset({"session_id", "round_index", "prefix_tokens"})),
    ("canonical", frozenset({"request_id", "input_tokens"})),
    ("bailian", frozenset({"chat_id", "timestamp"})),
    ("mooncake-sessions", frozenset({"session_id", "output_length"})),
    ("mooncake", frozenset({"timestamp", "input_length"})),
    ("weka", frozenset({"requests", "block_size"})),
    ("weka", frozenset({"requests"})),
    ("otel", frozenset({"spans"})),
    ("otel", frozenset({"resourceSpans"})),
    ("otel", frozenset({"span_id", "attributes"})),
    ("otel", frozenset({"spanId", "attributes"})),
    ("sharegpt", frozenset({"conversations"})),
    ("sharegpt", frozenset({"conversation"})),
    ("sweagent", frozenset({"history"})),
)
_CSV_SIGNS: tuple[tuple[str, frozenset[str]], ...] = (
    ("azure", frozenset({"TIMESTAMP", "ContextTokens"})),
    ("burstgpt", frozenset({"Timestamp", "Request tokens"})),
    ("tracelab", frozenset({"round_idx", "prefix_len"})),
)


def read_trace(path: str | Path, format: str | None = None, block_tokens: int | None = None) -> Trace:
    """The trace in `path` (a folder: WEKA sessions). Raises `TraceError` or `InputError`, one sentence each.

    `block_tokens`: the size of the blocks that ids stand for, where a format has ids and does not tell their size.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown trace format {printable(format)!r}: {suggest(format, list(FORMATS))}")
    if path.is_dir():
        if format not in (None, "weka"):
            raise TraceError(path, None, None, f"this is a directory; a {format} trace is a file")
        return read_weka(path)
    check_file(path)
    head(path)  # refuses what is no text before a reader stumbles over it
    name = format or detect_format(path)
    if block_tokens is None:
        return _sane(FORMATS[name](path), path)
    if name not in _WITH_BLOCKS:
        raise InputError(f"--source-block-tokens is for {', '.join(_WITH_BLOCKS)}, but {path} is {name}")
    return _sane(_WITH_BLOCKS[name](path, block_tokens), path)


def read_as_columns(path: str | Path, format: str | None = None) -> Columns:
    """The trace in columns. A canonical file is read batch by batch; of other formats all rows are in memory first.

    Raises as `read_trace` does.
    """
    from pddbench.trace.columns import columns_of, read_columns

    if format in (None, "canonical") and is_canonical(Path(path), format):
        return read_columns(Path(path))
    return columns_of(read_trace(path, format))


def is_canonical(path: Path, format: str | None = None) -> bool:
    """Whether a file is a canonical trace, by name or from its content; what is no trace is left to `read_trace`."""
    if path.is_dir():
        return False
    check_file(path)
    if format is not None:
        return format == "canonical"
    try:
        return detect_format(path) == "canonical"
    except (TraceError, InputError):
        return False


def _sane(trace: Trace, path: Path) -> Trace:
    """The trace, if all its times can be times; most readers have checked that line by line."""
    for row in trace.rows:
        if row.start_s is not None and not abs(row.start_s) <= MOST_S:
            problem = f"request {printable(row.request_id)!r} starts at {row.start_s:g} s, more than {MOST_S:g}"
            raise TraceError(path, None, None, problem)
    return trace


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a trace file as it lies on the disk; of a folder, that of its files' sums and names."""
    return folder_sha256(Path(path)) if Path(path).is_dir() else file_sha256(Path(path))


def detect_format(path: Path) -> str:
    """The name of the format of a file, from its first line (or, of one JSON document, all of it)."""
    if head(path).startswith(PARQUET_MAGIC):
        return "canonical"
    _, line = next(numbered_lines(path))
    if line[:1] == b"[":
        return _detect_array(path)
    if line[:1] != b"{":
        return _detect_csv(path, line)
    found = _first_object(path, line)
    fields = frozenset(found)
    for name, sign in _SIGNS:
        if sign <= fields:
            return name
    if "messages" in fields:  # a trajectory is one document, a data set has one a line
        return "sharegpt" if is_json(line) else "sweagent"
    if "event" in fields and b'"dynamo.' in line:
        problem = "this is Dynamo's own request trace; convert it by its `request_trace_to_mooncake --agentic` first"
        raise TraceError(path, 1, None, problem)
    raise TraceError(path, 1, None, f"unknown trace format (fields: {_shown(found)}); {_known()}")


def _detect_array(path: Path) -> str:
    """A JSON array is a trajectory (of messages) or a data set (of conversations)."""
    try:
        items = msgspec.json.decode(read_content(path), type=list[msgspec.Raw])
        first = msgspec.json.decode(items[0], type=dict[str, msgspec.Raw]) if items else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"the file starts with an array that is not valid JSON or holds no objects; {_known()}"
        raise TraceError(path, 1, None, f"unknown trace format: {problem}") from error
    if "role" in first:
        return "sweagent"
    if any(name in first for name in ("conversations", "conversation", "messages")):
        return "sharegpt"
    raise TraceError(path, 1, None, f"unknown trace format (an array; fields: {_shown(first)}); {_known()}")


def _detect_csv(path: Path, line: bytes) -> str:
    columns = [name.strip() for name in line.decode(errors="replace").split(",")]
    for name, sign in _CSV_SIGNS:
        if sign <= frozenset(columns):
            return name
    if columns[0].isdigit():
        problem = "a CSV without a header is no trace (ServeGen's parameters of clients look like this)"
    else:
        problem = f"neither JSON nor the header of a CSV that is known; {_known()}"
    raise TraceError(path, 1, None, f"unknown trace format: {problem}")


def _first_object(path: Path, line: bytes) -> dict[str, Any]:
    """The JSON object on the first line, or the one that is the whole file."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    for data in (line, None):
        try:
            return decoder.decode(read_content(path) if data is None else data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    problem = f"unknown trace format: the file starts with an object that is not valid JSON; {_known()}"
    raise TraceError(path, 1, None, problem)


def _shown(fields: Iterable[str]) -> str:
    return ", ".join(printable(field, 30) for field in list(fields)[:6]) or "none"


def _known() -> str:
    return f"known: {', '.join(FORMATS)} (give it with --format)"
