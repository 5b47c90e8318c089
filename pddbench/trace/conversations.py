"""Readers for recorded conversations: ShareGPT-like data sets and agents' trajectories (SWE-agent, mini-swe-agent).

Every message of the assistant is a request: its prompt is all that stands before it. No times are recorded.

* ShareGPT-like: a JSON array, or JSON lines, of objects with `conversations`, `conversation` or `messages`; messages
  have `from`/`value` (human, gpt) or `role`/`content`.
* Trajectories: one JSON document, an array of messages or an object with `history` or `messages`. Messages of a
  demonstration (`is_demo`) are part of the prompt and no requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pddbench.errors import TraceError
from pddbench.trace.model import Header, Trace
from pddbench.trace.nodes import known_counts
from pddbench.trace.source import decode_any, file_sha256, numbered_lines, read_content
from pddbench.trace.texts import ESTIMATE_SAID, SHARING_SAID, TextTurn, assemble, role_of

CONVERSATION_FIELDS = ("conversations", "conversation", "messages")
TRAJECTORY_FIELDS = ("history", "messages")
_ASSISTANT = ("assistant", "gpt", "chatgpt", "bard", "bing", "model")
_TOOL = ("tool", "function", "observation", "ipython")


def read_sharegpt(path: Path) -> Trace:
    """The conversations of a ShareGPT-like file."""
    counts: Counter[str] = Counter()
    turns: list[TextTurn] = []
    for place, line, item in _conversations(path):
        field = next((name for name in CONVERSATION_FIELDS if name in item), None)
        if field is None:
            raise TraceError(path, line, f"[{place}]", f"has none of the fields {', '.join(CONVERSATION_FIELDS)}")
        extra = {name: value for name, value in item.items() if name not in (field, "tools")}
        messages = _messages(item[field], path, line, f"[{place}].{field}")
        session = f"{item.get('id', item.get('conversation_hash', ''))}" or str(place)
        _add_turns(turns, f"{place}/{session}", messages, item.get("tools"), extra, counts)
    return _trace(path, "sharegpt", turns, counts)


def read_sweagent(path: Path) -> Trace:
    """The one conversation of a trajectory file."""
    data = decode_any(read_content(path), path)
    extra: dict[str, Any] = {}
    tools: Any = None
    where = ""
    if isinstance(data, dict):
        where = next((name for name in TRAJECTORY_FIELDS if name in data), "")
        if not where:
            raise TraceError(path, 1, "history", "is missing")
        extra = {name: value for name, value in data.items() if name not in (where, "tools")}
        data, tools = data[where], data.get("tools")
    counts: Counter[str] = Counter()
    turns: list[TextTurn] = []
    _add_turns(turns, path.name.split(".")[0], _messages(data, path, 1, where), tools, extra, counts)
    return _trace(path, "sweagent", turns, counts)


def _conversations(path: Path) -> Iterator[tuple[int, int | None, dict[str, Any]]]:
    """(number from 0, line if it is known, conversation) of an array or of JSON lines."""
    _, first = next(numbered_lines(path))
    if first[:1] == b"[":
        for place, item in enumerate(decode_any(read_content(path), path)):
            yield place, None, _object(item, path, None, f"[{place}]")
        return
    for place, (line, raw) in enumerate(numbered_lines(path)):
        yield place, line, _object(decode_any(raw, path, line), path, line, f"[{place}]")


def _object(item: Any, path: Path, line: int | None, field: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise TraceError(path, line, field, "is no object with a conversation in it")
    return item


def _messages(data: Any, path: Path, line: int | None, field: str) -> list[dict[str, Any]]:
    if not isinstance(data, list):
        raise TraceError(path, line, field or None, "is no array of messages")
    for i, message in enumerate(data):
        if not isinstance(message, dict) or not role_of(message):
            raise TraceError(path, line, f"{field}[{i}]", "is no message with a role (or from)")
    return data


def _add_turns(
    turns: list[TextTurn],
    session: str,
    messages: list[dict[str, Any]],
    tools: Any,
    extra: dict[str, Any],
    counts: Counter[str],
) -> None:
    """A turn for every reply of the assistant; `extra` of the conversation goes with its first."""
    first = len(turns)
    asked = -1
    for i, message in enumerate(messages):
        if not _is_reply(message):
            continue
        if i == 0:
            counts["leading_replies"] += 1
            continue
        asked = i
        turn = len(turns) - first
        turns.append(
            TextTurn(
                request_id=f"{session}/{turn}",
                session_id=session,
                turn=turn,
                prompt=list(messages[:i]),
                reply=message,
                tools=tools,
                start_s=None if turn else 0.0,
                parents=[len(turns) - 1] if turn else [],
                kind="root" if not turn else "tool" if role_of(messages[i - 1]) in _TOOL else "user",
                extra=extra if not turn else {},
            )
        )
    counts["conversations_without_reply"] += len(turns) == first
    counts["unanswered_messages"] += len(messages) - 1 - asked if len(turns) > first else len(messages)


def _is_reply(message: dict[str, Any]) -> bool:
    return role_of(message) in _ASSISTANT and not message.get("is_demo")


def _trace(path: Path, source_format: str, turns: list[TextTurn], counts: Counter[str]) -> Trace:
    if not turns:
        raise TraceError(path, None, None, "there is no reply of an assistant in it, so no request")
    rows, content = assemble(turns)
    counts["unknown_gaps"] = sum(bool(row.parents) for row in rows)
    header = Header(
        source=path.name,
        source_format=source_format,
        source_sha256=file_sha256(path),
        id_scope="file",
        lengths="estimated",
        assumptions=_assumptions(known_counts(counts)),
        counts=known_counts(counts),
    )
    return Trace(header, rows, content)


def _assumptions(counts: dict[str, int]) -> list[str]:
    said = [
        ESTIMATE_SAID,
        SHARING_SAID,
        "every reply of the assistant is a request, its prompt all messages before it (cumulative)",
        "no times are recorded: every session starts at 0 (use arrival = poisson), gaps are unknown",
    ]
    if unanswered := counts.get("unanswered_messages"):
        said.append(f"messages at the end of conversations, never answered: {unanswered}, no request comes of them")
    if leading := counts.get("leading_replies"):
        said.append(f"conversations that begin with a reply to nothing: {leading}, it is part of the prompts after it")
    if without := counts.get("conversations_without_reply"):
        said.append(f"conversations without a reply that answers anything: {without}, no request comes of them")
    return said
