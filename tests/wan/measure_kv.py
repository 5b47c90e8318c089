"""Makes the table of KV transfers in docs/wan.md: `python tests/wan/measure_kv.py [netem] [tun]`. Not a test: minutes.
`--row 10 --times 90` measures the eleventh row alone, so many times where there is loss.

Each row is a running `naive` deployment at KV scale 1; a transfer's time is what B reports: from A's connect to the
arrival of the last byte. Without loss it is the least of five: what else runs here only adds to it. With loss it is a
distribution, and a skewed one: the mean of forty, with its standard error. `standards` is a transfer segment by segment
(`tcp_law`; BBR, for which there is no standard: handshake, doubling, the line), with loss the mean of 600. Over netem,
where the kernel has none, in a User-Mode Linux guest. Exits 1 when a row is more than 25% off by more than twice its
standard error.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulator"))

import tcp_law
import uml

from pddbench.wan.clock import VirtualClock
from pddbench.wan.fluid import FluidLink
from pddbench.wan.link import Link
from pddbench.wan.probe import probe
from pddbench.wan.transfer import transfer_s

# tokens, RTT in ms, Mbit/s, loss in %, congestion control
ROWS = [(25, 30, 1000, 0, "cubic"), (250, 30, 1000, 0, "cubic"), (1250, 30, 1000, 0, "cubic"),
        (250, 30, 1000, 0, "reno"), (250, 10, 100, 0, "cubic"), (250, 66, 100, 0, "cubic"), (250, 66, 1000, 0, "cubic"),
        (250, 30, 100, 0.1, "reno"), (250, 30, 100, 0.1, "cubic"), (50, 30, 100, 1.0, "reno"),
        (50, 30, 100, 1.0, "cubic"), (250, 10, 100, 0.1, "cubic"), (250, 10, 100, 0.1, "bbr")]  # fmt: skip
WITHIN = 0.25
PLAIN_TIMES, LOSSY_TIMES, LAW_TIMES = 5, 40, 600


async def transfers(deployment, tokens, repeats):
    """Seconds of KV transfers, one after the other, and their bytes."""
    import aiohttp

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


def measured(backend, tokens, rtt_ms, rate_mbit, loss_pct, control):
    """A row over packets: seconds of each transfer, bytes of one, what was measured of the link."""
    from emulator_specs import build_spec

    from pddbench.deploy.emulator.launch import launch

    wan = {"one_way_ms": rtt_ms / 2, "rate_mbit": float(rate_mbit), "flow_rate_mbit": float(rate_mbit),
           "loss_pct": float(loss_pct), "congestion_control": control}  # fmt: skip
    spec = build_spec("naive", wan=wan, kv_scale=1.0, wan_backend=backend)
    with launch(spec) as deployment:
        repeats = asked().times if loss_pct else PLAIN_TIMES
        seconds, n_bytes = asyncio.run(transfers(deployment, tokens, repeats))
        link = deployment.end_link(load=False)
    rtt = [each["findings"][0]["found"] for each in (link["before"], link["after"])]
    return {"seconds": seconds, "bytes": n_bytes, "problems": link["problems"], "rtt_ms": sum(rtt) / 2}


def by_standards(n_bytes, rtt_ms, rate_mbit, loss_pct, control):
    """Mean seconds, and the standard error of that mean."""
    if control == "bbr":
        return transfer_s(Link(rtt_ms / 2, rate_mbit, rate_mbit), n_bytes), 0.0
    times = LAW_TIMES if loss_pct else 1
    return tcp_law.mean_s(n_bytes, rtt_ms, rate_mbit, loss_pct, control, times)[:2]


def by_model(n_bytes, rtt_ms, rate_mbit, loss_pct, control):
    """Seconds by the fluid backend; None where it is refused."""
    if loss_pct or control != "cubic":
        return None
    clock, arrived = VirtualClock(), []
    FluidLink(Link(rtt_ms / 2, rate_mbit, rate_mbit), clock).send(1, n_bytes, lambda: arrived.append(clock.now()))
    clock.run()
    return arrived[0]


def all_measured(backend):
    """Every row over a backend: here, or in a guest with a kernel that has it."""
    if backend != "netem" or probe("netem").works:
        return [measured(backend, *figures) for figures in asked().rows]
    with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
        code, said = uml.run([sys.executable, __file__, *sys.argv[1:], "--as-guest"], Path(folder), timeout_s=3000.0)
        answer = Path(folder) / "rows.json"
        if code != 0 or not answer.exists():
            sys.exit(f"the guest failed ({code}):\n{said[-2000:]}")
        return json.loads(answer.read_text())


def mean_of(row, loss_pct):
    """What counts of a row's seconds, and its standard error."""
    seconds = row["seconds"]
    if not loss_pct:
        return min(seconds), 0.0
    return statistics.mean(seconds), statistics.stdev(seconds) / len(seconds) ** 0.5


def ratio_cells(row, figures, law_s, law_error_s):
    """The cells of a backend, and how far outside of 25% it is for certain."""
    found, error = mean_of(row, figures[3])
    ratio = found / law_s
    off = abs(ratio - 1) - 2 * ratio * ((error / found) ** 2 + (law_error_s / law_s) ** 2) ** 0.5
    plus = f" ± {error * 1e3:.0f}" if error else ""
    return [f"{found * 1e3:.0f}{plus} ms", f"{ratio:.2f}", f"{row['rtt_ms']:.1f} ms"], off, row["problems"]


def asked():
    """What the command line asks for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("backends", nargs="*", default=["netem", "tun"])
    parser.add_argument("--row", type=int, choices=range(len(ROWS)))
    parser.add_argument("--times", type=int, default=LOSSY_TIMES)
    parser.add_argument("--as-guest", action="store_true")
    found = parser.parse_args()
    found.rows = ROWS if found.row is None else [ROWS[found.row]]
    return found


def main():
    if asked().as_guest:
        Path("/mnt/rows.json").write_text(json.dumps(all_measured("netem")))
        return
    backends = asked().backends
    found = {backend: all_measured(backend) for backend in backends}
    heads = [word for name in backends for word in (name, "over standards", "RTT found")]
    titles = ["bytes", "RTT", "rate", "loss", "control", "standards", "model", *heads]
    print("| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|")
    worst, problems = 0.0, []
    for index, figures in enumerate(asked().rows):
        n_bytes = next(iter(found.values()))[index]["bytes"]
        law_s, error_s = by_standards(n_bytes, *figures[1:])
        model_s = by_model(n_bytes, *figures[1:])
        cells = [f"{n_bytes / 1e6:.1f} MB", f"{figures[1]} ms", f"{figures[2]} Mbit/s", f"{figures[3]:g}%", figures[4],
                 f"{law_s * 1e3:.0f}" + (f" ± {error_s * 1e3:.0f}" if error_s else "") + " ms",
                 f"{model_s * 1e3:.0f} ms" if model_s else ""]  # fmt: skip
        for backend in backends:
            more, off, wrong = ratio_cells(found[backend][index], figures, law_s, error_s)
            cells, worst = cells + more, max(worst, off)
            problems += [f"{backend}, {figures}: {text}" for text in wrong]
        print("| " + " | ".join(cells) + " |", flush=True)
    print("\n".join(["", *problems]))
    print(subprocess.run(["uptime"], capture_output=True, text=True, check=False).stdout)
    sys.exit(worst > WITHIN)


if __name__ == "__main__":
    main()
