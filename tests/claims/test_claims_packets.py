"""C11 over packets: what is said of times, and the two ends of a hand-off over loopback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from pddbench.claims import packets
from pddbench.claims.model import NotTestable


def times(ids_s, kv_s, seed):
    """Hand-offs of ids and of KV around given times."""
    rng = np.random.default_rng(seed)
    return {"ids": ids_s + 0.001 * rng.random(200), "kv": kv_s * (1 + 0.05 * rng.random(20))}


def found_with(monkeypatch, **other):
    """What C11 says when a condition has other times than a link on which ids are flat and KV grows."""
    as_claimed = {one.name: times(0.03, 2.5, seed) for seed, one in enumerate(packets.CONDITIONS)}
    as_claimed |= {
        "clean": times(0.03, 0.23, 10),
        "again": times(0.03, 0.23, 11),
        "jitter 2 ms": times(0.036, 0.24, 12),
    }
    given = as_claimed | other
    monkeypatch.setattr(packets, "_on_a_link", lambda condition, backend, out: given[condition.name])
    return packets.c11_packets("tun")


def test_ids_that_are_flat_agree_and_others_do_not(monkeypatch):
    """Without it, C11 could agree although ids wait as KV does, or although nothing was the matter with the line."""
    found = found_with(monkeypatch)
    assert {part.verdict for part in found.parts} == {"agrees"} and {part.verdict for part in found.off} == {"gone"}
    waiting = found_with(monkeypatch, **{"others' flow": times(0.5, 2.5, 20)})
    assert [part.name for part in waiting.parts if part.verdict == "differs"] == [
        "P90 of a hand-off of ids, others' flow - clean"
    ]
    unmoved = found_with(monkeypatch, **{"loss 1%": times(0.03, 0.23, 21)})
    assert "median of a hand-off of KV, loss 1% - clean" in [p.name for p in unmoved.parts if p.verdict == "differs"]
    noisy = found_with(monkeypatch, again=times(0.09, 0.4, 22))
    assert {part.verdict for part in noisy.off} == {"still there"}  # the host, not the link


def test_a_link_that_is_not_as_asked_tells_nothing(monkeypatch, tmp_path):
    """Without it, times from a link that a busy machine made late would count."""
    calls = []

    def run(words, **_):
        calls.append(words)
        return subprocess.CompletedProcess(words, 98, "", "WAN: NOT AS ASKED: throughput\n")

    monkeypatch.setattr(packets.subprocess, "run", run)
    with pytest.raises(NotTestable, match="NOT AS ASKED"):
        packets._on_a_link(packets.CONDITIONS[0], "tun", tmp_path / "t.json")
    assert len(calls) == 3 and "--strict" in calls[0]


def test_hand_offs_are_timed_to_their_answer(tmp_path):
    """Without it, a hand-off's time could be that of handing bytes to the kernel."""
    env = {**os.environ, "PDDBENCH_WAN_LOCAL": "127.0.0.1", "PDDBENCH_WAN_PEER": "127.0.0.1"}
    wire = [sys.executable, "-m", "pddbench.claims.wire"]
    server = subprocess.Popen([*wire, "serve"], env=env)
    try:
        subprocess.run([*wire, "send", str(tmp_path / "t.json"), "6", "2", "alone"], env=env, check=True)
    finally:
        server.kill()
        server.wait()
    found = json.loads((tmp_path / "t.json").read_text())
    assert len(found["ids"]) == 6 and len(found["kv"]) == 2
    assert min(found["kv"]) > 0.0005 > 0  # 4.6 MB are not there at once
