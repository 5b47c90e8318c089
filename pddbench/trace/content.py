"""The side file of a trace: text, roles and tools, `NAME.content.jsonl.zst` beside `NAME.trace.*`.

One line a request. A prompt's messages are the first `shared_messages` of those of `shares_with` (its messages, then
its reply), then `messages`: a conversation of n turns takes n messages, not n². Messages are kept as they were found.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from pddbench.errors import InputError, TraceError
from pddbench.trace.model import Content
from pddbench.trace.source import decode, numbered_lines

SUFFIX = ".content.jsonl.zst"
_TRACE_SUFFIXES = (".gz", ".zst", ".parquet", ".jsonl", ".trace", ".mooncake")


def side_path(trace_path: Path) -> Path:
    """Where the side file of a trace lies: the trace's name without its suffixes, and `.content.jsonl.zst`."""
    name = trace_path.name
    for suffix in _TRACE_SUFFIXES:
        name = name.removesuffix(suffix)
    return trace_path.with_name(name + SUFFIX)


def write_content(content: Sequence[Content], path: Path) -> None:
    """Write all lines; the file is whole or not there."""
    import pyarrow as pa

    from pddbench.trace.canonical import replacing

    encoder = msgspec.json.Encoder()
    try:
        with replacing(path) as file, pa.CompressedOutputStream(pa.PythonFile(file, "w"), "zstd") as packed:
            for item in content:
                packed.write(encoder.encode(item) + b"\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from error


def read_content_file(path: Path) -> list[Content]:
    """The lines of a side file, in its order; `TraceError` names the line and field of a broken one."""
    decoder = msgspec.json.Decoder(Content)
    return [decode(decoder, raw, path, number) for number, raw in numbered_lines(path)]


def messages_of(content: Sequence[Content]) -> dict[str, list[Any]]:
    """Every request's whole prompt, by request id."""
    whole: dict[str, list[Any]] = {}
    context: dict[str, list[Any]] = {}
    for item in content:
        if item.shares_with is not None and item.shares_with not in context:
            raise TraceError("content", None, "shares_with", f"{item.shares_with!r} is no earlier request")
        head = context[item.shares_with][: item.shared_messages] if item.shares_with is not None else []
        whole[item.request_id] = [*head, *item.messages]
        context[item.request_id] = [*whole[item.request_id], *([] if item.reply is None else [item.reply])]
    return whole
