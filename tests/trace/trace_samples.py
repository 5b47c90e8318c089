"""A small file of every format: whole lines, and a line that is broken in a known field."""

import gzip
import json
from dataclasses import dataclass

import pyarrow as pa


def zstd(content):
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


PACKERS = {"plain": bytes, "gzip": gzip.compress, "zstd": zstd}


@dataclass(frozen=True)
class Sample:
    """Lines `head`, then `line(i)` for i from 0; `bad(i)` breaks `field` of it, or its JSON if `bad` cuts it off."""

    name: str
    line: object
    field: str
    bad: object
    head: tuple = ()

    def text(self, n, broken_at=None):
        lines = [self.bad(i) if i == broken_at else self.line(i) for i in range(n)]
        return "\n".join([*self.head, *lines]) + "\n"


def _json(make, field, value):
    def bad(i):
        return json.dumps({**make(i), field: value})

    return (lambda i: json.dumps(make(i))), bad


def _sample(name, make, field, value):
    line, bad = _json(make, field, value)
    return Sample(name, line, field, bad)


def span(i, **more):
    return {
        "trace_id": "t",
        "span_id": f"s{i}",
        "parent_span_id": None,
        "name": "chat",
        "start_time": f"2026-01-01T00:00:{i:02}.0",
        "end_time": f"2026-01-01T00:00:{i:02}.5",
        "attributes": {
            "gen_ai.input.messages": json.dumps([{"role": "user", "content": f"question {i}"}]),
            "gen_ai.output.text": f"answer {i}",
        },
        **more,
    }


def mooncake(i):
    return {"timestamp": 100 * i, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}


def tracelab(i):
    return {
        "session_id": "a",
        "round_index": i,
        "input_tokens_total": 100 + 10 * i,
        "prefix_tokens": 64,
        "output_tokens": 3,
        "timing_events": [{"event_type": "user_message", "timestamp": f"2026-01-01T00:00:{i:02}.000Z"}],
    }


def conversation(i):
    return {"id": str(i), "conversations": [{"from": "human", "value": f"q {i}"}, {"from": "gpt", "value": f"a {i}"}]}


SAMPLES = [
    _sample("mooncake", mooncake, "input_length", "x"),
    _sample("mooncake-sessions", lambda i: {**mooncake(i), "session_id": f"s{i}"}, "output_length", -1),
    _sample(
        "dynamo",
        lambda i: {**mooncake(i), "request_id": f"r{i}", "wait_for": [f"r{i - 1}"] if i else [], "input_length": 17},
        "tool_wait_ms",
        "soon",
    ),
    _sample(
        "bailian",
        lambda i: {
            "chat_id": i,
            "parent_chat_id": i - 1,
            "timestamp": float(i),
            "input_length": 40,
            "output_length": 2,
            "hash_ids": [1, 2, 3],
            "type": "text",
            "turn": i + 1,
        },
        "hash_ids",
        None,
    ),
    _sample("tracelab", tracelab, "prefix_tokens", 1.5),
    _sample("otel", span, "start_time", "yesterday"),
    _sample("sharegpt", conversation, "conversations", "none"),
    Sample(
        "azure",
        lambda i: f"2023-11-16 18:17:{i:02}.9799600,4808,10",
        "ContextTokens",
        lambda i: "2023-11-16 18:17:03.9799600,-1,10",
        ("TIMESTAMP,ContextTokens,GeneratedTokens",),
    ),
    Sample(
        "burstgpt",
        lambda i: f"{i},a{i % 2},2.5,ChatGPT,472,18,490,Conversation log",
        "Elapsed time",
        lambda i: f"{i},a,soon,ChatGPT,472,18,490,Conversation log",
        ("Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type",),
    ),
    Sample(
        "tracelab",
        lambda i: f"a,{i},0,100,5,10",
        "tool_wait_after_ms",
        lambda i: f"a,{i},0,100,5,",
        ("session_id,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms",),
    ),
]
IDS = [f"{sample.name}-{'csv' if sample.head else 'json'}" for sample in SAMPLES]
