"""Servers that nobody here wrote, as processes on loopback, and runs of `pddbench replay` against them."""

from __future__ import annotations

import http.client
import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import pytest

from pddbench.cli import main
from pddbench.runfolder.load import load
from tests.run.run_kit import BUSY, pddbench, small_rows, write_trace

IDS = ("--token-id-range", "259:875")


def require(module):
    """Skip without an engine; on CI that is a failure."""
    if importlib.util.find_spec(module) is None:
        reason = f"{module} is not installed: pip install -e '.[live]'"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)


@contextmanager
def llama_server(model, slots=4, context_tokens=8192):
    """URL of llama.cpp's own server with a model, in a process that ends with the context."""
    require("xllamacpp")
    command = [sys.executable, "-m", "pddbench.deploy.minipdd.engine", model]
    command += ["--slots", slots, "--context-tokens", context_tokens]
    with subprocess.Popen(
        list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            url = process.stdout.readline().strip()
            assert url.startswith("http://127.0.0.1:"), f"no server: {url!r}"
            yield url
        finally:
            process.kill()


@contextmanager
def sglang_router(*workers):
    """URLs of SGLang's router in front of workers, and of its metrics."""
    require("sglang_router")
    port, metrics_port = free_ports(2)
    command = [
        sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", port,
        "--prometheus-host", "127.0.0.1", "--prometheus-port", metrics_port, "--policy", "cache_aware",
        "--log-level", "error", "--worker-urls", *workers,
    ]  # fmt: skip
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            wait_ready(f"{url}/readiness", process)
            yield url, f"http://127.0.0.1:{metrics_port}/metrics"
        finally:
            process.kill()


def free_ports(n):
    """Ports that were free a moment ago: the router cannot take 0."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_ready(url, process, seconds=30):
    """Poll until the URL answers 200."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"{url} did not get ready in {seconds} s")


def replay(trace, url, out, *options, profile="llamacpp", expect=0):
    """A run against `url` in this process, one request at a time: its folder, or with `expect` 1 or 2 what it said.

    One at a time, because each slot of llama.cpp has a cache of its own and a busy one gives nothing to others.
    """
    command = [
        "replay", "--trace", trace, "--base-url", url, "--model", "tiny", "--target-profile", profile,
        "--out", out, "--quiet", "--max-concurrency", 1, "--allow", "throttle", *BUSY, *options,
    ]  # fmt: skip
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as end:
        main(list(map(str, command)))
    assert (end.value.code or 0) == expect, said.getvalue()
    return out if expect in (0, 98) else said.getvalue()


def findings(folder):
    """Names of what the summary found, apart from what any small run gets."""
    summary = json.loads((folder / "summary.json").read_text())
    usual = {"single_arm", "coverage", "send_lag", "loop_lag", "client_cpu", "throttle"}
    return {finding["rule"] for finding in summary["findings"]} - usual


def stream(url, ids, tokens):
    """One streamed completion of token ids: its text, the stage of each token, and the closing `pdd` facts.

    Fails when an index of the extension is not the token's place, or the server sends an error.
    """
    host = url.removeprefix("http://").split("/")[0]
    connection = http.client.HTTPConnection(host, timeout=120)
    body = {"prompt": ids, "max_tokens": tokens, "stream": True, "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    text, stages, facts = "", [], {}
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        assert "error" not in event, event
        text += event["choices"][0]["text"]
        if "stage" in event["pdd"]:
            assert event["pdd"]["index"] == len(stages)
            stages.append(event["pdd"]["stage"])
        else:
            facts = event["pdd"]
    connection.close()
    return text, stages, facts


def run_mini(folder, experiment, sessions, long_tokens):
    """A run of llama.cpp arms over packets, the second turn of each session long: the run and what it said."""
    rows = small_rows(sessions, turns=2, gap_s=0.05, tokens=300, start_gap_s=0.1, output=20)
    for row in rows:
        row["output_tokens"] = long_tokens if row["turn"] == 1 else 20
    write_trace(folder / "small.trace.jsonl", rows)
    (folder / "mini.toml").write_text(experiment)
    for number in range(3):  # a machine that is busy for a moment voids a run, rightly: then it is made again
        out = folder / f"run{number}"
        done = pddbench("run", folder / "mini.toml", "--wan", "tun", "--out", out, "--allow", "throttle", *BUSY)
        if done.returncode != 98:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return load(out), done.stdout + done.stderr
