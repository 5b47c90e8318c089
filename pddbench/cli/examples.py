"""Examples in the help of every command, in one place: what a user would type first. A test parses each of them."""

from __future__ import annotations

import click

EXAMPLES: dict[str, tuple[str, ...]] = {
    "run": (
        "pddbench run workloads/quickstart/experiment.toml --dry-run",
        "pddbench run mine.toml --out results/mine --serve :9464",
        "pddbench run mine.toml --repeats 4 --limit-requests 200 --json > answer.json",
    ),
    "replay": (
        "pddbench replay --trace mine.jsonl --base-url http://127.0.0.1:8000 --model m --idle-cap 2",
        "pddbench replay --trace mine.jsonl --base-url http://10.0.0.5:8000/v1 --model m --target-profile vllm "
        "--session-rate 0.5 --goodput ttft:2000 --api-key-env KEY --yes",
    ),
    "up": (
        "pddbench up pdd --port 8000 --speed 4",
        "pddbench up naive --port 8001 --wan-profile continental --json",
    ),
    "simulate": (
        "pddbench simulate workloads/quickstart/experiment.toml --seed 2",
        "pddbench simulate mine.toml --out results/virtual --json",
    ),
    "trace validate": ("pddbench trace validate mine.trace.jsonl.zst",),
    "trace stats": ("pddbench trace stats traces/agentic-small.trace.jsonl.zst --json",),
    "trace convert": ("pddbench trace convert conversations.jsonl mine.trace.jsonl.zst",),
    "trace synth": ("pddbench trace synth --preset pdd-agentic --requests 10000 --seed 1 --out mine.trace.jsonl.zst",),
    "trace fit": ("pddbench trace fit mine.trace.jsonl.zst > mine-spec.toml",),
    "trace observe": ("pddbench trace observe workloads/pdd-agentic --check",),
    "trace oracle": ("pddbench trace oracle mine.trace.jsonl.zst",),
    "trace cache-curve": ("pddbench trace cache-curve mine.trace.jsonl.zst --json",),
    "calibrate": ("pddbench calibrate", "pddbench calibrate --error-ms 2 --max-events 20000 --json"),
    "wan probe": ("pddbench wan probe --json",),
    "wan exec": (
        "pddbench wan exec national -- iperf3 -s ::: sh -c 'sleep 1; iperf3 -c $PDDBENCH_WAN_PEER'",
        "pddbench wan exec --wan netem --loss-pct 0.1 continental -- sh -c 'ping -c 20 $PDDBENCH_WAN_PEER'",
    ),
    "wan apply": (
        "pddbench wan apply --dev eth1 --to 10.2.0.0/16 national",
        "pddbench wan apply --dev eth1 --to 10.2.0.7/32:8000 continental -- sh -c 'pddbench run mine.toml'",
    ),
    "wan show": ("pddbench wan show", "pddbench wan show --json"),
    "wan clear": ("pddbench wan clear",),
    "capacity": ("pddbench capacity workloads/quickstart/experiment.toml --simulate --half-width 0.1",),
    "bathtub": (
        "pddbench bathtub mine.toml --simulate --step 0.02 --chunk 16384",
        "pddbench bathtub --base-url http://127.0.0.1:8000 --model m --length 16384 --chunk 4096 --out results/sweep",
        "pddbench bathtub results/sweep --chunk 4096 --cached-price 0.25",
    ),
    "claims": ("pddbench claims --out claims",),
    "feasibility": ("pddbench feasibility --kv-bytes 50000 --input 100000 --rate 20 --line-gbit 100",),
    "hlog export": ("pddbench hlog export results/mine --out mine.hlog",),
    "hlog merge": ("pddbench hlog merge monday.hlog tuesday.hlog --out both.hlog",),
    "report": (
        "pddbench report results/mine",
        "pddbench report results/mine --ci out --baseline last-main/summary.json",
    ),
    "compare": (
        "pddbench compare results/before results/after",
        "pddbench compare results/mine --arms naive,pdd --json",
    ),
    "check": (
        "pddbench check results/mine --that 'pdd.ttft.p90 < 1.2 * baseline.ttft.p90' --strict",
        "pddbench check results/mine --baseline last-main/summary.json --tolerance 5%",
    ),
    "recover": ("pddbench recover results/mine",),
    "init": (
        "pddbench init",
        "pddbench init --out mine.toml --endpoint mine=http://127.0.0.1:8000/v1 --model m --target-profile vllm",
    ),
    "doctor": ("pddbench doctor", "pddbench doctor --json"),
}


def attach(command: click.Command, path: str) -> None:
    """Put the examples of `path` (and of the commands below it) at the end of their help."""
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            attach(below, f"{path} {name}")
    elif path in EXAMPLES:
        command.epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in EXAMPLES[path])
