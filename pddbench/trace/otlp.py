"""Spans out of the files that hold them: `spans` documents, OTLP/JSON exports, JSON lines of either or of spans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pddbench.errors import TraceError
from pddbench.text import printable
from pddbench.trace.source import decode_any, is_json, numbered_lines, read_content
from pddbench.trace.stamps import Stamp, parse_stamp

_ERROR_CODES = (2, "STATUS_CODE_ERROR", "ERROR")


@dataclass(frozen=True)
class Span:
    """One span, times in nanoseconds since 1970; `place` and `line` are for errors."""

    path: Path
    line: int
    place: str
    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    has_zone: bool
    failed: bool
    attributes: dict[str, Any]

    def fail(self, field: str, problem: str) -> TraceError:
        """The error to raise for a field of this span."""
        return _fail(self.path, self.line, f"{self.place}.{field}", printable(problem, 200))


def _fail(path: Path, line: int, field: str, problem: str) -> TraceError:
    return TraceError(path, line, printable(field, 120).lstrip("."), problem)


def spans_of(path: Path) -> Iterator[Span]:
    """All spans of a file, in its order."""
    for line, document, content in _documents(path):
        for place, raw in _raw_spans(document, path, line):
            yield _span(raw, path, _line_of(raw, content, line), place)


def _documents(path: Path) -> Iterator[tuple[int, Any, bytes]]:
    """(line, JSON value, text to look for lines in) of the whole file, or of each line."""
    lines = numbered_lines(path)
    number, first = next(lines)
    if not is_json(first):
        content = read_content(path)
        yield 1, decode_any(content, path), content
        return
    yield number, decode_any(first, path, number), b""
    for number, raw in lines:
        yield number, decode_any(raw, path, number), b""


def _line_of(raw: Any, content: bytes, line: int) -> int:
    """Line of a span in a document of many lines, found by its id."""
    name = raw.get("span_id", raw.get("spanId")) if isinstance(raw, dict) else None
    if not content or not isinstance(name, str):
        return line
    at = content.find(json.dumps(name).encode())
    return content.count(b"\n", 0, at) + 1 if at >= 0 else line


def _raw_spans(document: Any, path: Path, line: int) -> Iterator[tuple[str, Any]]:
    if not isinstance(document, dict):
        raise TraceError(path, line, None, "is no object with spans")
    if "spans" in document:
        yield from ((f"spans[{i}]", raw) for i, raw in enumerate(_list(document["spans"], path, line, "spans")))
    elif "resourceSpans" in document:
        for i, resource in enumerate(_list(document["resourceSpans"], path, line, "resourceSpans")):
            for j, scope in enumerate(_list(_get(resource, "scopeSpans", []), path, line, f"resourceSpans[{i}]")):
                place = f"resourceSpans[{i}].scopeSpans[{j}].spans"
                for k, raw in enumerate(_list(_get(scope, "spans", []), path, line, place)):
                    yield f"{place}[{k}]", raw
    elif "span_id" in document or "spanId" in document:
        yield "", document
    else:
        raise TraceError(path, line, "spans", "is missing (nor is it a span or an OTLP export)")


def _list(value: Any, path: Path, line: int, field: str) -> list[Any]:
    if not isinstance(value, list):
        raise _fail(path, line, field, "is no array")
    return value


def _get(value: Any, name: str, default: Any) -> Any:
    return value.get(name, default) if isinstance(value, dict) else None


def _span(raw: Any, path: Path, line: int, place: str) -> Span:
    if not isinstance(raw, dict):
        raise _fail(path, line, place, "is no object")
    start, end = (
        _time(raw, names, path, line, place)
        for names in (("start_time", "startTimeUnixNano"), ("end_time", "endTimeUnixNano"))
    )
    status = raw.get("status")
    return Span(
        path=path,
        line=line,
        place=place,
        trace_id=_text(raw, ("trace_id", "traceId"), path, line, place),
        span_id=_text(raw, ("span_id", "spanId"), path, line, place),
        parent_id=str(raw.get("parent_span_id") or raw.get("parentSpanId") or ""),
        name=str(raw.get("name", "")),
        start_ns=start.ns,
        end_ns=end.ns,
        has_zone=start.has_zone,
        failed=isinstance(status, dict) and status.get("code") in _ERROR_CODES,
        attributes=_attributes(raw.get("attributes", {}), path, line, place),
    )


def _text(raw: dict[str, Any], names: tuple[str, str], path: Path, line: int, place: str) -> str:
    value = next((raw[name] for name in names if name in raw), None)
    if not isinstance(value, str) or not value:
        raise _fail(path, line, f"{place}.{names[0]}", "is missing or no text")
    return value


def _time(raw: dict[str, Any], names: tuple[str, str], path: Path, line: int, place: str) -> Stamp:
    """ISO 8601 text, or nanoseconds since 1970 as a number or its digits."""
    value = next((raw[name] for name in names if name in raw), None)
    if value is None:
        raise _fail(path, line, f"{place}.{names[0]}", "is missing")
    if isinstance(value, int) or (isinstance(value, str) and value.isascii() and value.isdigit()):
        return Stamp(int(value), True)
    stamp = parse_stamp(value) if isinstance(value, str) else None
    if stamp is None:
        raise _fail(path, line, f"{place}.{names[0]}", "is no date and time")
    return stamp


def _attributes(value: Any, path: Path, line: int, place: str) -> dict[str, Any]:
    """Attributes as an object, or as OTLP's list of keys and typed values."""
    if isinstance(value, dict):
        return value
    found = {}
    for i, item in enumerate(_list(value, path, line, f"{place}.attributes")):
        if not isinstance(item, dict) or not isinstance(item.get("key"), str):
            raise _fail(path, line, f"{place}.attributes[{i}]", "has no key")
        found[item["key"]] = _otlp_value(item.get("value"))
    return found


def _otlp_value(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return value
    kind, inner = next(iter(value.items()))
    if kind == "intValue" and isinstance(inner, str) and inner.lstrip("-").isdigit():
        return int(inner)  # OTLP/JSON writes 64-bit integers as text
    if kind == "arrayValue":
        return [_otlp_value(item) for item in _values(inner)]
    if kind == "kvlistValue":
        return {str(_get(item, "key", "")): _otlp_value(_get(item, "value", None)) for item in _values(inner)}
    return inner


def _values(inner: Any) -> list[Any]:
    values = _get(inner, "values", [])
    return values if isinstance(values, list) else []
