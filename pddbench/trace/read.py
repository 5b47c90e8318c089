"""Read a trace of any known format: which one is seen from the content, or given by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from pddbench.errors import InputError, TraceError, suggest
from pddbench.text import printable
from pddbench.trace.canonical import read_canonical
from pddbench.trace.model import Trace
from pddbench.trace.mooncake import read_mooncake
from pddbench.trace.source import PARQUET_MAGIC, check_file, file_sha256, head, numbered_lines, read_content
from pddbench.trace.weka import folder_sha256, read_weka

FORMATS = {"canonical": read_canonical, "mooncake": read_mooncake, "weka": read_weka}

# fields that tell a format by its first object; the first that fits
_SIGNS: tuple[tuple[str, frozenset[str]], ...] = (
    ("canonical", frozenset({"schema_version"})),
    ("canonical", frozenset({"request_id", "input_tokens"})),
    ("bailian", frozenset({"chat_id", "timestamp"})),
    ("mooncake", frozenset({"timestamp", "input_length"})),
    ("weka", frozenset({"requests", "block_size"})),
    ("weka", frozenset({"requests"})),
)
_KNOWN_BUT_NOT_READ = {"bailian": "Qwen-Bailian"}


def read_trace(path: str | Path, format: str | None = None) -> Trace:
    """The trace in `path` (a folder: WEKA sessions). Raises `TraceError` or `InputError`, one sentence each."""
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise InputError(f"unknown trace format {printable(format)!r}: {suggest(format, list(FORMATS))}")
    if path.is_dir():
        if format not in (None, "weka"):
            raise TraceError(path, None, None, f"this is a directory; a {format} trace is a file")
        return read_weka(path)
    check_file(path)
    head(path)  # refuses what is no text before a reader stumbles over it
    return FORMATS[format or detect_format(path)](path)


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a trace file as it lies on the disk; of a folder, that of its files' sums and names."""
    return folder_sha256(Path(path)) if Path(path).is_dir() else file_sha256(Path(path))


def detect_format(path: Path) -> str:
    """The name of the format of a file, from its first line (or, of one JSON document, all of it)."""
    start = head(path)
    if start.startswith(PARQUET_MAGIC):
        return "canonical"
    found = _first_object(path)
    fields = frozenset(found)
    for name, sign in _SIGNS:
        if sign <= fields:
            if name in _KNOWN_BUT_NOT_READ:
                raise TraceError(path, 1, None, f"this looks like {_KNOWN_BUT_NOT_READ[name]}, which is not read yet")
            return name
    shown = ", ".join(printable(field, 30) for field in list(found)[:6]) or "none"
    raise TraceError(path, 1, None, f"unknown trace format (fields: {shown}); {_known()}")


def _first_object(path: Path) -> dict[str, Any]:
    """The JSON object on the first line, or the one that is the whole file."""
    _, line = next(numbered_lines(path))
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    for data in (line, read_content(path) if line[:1] == b"{" else None):
        if data is None:
            continue
        try:
            return decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    what = "an object that is not valid JSON" if line[:1] == b"{" else "no JSON object"
    raise TraceError(path, 1, None, f"unknown trace format: the file starts with {what}; {_known()}")


def _known() -> str:
    return f"known: {', '.join(FORMATS)} (give it with --format)"
