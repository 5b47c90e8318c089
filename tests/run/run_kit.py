"""Running `pddbench` as a user does: as a process, with what it printed and its exit code."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

ROOT = Path(__file__).parents[2]
# On a busy machine the client may really be late; these tests are about other things than its clock.
BUSY = ["--allow", "send_lag", "--allow", "loop_lag", "--allow", "emulator_late", "--allow", "client_cpu"]


def pddbench(*args, timeout=300, **more):
    """The finished process of `python -m pddbench ARGS`."""
    command = [sys.executable, "-m", "pddbench", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=ROOT, **more)


def typed(*args):
    """What `pddbench(*args)` gives, from this process: for what ends before traffic, at a tenth of the time."""
    from pddbench.cli import main

    out, err = io.StringIO(), io.StringIO()
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main([str(arg) for arg in args])
    except SystemExit as end:
        code = end.code
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


def start(*args):
    """A running `python -m pddbench ARGS`, output in pipes."""
    command = [sys.executable, "-m", "pddbench", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


@contextmanager
def emulator(arm, *options):
    """Base URL of a live emulated deployment, for the length of the context."""
    process = start("up", arm, *options)
    try:
        line = process.stdout.readline()
        assert " at http://" in line, line + process.stderr.read()
        yield line.split(" at ")[1].split()[0]
    finally:
        process.terminate()
        process.communicate(timeout=20)


def wait_for(condition, what, seconds=60):
    """Poll until `condition()` holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s for {what}"
        time.sleep(0.05)


def get_json(url):
    """A JSON document from loopback."""
    with urllib.request.urlopen(url, timeout=10) as reply:
        return json.load(reply)


def write_trace(path, rows):
    """A canonical trace file of plain rows (dicts)."""
    lines = [{"schema_version": 1, "source": "test"}, *rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def small_rows(sessions, turns=3, gap_s=0.2, tokens=400, start_gap_s=0.25, output=20):
    """Plain sessions on one shared prompt: enough to exercise everything in a few seconds."""
    rows = []
    for s in range(sessions):
        for t in range(turns):
            parent = f"s{s}.{t - 1}" if t else None
            first = "s0.0" if s else None
            prefix_of = parent or first
            prefix = 0 if prefix_of is None else (tokens // 2 if t == 0 else tokens + 150 * (t - 1) + output * t)
            rows.append(
                {
                    "request_id": f"s{s}.{t}", "session_id": f"s{s}", "turn": t,
                    "parents": [parent] if parent else [], "start_s": None if t else s * start_gap_s,
                    "gap_s": gap_s if t else None, "prefix_of": prefix_of, "prefix_tokens": prefix,
                    "input_tokens": tokens + (150 + output) * t, "output_tokens": output,
                    "kind": "tool" if t else "root",
                }
            )  # fmt: skip
    return rows
