"""Columns of the Parquet files of a run folder: the contract with notebooks and CI (see METRICS.md).

Types are Arrow names. Times are int64 nanoseconds of experiment time since the run's t0 (wall time x the emulator's
speed, which is 1 for real endpoints); null when it did not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA_VERSION = 1

OUTCOMES = ("ok", "truncated", "http_error", "stream_error", "timeout", "cancelled", "connection", "not_sent")

_IDENTITY = {"request_id": "string", "session_id": "string", "turn": "int32", "kind": "string",
             "arm": "string", "repeat": "int32", "phase": "string"}  # fmt: skip
# Times of arrival are the kernel's where `stamps` says so (kernel, merged; mixed: of some reads); user: our own. The
# kernel's and our own stamp of the first token are both kept.
# sent_ns: a connection was ready and the request began to leave. connect_wait_ns: what it waited for one (0: reused).
# Our own lateness is therefore sent - due - throttle_wait - connect_wait. first_byte_ns: the response's head was there.
_TIMES = ("scheduled_ns", "ready_ns", "due_ns", "throttle_wait_ns", "connect_wait_ns", "sent_ns", "first_byte_ns",
          "first_chunk_ns", "first_token_ns", "second_token_ns", "last_token_ns", "end_ns",
          "kernel_first_token_ns", "user_first_token_ns")  # fmt: skip
# input_tokens_sent: length of the prompt as we made it. Another than planned only with live history; null: not sent.
_TOKENS = ("input_tokens_planned", "input_tokens_sent", "prompt_tokens", "cached_tokens_planned",
           "cached_tokens_possible", "cached_tokens_ceiling", "cached_tokens", "output_tokens_planned",
           "completion_tokens", "chunks")  # fmt: skip

REQUESTS: dict[str, str] = {
    **_IDENTITY,
    **dict.fromkeys(_TIMES, "int64"),
    **dict.fromkeys(_TOKENS, "int32"),
    "max_gap_ns": "int64",
    "max_gap_token": "int32",
    **dict.fromkeys(("tokens_p", "tokens_rld", "tokens_md"), "int32"),
    "pipeline": "string",
    "handoff_mode": "string",
    "handoff_token": "int32",
    "handoff_rounds": "int32",
    **dict.fromkeys(("handoff_bytes", "kv_wan_bytes", "kv_wan_wire_bytes", "kv_wan_ns"), "int64"),
    "http_status": "int32",
    "stamps": "string",
    "worker": "int32",  # which of our processes sent it, or was to send it, from 0
    **dict.fromkeys(("finish_reason", "outcome", "error", "plan_sha256", "body_sha256", "output_sha256"), "string"),
}

EVENTS: dict[str, str] = {
    "request_id": "string",
    "arm": "string",
    "repeat": "int32",
    "gaps_us": "list<int64>",  # gap before each token-bearing chunk after the first, microseconds
    "chunk_tokens": "list<int32>",  # tokens of each token-bearing chunk; null element where not known
    "stage": "list<string>",  # role that produced each chunk, where the endpoint says; else empty
    "text_crc": "list<int32>",  # running CRC-32 of the reply (UTF-8) after every 64 bytes and at its end
}

SERVER: dict[str, str] = {
    "arm": "string",
    "repeat": "int32",
    "t_ns": "int64",  # wall
    "process": "string",
    "metric": "string",
    "value": "double",
}

HEALTH: dict[str, str] = {
    "arm": "string",
    "repeat": "int32",
    "t_ns": "int64",  # wall, end of the sampled interval
    "process": "string",
    "worker": "int32",  # which of our processes, from 0
    "loop_lag_ns": "list<int64>",  # wall, every sample of the interval
    "cpu_share": "double",  # of one core over the interval
    "run_delay_ns": "int64",  # time runnable but not running, over the interval (Linux schedstat)
    "rss_bytes": "int64",
    "in_flight": "int32",
    "kernel_gap_ns": "list<int64>",  # wall, our own stamp of the newest read minus the kernel's, about every 5 ms
}

# Simulated runs only; see deploy.emulator.observe.EVENTS and docs/emulator.md.
ROLES: dict[str, str] = {
    "request_id": "string",
    "arm": "string",
    "repeat": "int32",
    "t_ns": "int64",
    "event": "string",
    "instance": "int32",  # -1: none, or any
    "tokens": "int64",
    "bytes": "int64",
}


def arrow_schema(columns: dict[str, str], metadata: dict[str, str] | None = None) -> pa.Schema:
    """The Arrow schema of one of the tables above."""
    import pyarrow as pa

    types = {"string": pa.string(), "int32": pa.int32(), "int64": pa.int64(), "double": pa.float64(),
             "list<int64>": pa.list_(pa.int64()), "list<int32>": pa.list_(pa.int32()),
             "list<string>": pa.list_(pa.string())}  # fmt: skip
    return pa.schema([(name, types[kind]) for name, kind in columns.items()], metadata=metadata)
