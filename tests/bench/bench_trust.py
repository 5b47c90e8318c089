"""Is a run ever called valid while its TTFT is wrong? Runs on a machine as it is, of a server whose truth is known.

`make bench ARGS='-k test_trust'`; best while other work is going on. Of every run: the verdict, the error bar it
states, and what its TTFT was really off by, request by request, against the server's own stamps (kept in the spool).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pandas as pd
from bench_long_run import server

RUNS = [  # requests a second, seconds, tokens a reply, ms between them, workers
    (20, 12, 16, 50, 1), (20, 12, 16, 50, 1), (100, 10, 16, 40, 1), (100, 10, 16, 40, 2), (300, 8, 8, 20, 1),
    (300, 8, 8, 20, 2), (50, 10, 32, 20, 1), (5, 25, 32, 30, 1), (800, 6, 4, 20, 1), (800, 6, 4, 20, 2),
]  # fmt: skip
TTFT_MS = 300


def trace(path, rate, seconds):
    """Single requests, evenly."""
    with path.open("w") as file:
        file.write(json.dumps({"schema_version": 1, "source": "bench"}) + "\n")
        for i in range(rate * seconds):
            row = {"request_id": f"r{i}", "session_id": f"s{i}", "turn": 0, "start_s": i / rate, "input_tokens": 10,
                   "output_tokens": TOKENS_OF[0]}  # fmt: skip
            file.write(json.dumps(row) + "\n")


TOKENS_OF = [0]


def replayed(folder, port, rate, seconds, tokens, gap_ms, workers):
    """One run as a user makes it; its spools are kept by a second name."""
    TOKENS_OF[0] = tokens
    trace(folder / "t.trace.jsonl", rate, seconds)
    asked = {"x-ttft-us": TTFT_MS * 1000, "x-itl-us": gap_ms * 1000, "x-ntok": tokens}
    headers = [part for key, value in asked.items() for part in ("--header", f"{key}={value}")]
    command = [sys.executable, "-m", "pddbench", "replay", "--trace", folder / "t.trace.jsonl", "--model", "m",
               *headers, "--base-url", f"http://127.0.0.1:{port}/v1", "--metrics-url", "off", "--workers", workers,
               "--out", folder / "run", "--quiet"]  # fmt: skip
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while process.poll() is None:
            for spool in (folder / "run" / "spool").glob("*"):
                kept = folder / f"kept.{spool.name}"
                if spool.suffix in (".spool", ".bin") and not kept.exists():
                    os.link(spool, kept)
            time.sleep(0.05)
        assert process.returncode in (0, 98), process.stderr.read().decode()


def errors_ms(folder):
    """By request: TTFT as reported minus the true one (from our writing it to the server's writing its first event)."""
    from pddbench.replay.spool import read_spool

    rows = pd.read_parquet(folder / "run" / "requests")
    out = []
    for path in folder.glob("kept.*.spool"):
        spool = read_spool(path)
        for index in set(spool.seen(len(rows)).tolist()):
            frames = spool.request(index)
            if frames.answered is None or not frames.reads or pd.isna(rows["first_token_ns"][index]):
                continue
            data = b"".join(read[1] for read in frames.reads)
            at = data.find(b'"ns":"') + 6
            true_ns = int(data[at : at + 19]) - frames.answered.sent_ns
            out.append((rows["first_token_ns"][index] - rows["sent_ns"][index] - true_ns) / 1e6)
        spool.close()
    return pd.Series(out)


def one(folder, number, port, run):
    """A run and its line of the table."""
    from pddbench.runfolder.load import load

    here = folder / str(number)
    here.mkdir()
    load_average = os.getloadavg()[0]
    replayed(here, port, *run)
    summary = json.loads((here / "run" / "summary.json").read_text())
    arm = summary["arms"][load(here / "run").arms[0]]
    bar, off = arm["error_bar"], errors_ms(here).abs()
    rules = sorted({f["rule"] for f in summary["findings"] if f["level"] == "invalid"} - {"prompt_lengths"})
    return {
        "req/s": run[0], "tokens": run[2], "gap ms": run[3], "workers": run[4], "load": round(load_average, 1),
        "rules": " ".join(rules) or "none", "stamps": arm["stamps"], "requests": len(off),
        "send lag": 1e3 * bar["send_lag_p99_s"], "loop lag": 1e3 * bar["loop_lag_p99_s"],
        "kernel gap": 1e3 * (bar["kernel_gap_p99_s"] or 0), "off p50": off.quantile(0.5), "off p99": off.quantile(0.99),
        "off max": off.max(),
        "ttft p50": 1e3 * arm["figures"]["ttft.p50"]["point"], "ttft p99": 1e3 * arm["observed"]["ttft"]["high"],
    }  # fmt: skip


def test_trust(tmp_path, figures):
    """Without it a busy machine could make a run say a wrong TTFT, and call it valid."""
    with server(tmp_path) as port:
        lines = [one(tmp_path, number, port, run) for number, run in enumerate(RUNS)]
    table = pd.DataFrame(lines)
    print("\n" + table.to_string(float_format=lambda x: f"{x:.2f}"))
    figures.keep("trust", lines)
    believed = table[table["rules"] == "none"]
    limit = 5.0  # what the rules allow, ms: max(5 ms, 1% of the median TTFT)
    figures.seen("runs called valid", len(believed), f"of {len(table)}")
    figures.aim("worst P99 error of TTFT in a valid run", float(believed["off p99"].max()), "<=", limit, "ms")
    assert not (believed["off p99"] > limit).any()
