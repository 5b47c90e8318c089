"""A million requests and a hundred million token gaps, analysed: CPU seconds and memory (PDDBENCH_BENCH_REQUESTS)."""

from __future__ import annotations

import json
import os
import resource
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.summary import build
from pddbench.runfolder import schema
from pddbench.runfolder.load import load

REQUESTS = int(os.environ.get("PDDBENCH_BENCH_REQUESTS", 1_000_000))
GAPS, TURNS, GROUP = 100, 50, 50_000


def write(folder):
    """One arm, sessions of 50 turns, 101 tokens a reply."""
    for name in ("requests", "events"):
        (folder / name).mkdir()
    with (
        pq.ParquetWriter(folder / "requests/mine.1.parquet", schema.arrow_schema(schema.REQUESTS)) as requests,
        pq.ParquetWriter(folder / "events/mine.1.parquet", schema.arrow_schema(schema.EVENTS)) as events,
    ):
        for first in range(0, REQUESTS, GROUP):
            one, two = tables(first, min(GROUP, REQUESTS - first))
            requests.write_table(one)
            events.write_table(two)
    facts = {"schema_version": schema.SCHEMA_VERSION, "name": "big", "arms": {"mine": {"block_tokens": 64}}}
    (folder / "manifest.json").write_text(json.dumps(facts))


def tables(first, n):
    """A group of rows and their gaps."""
    rng = np.random.default_rng(first)
    index = np.arange(first, first + n)
    gaps = (20_000 * np.exp(0.1 * rng.standard_normal((n, GAPS)))).astype(np.int64)
    due = index * 1_000_000
    token = due + (3e8 * np.exp(rng.normal(0, 0.5, n))).astype(np.int64)
    last = token + gaps.sum(axis=1) * 1000
    ids = np.char.add("r", index.astype(str))
    values = {
        "request_id": ids, "session_id": np.char.add("s", (index // TURNS).astype(str)), "turn": index % TURNS,
        "kind": ["tool"] * n, "arm": ["mine"] * n, "repeat": np.ones(n, int), "phase": ["measure"] * n,
        "outcome": ["ok"] * n, "scheduled_ns": due, "ready_ns": due, "due_ns": due, "throttle_wait_ns": 0 * due,
        "sent_ns": due, "first_byte_ns": token, "first_chunk_ns": token, "first_token_ns": token,
        "second_token_ns": token + gaps[:, 0] * 1000, "last_token_ns": last, "end_ns": last,
        "max_gap_ns": gaps.max(axis=1) * 1000, "input_tokens_planned": np.full(n, 8192), "chunks": np.full(n, GAPS + 1),
        "prompt_tokens": np.full(n, 8192), "cached_tokens_planned": np.full(n, 7936), "cached_tokens": np.full(n, 7936),
        "cached_tokens_possible": np.full(n, 7936), "cached_tokens_ceiling": np.full(n, 7936),
        "output_tokens_planned": np.full(n, GAPS + 1), "completion_tokens": np.full(n, GAPS + 1),
    }  # fmt: skip
    want = schema.arrow_schema(schema.REQUESTS)
    columns = [pa.array(values[f.name], f.type) if f.name in values else pa.nulls(n, f.type) for f in want]
    offsets = pa.array(np.arange(n + 1, dtype=np.int32) * GAPS)
    wider = pa.array(np.arange(n + 1, dtype=np.int32) * (GAPS + 1))
    streams = {
        "request_id": pa.array(ids), "arm": pa.array(["mine"] * n), "repeat": pa.array(np.ones(n, np.int32)),
        "gaps_us": pa.ListArray.from_arrays(offsets, pa.array(gaps.ravel())),
        "chunk_tokens": pa.ListArray.from_arrays(wider, pa.array(np.ones(n * (GAPS + 1), np.int32))),
        "stage": pa.nulls(n, pa.list_(pa.string())), "text_crc": pa.nulls(n, pa.list_(pa.int32())),
    }  # fmt: skip
    return pa.table(columns, schema=want), pa.table(streams, schema=schema.arrow_schema(schema.EVENTS))


def test_analysis(tmp_path):
    """Without it nobody would notice that a day of traffic cannot be analysed on the machine that recorded it."""
    write(tmp_path)
    before, wall = time.process_time(), time.monotonic()
    summary = build(Dataset(load(tmp_path)))
    cpu, wall = time.process_time() - before, time.monotonic() - wall
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"\nanalysis of {REQUESTS:,} requests and {REQUESTS * GAPS:,} gaps: {cpu:.1f} s of CPU, {wall:.1f} s, "
          f"peak {peak:.2f} GB")  # fmt: skip
    figure = summary.arms["mine"].figures["itl.p50"]
    assert figure.rows == REQUESTS * GAPS and abs(figure.point - 0.02) < 1e-3
    if REQUESTS >= 1_000_000:
        assert cpu < 60
        assert peak < 8
