"""Reader for OpenTelemetry spans with gen_ai attributes: who called a model, with which messages, when.

Read are documents with `spans` (attributes as an object), OTLP/JSON exports (`resourceSpans`), and JSON lines of either
or of single spans. Messages are JSON inside a string (`gen_ai.input.messages`). `parent_span_id` is often null, so what
a request waited for is found from its text: an earlier request of the session whose reply stands in its prompt and
which had ended before. Requests without such a parent are roots with their recorded start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pddbench.errors import TraceError
from pddbench.trace.model import Header, Trace
from pddbench.trace.nodes import clipped_gap_s, known_counts
from pddbench.trace.otlp import Span, spans_of
from pddbench.trace.source import INT32_MAX, file_sha256
from pddbench.trace.stamps import NS_PER_S
from pddbench.trace.texts import ESTIMATE_SAID, SHARING_SAID, TextTurn, assemble, message_key, role_of

SESSION_KEYS = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")
INPUT_USAGE = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens")
OUTPUT_USAGE = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens")
_MODEL_CALLS = ("chat", "text_completion", "generate_content")
_TEXT_KEYS = (
    "gen_ai.input.messages",
    "gen_ai.output.messages",
    "gen_ai.output.text",
    "gen_ai.system_instructions",
    "gen_ai.tool.definitions",
)
_ASSISTANT = ("assistant", "model")


@dataclass
class _Call:
    """A model call: its turn, and what its parents are found by."""

    span: Span
    turn: TextTurn
    keys: list[str]  # of the prompt's messages
    reply_key: str | None
    above: set[int] = field(default_factory=set)  # all ancestors


def read_otel(path: Path) -> Trace:
    """The model calls among the spans of a file, by start time."""
    counts: Counter[str] = Counter()
    spans = [span for span in spans_of(path) if _is_model_call(span, counts)]
    if not spans:
        raise TraceError(path, None, None, "none of the spans is a call of a model (gen_ai.input.messages)")
    spans.sort(key=lambda span: span.start_ns)
    zero_ns = spans[0].start_ns
    calls = [
        _Call(span, turn, [message_key(message) for message in turn.prompt], _key(turn.reply))
        for span, turn in _turns(spans, zero_ns, counts)
    ]
    by_session: dict[str, list[int]] = {}
    for i, call in enumerate(calls):
        earlier = by_session.setdefault(call.turn.session_id, [])
        _find_parents(calls, i, earlier, counts)
        earlier.append(i)
    rows, content = assemble([call.turn for call in calls])
    told = all(call.turn.input_tokens is not None and call.turn.output_tokens is not None for call in calls)
    header = Header(
        source=path.name,
        source_format="otel",
        source_sha256=file_sha256(path),
        id_scope="file",
        lengths="exact" if told else "estimated",
        assumptions=_assumptions(told, known_counts(counts)),
        counts=known_counts(counts),
    )
    return Trace(header, rows, content)


def _is_model_call(span: Span, counts: Counter[str]) -> bool:
    is_call = "gen_ai.input.messages" in span.attributes or (
        span.attributes.get("gen_ai.operation.name") in _MODEL_CALLS
        and any(name in span.attributes for name in INPUT_USAGE)
    )
    counts["spans_that_call_no_model"] += not is_call
    return is_call


def _turns(spans: list[Span], zero_ns: int, counts: Counter[str]) -> Iterator[tuple[Span, TextTurn]]:
    seen: set[str] = set()
    turns: Counter[str] = Counter()
    for span in spans:
        name = span.span_id if span.span_id not in seen else f"{span.trace_id}/{span.span_id}"
        if name in seen:
            raise span.fail("span_id", f"{span.span_id!r} is already in the file")
        seen.add(name)
        session = next((str(span.attributes[key]) for key in SESSION_KEYS if span.attributes.get(key)), span.trace_id)
        counts["calls_with_error_status"] += span.failed
        counts["calls_without_messages"] += "gen_ai.input.messages" not in span.attributes
        counts["stamps_without_zone"] += not span.has_zone
        inputs, outputs = _usage(span, INPUT_USAGE), _usage(span, OUTPUT_USAGE)
        counts["calls_without_usage"] += inputs is None or outputs is None
        reply, others = _reply(span)
        extra = {"attributes": {k: v for k, v in span.attributes.items() if k not in _TEXT_KEYS}, "name": span.name}
        if others:
            extra["other_replies"] = others
        yield (
            span,
            TextTurn(
                request_id=name,
                session_id=session or name,
                turn=turns[session],
                prompt=_prompt(span),
                reply=reply,
                tools=_json_attribute(span, "gen_ai.tool.definitions"),
                input_tokens=inputs,
                output_tokens=outputs,
                start_s=(span.start_ns - zero_ns) / NS_PER_S,
                extra=extra,
            ),
        )
        turns[session] += 1


def _prompt(span: Span) -> list[Any]:
    messages = _json_attribute(span, "gen_ai.input.messages")
    if messages is None:
        messages = []
    if not isinstance(messages, list):
        raise span.fail("attributes.gen_ai.input.messages", "is no array of messages")
    system = _json_attribute(span, "gen_ai.system_instructions")
    return messages if system is None else [{"role": "system", "content": system}, *messages]


def _reply(span: Span) -> tuple[Any, list[Any]]:
    """The reply that a conversation goes on with, and further choices."""
    messages = _json_attribute(span, "gen_ai.output.messages")
    if isinstance(messages, list) and messages:
        return messages[0], messages[1:]
    text = span.attributes.get("gen_ai.output.text")
    return (None if text is None else {"role": "assistant", "content": text}), []


def _json_attribute(span: Span, name: str) -> Any:
    """An attribute that is JSON inside a string, or has been decoded already."""
    value = span.attributes.get(name)
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise span.fail(f"attributes.{name}", f"the string holds no valid JSON ({error})") from error


def _usage(span: Span, names: tuple[str, ...]) -> int | None:
    value = next((span.attributes[name] for name in names if span.attributes.get(name) is not None), None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT32_MAX:
        name = next(name for name in names if name in span.attributes)
        raise span.fail(f"attributes.{name}", f"is no number of tokens between 0 and {INT32_MAX}")
    return value


def _key(reply: Any) -> str | None:
    return None if reply is None else message_key(reply)


def _find_parents(calls: list[_Call], i: int, earlier: list[int], counts: Counter[str]) -> None:
    """Parents of call i among the earlier ones of its session: its parent span, and whose replies it quotes."""
    call = calls[i]
    quoted = {key for key, message in zip(call.keys, call.turn.prompt, strict=True) if role_of(message) in _ASSISTANT}
    found: dict[str, tuple[bool, bool, int]] = {}
    for j in earlier:
        other = calls[j]
        is_parent_span = other.span.span_id == call.span.parent_id and other.span.trace_id == call.span.trace_id
        is_quoted = other.reply_key is not None and other.reply_key in quoted
        if not is_parent_span and not is_quoted:
            continue
        if other.span.end_ns > call.span.start_ns:
            counts["parents_that_had_not_ended"] += 1
            continue
        # of equal replies: the parent span, then the one whose whole context goes on here, then the latest
        name = str(other.reply_key) if is_quoted else ""
        found[name] = max(found.get(name, (False, False, -1)), (is_parent_span, _goes_on(call, other), j))
    parents = {j for _, _, j in found.values()}
    older = set().union(*(calls[j].above for j in parents)) if parents else set()
    call.above = parents | older
    call.turn.parents = sorted(parents - older)
    if not call.turn.parents:
        return
    call.turn.kind = "tool" if call.turn.prompt and role_of(call.turn.prompt[-1]) == "tool" else "user"
    ended_ns = max(calls[j].span.end_ns for j in call.turn.parents)
    call.turn.gap_s = clipped_gap_s((call.span.start_ns - ended_ns) / NS_PER_S, 0.0, counts)


def _goes_on(call: _Call, other: _Call) -> bool:
    """Does the prompt of a call begin with the whole context of another?"""
    n = len(other.keys)
    return call.keys[: n + 1] == [*other.keys, other.reply_key]


def _assumptions(told: bool, counts: dict[str, int]) -> list[str]:
    said = [
        "a request waited for those of its session whose replies stand in its prompt and which had ended before",
        SHARING_SAID,
    ]
    if told:
        said.append(
            "lengths are those of usage; where a shared message ends inside a prompt is estimated from its bytes"
        )
    else:
        said.append(ESTIMATE_SAID)
    if other := counts.get("spans_that_call_no_model"):
        said.append(f"spans that are no call of a model (tools, agents): {other}, no request comes of them")
    if failed := counts.get("calls_with_error_status"):
        said.append(f"calls with an error status: {failed}, kept with the reply they have")
    if without := counts.get("calls_without_messages"):
        said.append(f"calls without messages: {without}, their prompts are wholly fresh")
    if counts.get("stamps_without_zone"):
        said.append("stamps without a zone are taken as UTC")
    return said
