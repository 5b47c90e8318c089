"""Run folders made up for the tests: the columns of the schema, sessions that move together, truths we planted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pddbench.runfolder import schema

Rows = dict[str, list[Any]]
GAP_US = 20_000
STALL_US = 800_000


@dataclass
class Recipe:
    """What to make. `edit` gets (arm, repeat, requests, events, server, health) as dicts of lists, may spoil them."""

    arms: tuple[str, ...] = ("baseline", "naive", "pdd")
    sessions: int = 120
    turns: int = 4
    tokens: int = 48
    repeats: int = 2
    seed: int = 1
    speed: float = 1.0
    slo: dict[str, float] = field(default_factory=lambda: {"ttft_sched_ms": 2000.0, "max_gap_ms": 1000.0})
    edit: Callable[[str, int, Rows, Rows, Rows, Rows], None] | None = None
    manifest: Callable[[dict[str, Any]], None] | None = None


def make_run(folder: Path, recipe: Recipe | None = None) -> Path:
    """Write a run folder and return its path."""
    r = recipe or Recipe()
    order = [[a, k] for k in range(r.repeats) for a in (r.arms if k % 2 == 0 else r.arms[::-1])]
    for arm in r.arms:
        for repeat in range(r.repeats):
            requests, events = _rows(r, arm, repeat)
            server, health = _server(arm, repeat), _health(arm, repeat)
            if r.edit:
                r.edit(arm, repeat, requests, events, server, health)
            for name, rows, columns in (
                ("requests", requests, schema.REQUESTS),
                ("events", events, schema.EVENTS),
                ("server", server, schema.SERVER),
                ("health", health, schema.HEALTH),
            ):
                (folder / name).mkdir(parents=True, exist_ok=True)
                table = pa.table(rows, schema=schema.arrow_schema(columns))
                pq.write_table(table, folder / name / f"{arm}.{repeat}.parquet")
    manifest = _manifest(r, order)
    if r.manifest:
        r.manifest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def _manifest(r: Recipe, order: list[list[Any]]) -> dict[str, Any]:
    chips = {"P": {"chip": "A", "count": 4}, "D": {"chip": "A", "count": 4}}
    pdd = {"P": {"chip": "A", "count": 4}, "RLD": {"chip": "A", "count": 1}, "MD": {"chip": "B", "count": 4}}
    line = {"baseline": False}
    return {
        "schema_version": schema.SCHEMA_VERSION, "name": "made-up", "created_utc": "2030-01-02T03:04:05+00:00",
        "config": {"name": "made-up", "slo": r.slo, "check": {}, "workload": {"timing": "think", "output": "exact"},
                   "cost": {"chips": {"A": 2.0, "B": 2.4}, "line": 0.7, "currency": "USD"}},
        "trace": {"path": "made-up.trace.jsonl", "sha256": "0" * 64},
        "plan": {"requests": r.sessions * r.turns, "sessions": r.sessions},
        "salts": {str(k): f"salt{k}" for k in range(r.repeats)}, "order": order, "repeats": r.repeats,
        "arms": {a: {"emulated": a if a in ("baseline", "naive", "pdd") else None, "base_url": "http://127.0.0.1:1/v1",
                     "block_tokens": 64, "speed": r.speed, "kv_scale": 100.0, "roles": pdd if a == "pdd" else chips,
                     "line": line.get(a, True)} for a in r.arms},
        "slo": r.slo, "cost": {"chips": {"A": 2.0, "B": 2.4}, "line": 0.7, "currency": "USD"},
        "wan": {"backend": "model", "profile": "national"}, "emulator": {"speed": r.speed, "kv_scale": 100.0},
        "partial": False, "signal": None, "output": "exact", "timing": "think",
    }  # fmt: skip


def _rows(r: Recipe, arm: str, repeat: int) -> tuple[Rows, Rows]:
    """Requests and events of one arm and repeat. The draws depend on (seed, repeat) only, so arms are paired."""
    rng = np.random.default_rng([r.seed, repeat])
    out: Rows = {name: [] for name in schema.REQUESTS}
    events: Rows = {name: [] for name in schema.EVENTS}
    arrivals = np.cumsum(rng.exponential(1.25, r.sessions))
    mood = np.exp(np.random.default_rng(r.seed).normal(0, 0.4, r.sessions))  # of a session, the same in all repeats
    for s in range(r.sessions):
        now = int(arrivals[s] * 1e9)
        for turn in range(r.turns):
            low = rng.random() < 0.25
            draw = float(np.exp(rng.normal(0, 0.2)))
            row, gaps, stages = _one(r, arm, mood[s] * draw, low, turn, now)
            row |= {"request_id": f"s{s}t{turn}", "session_id": f"s{s}", "arm": arm, "repeat": repeat,
                    "plan_sha256": f"{s}-{turn}", "body_sha256": f"{s}-{turn}-{repeat}"}  # fmt: skip
            for name in out:
                out[name].append(row.get(name))
            for name, value in zip(
                events, (row["request_id"], arm, repeat, gaps, [1] * r.tokens, stages, []), strict=True
            ):
                events[name].append(value)
            now = row["end_ns"] + int(rng.exponential(1.0) * 1e9)
    return out, events


def _one(r: Recipe, arm: str, scale: float, low: bool, turn: int, due: int) -> tuple[Rows, list[int], list[str]]:
    planned = 4096 if low else 15808
    moved = (16384 - planned) * 40_000  # bytes of KV
    kv_s = moved / 125e6 * 0.3
    ttft = 0.3 * scale + (kv_s if arm == "naive" else 0.0)
    gaps = np.full(r.tokens - 1, GAP_US) + np.arange(r.tokens - 1) % 3 * 100
    seam = r.tokens // 2 if arm == "pdd" and low else None
    if seam is not None:
        gaps[seam - 1] = STALL_US + GAP_US
    sent = due + 200_000
    first = sent + int(ttft * 1e9)
    last = first + int(gaps.sum()) * 1000
    big = int(gaps.argmax())
    stages = ["rld" if seam is not None and i < seam else "md" for i in range(r.tokens)] if arm == "pdd" else []
    row: Any = {
        "turn": turn, "kind": "root" if turn == 0 else "tool", "phase": "measure", "scheduled_ns": due,
        "ready_ns": due, "due_ns": due, "throttle_wait_ns": 0, "sent_ns": sent, "first_byte_ns": first - 1000,
        "first_chunk_ns": first, "first_token_ns": first, "second_token_ns": first + int(gaps[0]) * 1000,
        "last_token_ns": last, "end_ns": last + 50_000, "input_tokens_planned": 16384, "prompt_tokens": 16384,
        "cached_tokens_planned": planned, "cached_tokens_possible": planned, "cached_tokens_ceiling": planned,
        "cached_tokens": planned // 64 * 64, "output_tokens_planned": r.tokens, "completion_tokens": r.tokens,
        "chunks": r.tokens, "max_gap_ns": int(gaps[big]) * 1000, "max_gap_token": big + 1, "tokens_p": 0,
        "tokens_rld": seam or 0, "tokens_md": r.tokens - (seam or 0), "http_status": 200, "finish_reason": "length",
        "outcome": "ok", "output_sha256": "x",
        "pipeline": {"baseline": "P-D", "naive": "P-D"}.get(arm, "P-RLD-MD" if low else "P-MD"),
    }  # fmt: skip
    if arm != "baseline":
        row |= {"kv_wan_bytes": moved, "kv_wan_wire_bytes": moved // 100, "kv_wan_ns": int(kv_s * 1e9)}
    if seam is not None:
        row |= {"handoff_mode": "one_shot", "handoff_token": seam, "handoff_rounds": 1, "handoff_bytes": 4 * seam}
    return row, gaps.tolist(), stages


def fail(rows: Rows, i: int, outcome: str = "connection", error: str = "reset") -> None:
    """Make request `i` a failure that never got a token."""
    for name in ("first_byte_ns", "first_chunk_ns", "first_token_ns", "second_token_ns", "last_token_ns", "max_gap_ns",
                 "max_gap_token", "completion_tokens", "chunks", "cached_tokens", "prompt_tokens", "finish_reason",
                 "pipeline", "handoff_token", "handoff_bytes", "handoff_mode"):  # fmt: skip
        rows[name][i] = None
    rows["outcome"][i], rows["error"][i] = outcome, error


def _server(arm: str, repeat: int) -> Rows:
    return {"arm": [arm] * 2, "repeat": [repeat] * 2, "t_ns": [10**10] * 2, "process": ["router", "a"],
            "metric": ["late_p99_ns"] * 2, "value": [2e5, 1e6]}  # fmt: skip


def _health(arm: str, repeat: int) -> Rows:
    n = 60
    return {"arm": [arm] * n, "repeat": [repeat] * n, "t_ns": [i * 10**9 for i in range(1, n + 1)],
            "process": ["client"] * n, "loop_lag_ns": [[100_000, 200_000, 1_000_000]] * n, "cpu_share": [0.1] * n,
            "run_delay_ns": [1000] * n, "rss_bytes": [10**8] * n, "in_flight": [5] * n,
            "worker": [0] * n, "kernel_gap_ns": [[30_000]] * n, "busy_share": [None] * n}  # fmt: skip
