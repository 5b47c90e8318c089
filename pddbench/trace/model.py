"""The canonical trace: one row a request, a prompt being a prefix of an earlier context plus fresh tokens.

For a prefix cache all that matters of a prompt is which earlier context it shares and how far, so a prompt is a
node of a trie (O(1) a request) and never a list of tokens.
"""

from __future__ import annotations

from typing import Any

import msgspec

SCHEMA_VERSION = 1


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request of a trace.

    `parents` are request ids of the same session that must have finished first (none: a root). `start_s` is the
    recorded start from the trace's zero in seconds, `gap_s` the end-to-start gap after the last parent in seconds.
    The first `prefix_tokens` tokens of the prompt are those of the context (prompt, then output) of the earlier row
    `prefix_of`; the other `input_tokens - prefix_tokens` are fresh.
    """

    request_id: str
    session_id: str
    turn: int
    input_tokens: int
    output_tokens: int
    parents: tuple[str, ...] = ()
    start_s: float | None = None
    gap_s: float | None = None
    prefix_of: str | None = None
    prefix_tokens: int = 0
    kind: str = "root"


class Header(msgspec.Struct, omit_defaults=True):
    """What is known of a trace as a whole; the first line of a canonical JSONL file, metadata of a Parquet one.

    `assumptions` says in words what the reader assumed (unit, block size, time base), `counts` what it met
    (negative gaps, zero outputs, absent parents…); both are shown by `trace stats`.
    """

    schema_version: int = SCHEMA_VERSION
    source: str = ""
    source_format: str = "canonical"
    source_sha256: str = ""
    licence: str = ""
    block_tokens: int | None = None
    id_scope: str = "trace"
    lengths: str = "exact"  # or "estimated"
    assumptions: list[str] = msgspec.field(default_factory=list)
    counts: dict[str, int] = msgspec.field(default_factory=dict)
    extra: dict[str, Any] = msgspec.field(default_factory=dict)


class Content(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Text of a request: the prompt is the first `shared_messages` of the context of `shares_with`, then `messages`.

    Messages are kept as they were found. `tools` are its tool definitions, `extra` what else its format told of it.
    """

    request_id: str
    messages: list[Any]
    reply: Any = None
    shares_with: str | None = None
    shared_messages: int = 0
    tools: Any = None
    extra: dict[str, Any] = {}


class Trace(msgspec.Struct):
    """A header and its rows, in file order (donors before those that share with them).

    `content` is the text of the requests, where a format has it and the trace was read from that format.
    """

    header: Header
    rows: list[Row]
    content: list[Content] | None = None
