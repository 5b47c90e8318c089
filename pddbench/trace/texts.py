"""From requests with text to rows: token lengths and shared prefixes of messages.

Without a tokenizer a message is taken for its UTF-8 bytes / 4, rounded up, plus 4 tokens of its frame; where the
format tells the tokens of the whole prompt or reply, these are used and the messages between known places share them
in proportion. Prompts share whole messages (tools first); what two different messages have in common is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pddbench.trace.model import Content, Row

BYTES_PER_TOKEN = 4
FRAME_TOKENS = 4
ESTIMATE_SAID = (
    f"lengths without usage are estimated: a message is its UTF-8 bytes / {BYTES_PER_TOKEN} rounded up, "
    f"plus {FRAME_TOKENS} tokens"
)
SHARING_SAID = (
    "prompts share whole messages, found by comparing the text in the whole file; parts of one are not counted"
)


@dataclass(kw_only=True)
class TextTurn:
    """A request with its text. `prompt` and `reply` are messages as found; tokens None: to be estimated.

    `parents` are indices of earlier turns; times in seconds of the trace.
    """

    request_id: str
    session_id: str
    turn: int
    prompt: list[Any]
    reply: Any
    tools: Any = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    start_s: float | None = None
    gap_s: float | None = None
    parents: list[int] = field(default_factory=list)
    kind: str = "root"
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class _Placed:
    """What later turns need of an earlier one: its messages' keys and, for each, where it ends in the context."""

    keys: list[str]
    ends: list[int]
    raw: list[Any]
    input_tokens: int
    output_tokens: int


def assemble(turns: Sequence[TextTurn]) -> tuple[list[Row], list[Content]]:
    """Rows and their text, in the order given (parents and donors come first in it)."""
    seen, measured = _MessageTrie(), _Measured()
    placed: list[_Placed] = []
    rows: list[Row] = []
    content: list[Content] = []
    for i, turn in enumerate(turns):
        head = [] if turn.tools is None else [{"role": "tools", "content": turn.tools}]
        raw = [*head, *turn.prompt]
        keys = [measured.key(message) for message in raw]
        donor, shared = seen.find(keys)
        sizes = [measured.tokens(message) for message in raw[shared:]]
        ends = _ends(sizes, placed[donor].ends[:shared] if donor >= 0 else [], turn.input_tokens)
        inputs = turn.input_tokens if turn.input_tokens is not None else (ends[-1] if ends else 0)
        outputs = turn.output_tokens if turn.output_tokens is not None else text_tokens(turn.reply)
        reply = [] if turn.reply is None else [turn.reply]
        this = _Placed([*keys, *map(measured.key, reply)], ends, [*raw, *reply], inputs, outputs)
        if reply:
            this.ends = [*ends, inputs + outputs]
        prefix = min(placed[donor].ends[shared - 1], inputs) if donor >= 0 else 0
        seen.add(this.keys, len(keys), i)
        placed.append(this)
        rows.append(_row(turn, turns, inputs, outputs, turns[donor].request_id if donor >= 0 else None, prefix))
        content.append(_content(turn, raw, placed[donor] if donor >= 0 else None, turns, donor, shared))
    return rows, content


def _row(turn: TextTurn, turns: Sequence[TextTurn], inputs: int, outputs: int, donor: str | None, prefix: int) -> Row:
    return Row(
        request_id=turn.request_id,
        session_id=turn.session_id,
        turn=turn.turn,
        input_tokens=inputs,
        output_tokens=outputs,
        parents=tuple(turns[parent].request_id for parent in turn.parents),
        start_s=turn.start_s,
        gap_s=turn.gap_s,
        prefix_of=donor,
        prefix_tokens=prefix,
        kind=turn.kind,
    )


def _content(
    turn: TextTurn, raw: list[Any], donor: _Placed | None, turns: Sequence[TextTurn], index: int, shared: int
) -> Content:
    """The text of a turn; only messages that are alike to the last field are left to the donor."""
    tools = 0 if turn.tools is None else 1
    same = 0
    if donor is not None:
        while same < shared and donor.raw[same] == raw[same]:
            same += 1
    same = max(0, same - tools)  # tools are kept apart, in full
    return Content(
        request_id=turn.request_id,
        messages=turn.prompt[same:],
        reply=turn.reply,
        shares_with=turns[index].request_id if same else None,
        shared_messages=same,
        tools=turn.tools,
        extra=turn.extra,
    )


def _ends(sizes: Sequence[int], known: list[int], total: int | None) -> list[int]:
    """Where each message ends: the first as in the donor, the rest by size, stretched to `total` if it is told."""
    ends = list(known)
    at = ends[-1] if ends else 0
    if total is None:
        for size in sizes:
            at += size
            ends.append(at)
        return ends
    room, passed, whole = max(0, total - at), 0, sum(sizes)
    for size in sizes:
        passed += size
        ends.append(at + room * passed // whole)
    return [min(end, total) for end in ends]


class _Measured:
    """Keys and sizes of messages, worked out once for each object (turns of a conversation share theirs)."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str, int]] = {}  # holds the message, so that its id stays its own

    def _of(self, message: Any) -> tuple[Any, str, int]:
        known = self._known.get(id(message))
        if known is None:
            known = self._known[id(message)] = (message, message_key(message), text_tokens(message))
        return known

    def key(self, message: Any) -> str:
        """`message_key` of it."""
        return self._of(message)[1]

    def tokens(self, message: Any) -> int:
        """`text_tokens` of it."""
        return self._of(message)[2]


class _MessageTrie:
    """The trie of messages; of each node the latest turn with it in its prompt, and in its context."""

    def __init__(self) -> None:
        self._child: dict[tuple[int, str], int] = {}
        self._in_prompt = [-1]
        self._in_context = [-1]

    def find(self, keys: Sequence[str]) -> tuple[int, int]:
        """The turn that shares most messages (-1: none) and how many; among equals one with them in its prompt."""
        node, depth = 0, 0
        for key in keys:
            child = self._child.get((node, key))
            if child is None:
                break
            node, depth = child, depth + 1
        if not depth:
            return -1, 0
        return (self._in_prompt[node] if self._in_prompt[node] >= 0 else self._in_context[node]), depth

    def add(self, keys: Sequence[str], in_prompt: int, turn: int) -> None:
        """Add a context of which the first `in_prompt` messages are the prompt."""
        node = 0
        for i, key in enumerate(keys):
            child = self._child.get((node, key))
            if child is None:
                child = len(self._in_prompt)
                self._child[node, key] = child
                self._in_prompt.append(-1)
                self._in_context.append(-1)
            (self._in_prompt if i < in_prompt else self._in_context)[child] = turn
            node = child


def role_of(message: Any) -> str:
    """The role of a message, '' if it has none."""
    found = message.get("role", message.get("from")) if isinstance(message, dict) else None
    return found if isinstance(found, str) else ""


def text_of(message: Any) -> str:
    """The text of a message: its content (a string, or parts with text), its tool calls as JSON."""
    if not isinstance(message, dict):
        return message if isinstance(message, str) else _json(message)
    content = message.get("content", message.get("value", message.get("parts")))
    text = _parts_text(content)
    for name in ("tool_calls", "function_call"):
        if message.get(name):
            text += _json(message[name])
    return text


def _parts_text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        return _json(content)
    texts = [part.get("text", part.get("content")) if isinstance(part, dict) else part for part in content]
    return "".join(text if isinstance(text, str) else _json(part) for text, part in zip(texts, content, strict=True))


def message_key(message: Any) -> str:
    """What makes two messages the same tokens: role and text."""
    return f"{role_of(message)}\0{text_of(message)}"


def text_tokens(message: Any) -> int:
    """Estimated tokens of a message, 0 for none."""
    if message is None:
        return 0
    return -(-len(text_of(message).encode(errors="replace")) // BYTES_PER_TOKEN) + FRAME_TOKENS


def _json(value: Any) -> str:
    return msgspec.json.encode(value, order="sorted").decode()
