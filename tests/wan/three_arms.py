"""A small experiment on all three arms over packets, for this host (tun) and for the guest (netem)."""

import json
import os
import subprocess
import sys
from pathlib import Path

from traces_left import CHECKOUT

TOML = """
name = "three-arms"
[workload]
trace = "t.trace.jsonl"
idle_cap_s = 0.2
[wan]
one_way_ms = 15
rate_mbit = 1000
[emulator]
speed = SPEED
kv_scale = 100.0
"""
# On a busy machine client, emulator and link may really be late, and few sessions say little.
BUSY = ["send_lag", "loop_lag", "emulator_late", "client_cpu", "backlog", "link"]
SESSIONS, TURNS, TOKENS, OUTPUT = 3, 2, 3000, 150


def write_experiment(folder, speed):
    """The experiment and its trace; returns the path of the file."""
    rows = [{"schema_version": 1, "source": "test"}]
    for s in range(SESSIONS):
        for t in range(TURNS):
            parent = f"s{s}.{t - 1}" if t else None
            rows.append({"request_id": f"s{s}.{t}", "session_id": f"s{s}", "turn": t,
                         "parents": [parent] if parent else [], "start_s": None if t else 1.5 * s,
                         "gap_s": 0.2 if t else None, "prefix_of": parent, "prefix_tokens": TOKENS if t else 0,
                         "input_tokens": TOKENS * (t + 1), "output_tokens": OUTPUT, "kind": "root"})  # fmt: skip
    (folder / "t.trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    arms = "".join(f'[[arm]]\nname = "{arm}"\nemulated = "{arm}"\n' for arm in ("baseline", "naive", "pdd"))
    (folder / "e.toml").write_text(TOML.replace("SPEED", f"{speed}") + arms)
    return folder / "e.toml"


def run(folder, backend, speed=4.0):
    """The finished process of the run, whose folder is `folder/out`."""
    allow = [word for name in BUSY for word in ("--allow", name)]
    argv = [sys.executable, "-m", "pddbench", "run", str(write_experiment(folder, speed)), "--wan", backend,
            "--out", str(folder / "out"), *allow]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "PDDBENCH_WAN"}
    return subprocess.run(argv, capture_output=True, text=True, cwd=CHECKOUT, timeout=300, env=environment, check=False)


def check_link(link):
    """Never faster than asked, and nothing wrong but what a busy machine does: late packets."""
    for when in ("before", "after"):
        findings = {finding["name"]: finding for finding in link[when]["findings"]}
        for name in ("rtt median", "delay a_to_b"):
            assert findings[name]["found"] >= findings[name]["low"], findings[name]
        assert 0.3 * findings["throughput"]["wanted"] < findings["throughput"]["found"] < findings["throughput"]["high"]
    late = ("rtt median", "delay a_to_b", "throughput")
    assert all(any(name in text for name in late) for text in link["problems"]), link["problems"]
    assert link["ok"] == (not link["problems"])


WITHIN = 0.25  # of the law's time: the fastest of the transfers, since a busy machine makes some of them late


def check(done, folder, backend, speed=4.0):
    """What a user relies on: the WAN slows what crosses it, by as much as TCP's law says, and the manifest has it."""
    from pddbench.runfolder.load import load
    from pddbench.wan.link import Link, wire_link
    from pddbench.wan.transfer import transfer_s

    assert done.returncode == 0, done.stdout + done.stderr
    head = " ".join(done.stdout.split("\n\n")[0].split())
    assert f"WAN: {backend}," in head and "measured RTT" in head and "slow start not represented" in head
    loaded = load(str(folder / "out"))
    links = {each["arm"]: each.get("link") for each in loaded.manifest["runs"]}
    assert links["baseline"] is None, "its KV does not cross the WAN"
    for arm in ("naive", "pdd"):
        link = links[arm]
        assert link["backend"] == backend and link["congestion_control"] == "cubic", link
        assert link["beside"]["probes"] >= 1
        check_link(link)
    rows = loaded.requests
    assert (rows["outcome"] == "ok").all() and len(rows) == 3 * SESSIONS * TURNS
    median = rows.assign(ttft=rows["first_token_ns"] - rows["sent_ns"]).groupby("arm")["ttft"].median() / 1e9
    naive = rows[rows["arm"] == "naive"]
    took_s, wire = naive["kv_wan_ns"] / 1e9, naive["kv_wan_wire_bytes"]
    assert (wire - naive["kv_wan_bytes"] / 100).abs().max() <= 1
    law = wire_link(Link(15.0, 1000.0, 1000.0), 100.0, speed)
    ratio = [s / speed / transfer_s(law, n) for s, n in zip(took_s, wire, strict=True)]
    assert 1 - WITHIN < min(ratio) < 1 + WITHIN, ratio
    assert median["naive"] - median["baseline"] > 0.7 * took_s.median(), "the transfer is waited for"
    assert median["pdd"] < median["naive"]
    assert (rows[rows["arm"] == "pdd"]["handoff_token"].dropna() > 0).any(), "ids were handed over the link"


if __name__ == "__main__":
    into = Path(sys.argv[2])
    check(run(into, sys.argv[1]), into, sys.argv[1])
