# ruff: noqa: E501
"""Streams as servers really send them, each with the truth about it; played by tests and by the known-truth server."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


def sse(value: Any, end: bytes = b"\n\n") -> bytes:
    """One event."""
    raw = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return b"data: " + raw.encode() + end


def chat(delta: dict[str, Any], finish: str | None = None, **extra: Any) -> bytes:
    """One chat chunk."""
    return sse({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **extra})


def text(piece: str, finish: str | None = None, **extra: Any) -> bytes:
    """One completions chunk."""
    return sse({"choices": [{"index": 0, "text": piece, "finish_reason": finish}], **extra})


def usage(completion: int, prompt: int = 10, **more: Any) -> dict[str, Any]:
    """A usage object."""
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion, **more}


def last(completion: int, **extra: Any) -> bytes:
    """The usage chunk and [DONE]."""
    return sse({"choices": [], "usage": usage(completion), **extra}) + sse("[DONE]")


@dataclass
class Case:
    """Pieces a server writes one after the other, and what must come out. Indices count pieces."""

    name: str
    pieces: list[bytes]
    outcome: str = "ok"
    first: int | None = None  # piece of the first token
    second: int | None = None
    final: int | None = None
    chunks: int = 0
    tokens: int | None = None  # completion_tokens
    per_chunk: list[int | None] | None = None
    finish: str | None = None
    clean: bool = True  # the server ends the body properly
    more: dict[str, Any] = field(default_factory=dict)  # other fields of the result


ROLE = chat({"role": "assistant", "content": ""})
DONE = sse("[DONE]")

CASES = [
    Case("role chunk first", [ROLE, chat({"content": "a"}), chat({"content": "b"}), chat({}, "stop"), last(2)],
         first=1, second=2, final=2, chunks=2, tokens=2, per_chunk=[1, 1], finish="stop"),
    Case("completions", [text("a"), text("b"), text("c", "length"), last(3)],
         first=0, second=1, final=2, chunks=3, tokens=3, per_chunk=[1, 1, 1], finish="length"),
    Case("reasoning, then content",
         [ROLE, chat({"reasoning_content": "hm"}), chat({"reasoning": "so"}), chat({"content": "x"}, "stop"), last(3)],
         first=1, second=2, final=3, chunks=3, tokens=3, per_chunk=[1, 1, 1], finish="stop"),
    Case("tool calls only",
         [ROLE, chat({"content": None, "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": ""}}]}),
          chat({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}), chat({}, "tool_calls"), last(5)],
         first=1, final=2, chunks=2, tokens=5, per_chunk=[None, None], finish="tool_calls"),
    Case("cut off", [ROLE, chat({"content": "a"}), chat({"content": "b"})], outcome="truncated", first=1, second=2,
         final=2, chunks=2, per_chunk=[None, None]),
    Case("cut off unclean", [chat({"content": "a"})], outcome="truncated", first=0, final=0, chunks=1,
         per_chunk=[None], clean=False),
    Case("cut inside an event", [text("a"), b'data: {"choices": [{"te'], outcome="truncated", first=0, final=0,
         chunks=1, per_chunk=[None]),
    Case("done without finish", [text("a"), DONE], outcome="truncated", first=0, final=0, chunks=1, per_chunk=[None]),
    Case("error in stream", [text("a"), sse({"error": {"message": "out of \x1b[31mmemory", "code": 500}}), DONE],
         outcome="stream_error", first=0, final=0, chunks=1, per_chunk=[None],
         more={"error": "the server sent an error: out of memory"}),
    Case("error event", [b"event: error\n" + sse({"message": "no"})], outcome="stream_error",
         more={"error": "the server sent an error: no"}),
    Case("old vllm error", [sse({"object": "error", "message": "bad"}), DONE], outcome="stream_error",
         more={"error": "the server sent an error: bad"}),
    Case("not json", [text("a"), sse("<b>oops</b>")], outcome="stream_error", first=0, final=0, chunks=1,
         per_chunk=[None], more={"error": "an event is not JSON: oops"}),
    Case("aborted", [text("a", "abort"), DONE], outcome="stream_error", first=0, final=0, chunks=1,
         per_chunk=[None], finish="abort"),
    Case("comments and fields",
         [b": open\n\n", b"retry: 10\nid: 7\nevent: message\n" + text("a"), b":\n", b"data:" + text("b", "stop")[6:], DONE],
         first=1, second=3, final=3, chunks=2, per_chunk=[None, None], finish="stop"),
    Case("crlf", [text("a").replace(b"\n", b"\r\n"), text("b", "stop").replace(b"\n", b"\r\n"),
                  last(2).replace(b"\n", b"\r\n")],
         first=0, second=1, final=1, chunks=2, tokens=2, per_chunk=[1, 1], finish="stop"),
    Case("cr", [text("a").replace(b"\n", b"\r"), text("b", "stop").replace(b"\n", b"\r"), last(2).replace(b"\n", b"\r")],
         first=0, second=1, final=1, chunks=2, tokens=2, per_chunk=[1, 1], finish="stop"),
    Case("mark, wide characters, several lines",
         [b"\xef\xbb\xbf" + text("é漢😀"), b'data: {"choices": [{"index": 0,\ndata: "text": "b", "finish_reason": "stop"}]}\n\n'],
         first=0, second=1, final=1, chunks=2, per_chunk=[None, None], finish="stop"),
    Case("bundled by running usage",
         [chat({"content": "ab"}, usage=usage(2)), chat({"content": "cde"}, usage=usage(5)),
          chat({}, "stop", usage=usage(5)), last(5)],
         first=0, second=None, final=1, chunks=2, tokens=5, per_chunk=[2, 3], finish="stop",
         more={"max_gap_token": 2}),
    Case("usage with choices", [text("a"), text("b", "stop", usage=usage(2, prompt_tokens_details={"cached_tokens": 8}))],
         first=0, second=1, final=1, chunks=2, tokens=2, per_chunk=[1, 1], finish="stop",
         more={"cached_tokens": 8, "prompt_tokens": 10}),
    Case("held back by the detokeniser", [text("a"), text(""), text("bc"), text("", "stop"), last(4)],
         first=0, final=2, chunks=2, tokens=4, per_chunk=[None, None], finish="stop",
         more={"max_gap_token": None}),
    Case("deepseek's cache field", [text("a", "stop"), sse({"choices": [], "usage": usage(1, prompt_cache_hit_tokens=6)}), DONE],
         first=0, final=0, chunks=1, tokens=1, per_chunk=[1], finish="stop", more={"cached_tokens": 6}),
    Case("extension",
         [text("a", pdd={"stage": "rld", "index": 0}), text("b", pdd={"stage": "rld", "index": 1}),
          text("cd", "length", pdd={"stage": "md", "index": 3}),
          last(4, pdd={"pipeline": "P-RLD-MD", "eager": 2,
                       "handoff": {"mode": "one_shot", "token": 2, "rounds": 1, "bytes": 8},
                       "kv": {"bytes": 3 * 10**9, "wire_bytes": 3 * 10**7, "ns": 5}})],
         first=0, second=1, final=2, chunks=3, tokens=4, per_chunk=[1, 1, 2], finish="length",
         more={"stage": ["rld", "rld", "md"], "tokens_p": 0, "tokens_rld": 2, "tokens_md": 2, "pipeline": "P-RLD-MD",
               "handoff_mode": "one_shot", "handoff_token": 2, "handoff_rounds": 1, "handoff_bytes": 8,
               "kv_wan_bytes": 3 * 10**9, "kv_wan_wire_bytes": 3 * 10**7, "kv_wan_ns": 5}),
    Case("no answer at all", [], outcome="truncated", chunks=0),
    Case("empty answer", [ROLE, chat({}, "stop"), last(0)], chunks=0, tokens=0, per_chunk=[], finish="stop"),
]  # fmt: skip
