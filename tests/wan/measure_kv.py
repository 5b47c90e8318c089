"""Makes the table of KV transfers in docs/wan.md: `python tests/wan/measure_kv.py [tun|netem]`. Not a test: minutes.

Each row is a running `naive` deployment at KV scale 1; a transfer's time is what B reports: from A's connect to the
arrival of the last byte, the median of several (with loss the mean). The law is `wan.transfer`. Exits 1 when a row is
more than 25% away from it.
"""

import asyncio
import json
import random
import statistics
import sys
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulator"))

from emulator_specs import build_spec

from pddbench.deploy.emulator.launch import launch
from pddbench.wan.transfer import INITIAL_WINDOW_BYTES, lossy_sending_s, transfer_s

# tokens, RTT in ms, Mbit/s, loss in %, congestion control
ROWS = [(25, 30, 1000, 0, "cubic"), (250, 30, 1000, 0, "cubic"), (1250, 30, 1000, 0, "cubic"),
        (250, 30, 1000, 0, "reno"), (250, 10, 100, 0, "cubic"), (250, 66, 100, 0, "cubic"), (250, 66, 1000, 0, "cubic"),
        (250, 30, 100, 0.1, "reno"), (50, 30, 100, 1.0, "reno"), (50, 30, 100, 1.0, "cubic"),
        (250, 10, 100, 0.1, "cubic"), (250, 10, 100, 0.1, "bbr")]  # fmt: skip
WITHIN = 0.25


async def transfers(deployment, tokens, repeats):
    """Seconds of KV transfers, one after the other, and their bytes."""
    seconds = []
    async with aiohttp.ClientSession() as session:
        for again in range(repeats):
            ids = [again * 10_000 + i for i in range(tokens)]
            body = {"prompt": ids, "max_tokens": 2, "stream": True, "ignore_eos": True}
            async with session.post(f"{deployment.base_url}/completions", json=body) as reply:
                events = [json.loads(line[6:]) for line in (await reply.text()).split("\n\n")
                          if line.startswith("data: {")]  # fmt: skip
            kv = events[-1]["pdd"]["kv"]
            seconds.append(kv["ns"] / 1e9)
    return seconds, kv["wire_bytes"]


def law_s(link, n_bytes):
    """Seconds by the law; with loss the mean over many draws of where the losses fall."""
    if not link.loss_pct or link.congestion_control == "bbr":
        return transfer_s(link, n_bytes)
    draw, drawn = random.Random(1), []
    cap = min(link.flow_bytes_s, link.rate_bytes_s)
    for _ in range(1000):
        gaps = [draw.expovariate(link.loss_pct / 100) for _ in range(500)]
        drawn.append(lossy_sending_s(link, n_bytes, INITIAL_WINDOW_BYTES, cap, gaps))
    return 1.5 * link.rtt_s + statistics.mean(drawn)


def row(backend, tokens, rtt_ms, rate_mbit, loss_pct, control):
    """One line of the table, and how far it is from the law."""
    wan = {"one_way_ms": rtt_ms / 2, "rate_mbit": float(rate_mbit), "flow_rate_mbit": float(rate_mbit),
           "loss_pct": float(loss_pct), "congestion_control": control}  # fmt: skip
    spec = build_spec("naive", wan=wan, kv_scale=1.0, wan_backend=backend)
    with launch(spec) as deployment:
        seconds, n_bytes = asyncio.run(transfers(deployment, tokens, 15 if loss_pct else 5))
        ok = deployment.end_link(load=False)["ok"]
    found = statistics.mean(seconds) if loss_pct else statistics.median(seconds)
    law = law_s(spec.link, n_bytes)
    cells = [f"{n_bytes / 1e6:.1f} MB", f"{rtt_ms} ms", f"{rate_mbit} Mbit/s", f"{loss_pct:g}%", control,
             f"{law * 1e3:.0f} ms", f"{found * 1e3:.0f} ms", f"{found / law:.2f}"]  # fmt: skip
    return "| " + " | ".join(cells) + " |" + ("" if ok else " link not as asked"), abs(found / law - 1)


def main():
    backend = sys.argv[1] if len(sys.argv) > 1 else "tun"
    print(f"| bytes | RTT | rate | loss | congestion control | law | {backend} | ratio |")
    print("|---" * 8 + "|")
    away = []
    for figures in ROWS:
        text, off = row(backend, *figures)
        print(text, flush=True)
        away.append(off)
    sys.exit(max(away) > WITHIN)


if __name__ == "__main__":
    main()
