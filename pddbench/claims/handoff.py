"""Claims about the hand-off itself: ids against KV, jitter, size and batches, and what others on MD feel."""

from __future__ import annotations

from typing import Any

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import Figure
from pddbench.analyze.quantiles import Floats
from pddbench.claims.model import Found, NotTestable, about, beyond, part
from pddbench.claims.scenes import Scenes

INF = float("inf")
_LEAST = 100  # hand-offs without which nothing is said of their stalls
_RATE = 0.2  # sessions a second: several streams at once on MD


def _modes(scenes: Scenes, name: str, modes: dict[str, dict[str, Any]], **tables: Any) -> Dataset:
    arms = tuple({"name": label, "emulated": "pdd", "threshold_tokens": 0, **how} for label, how in modes.items())
    return scenes.run(name, "fixed-90", arms, rate=_RATE, **tables)


_TWO: dict[str, dict[str, Any]] = {
    "ids": {"handoff": "one_shot"},
    "kv": {"handoff": "direct_kv", "kv_warm": True},
    "kv-new": {"handoff": "direct_kv"},
}


def stalls(data: Dataset, arm: str) -> Floats:
    """Stalls at the seam of an arm's hand-offs, seconds."""
    found = data.arms[arm].values("seam_stall").values
    if len(found) < _LEAST:
        raise NotTestable(f"{len(found)} hand-offs with a known seam are too few")
    return found


def c10(scenes: Scenes) -> Found:
    """Direct KV 185 ms in the mean but up to 512.6; recompute 305, at most 321.4."""
    data = _modes(scenes, "handoff", _TWO)
    ids, kv, fresh = (stalls(data, arm) for arm in _TWO)
    moved = data.arms["kv"].rows["handoff_bytes"].to_numpy()
    sent = data.arms["ids"].rows["handoff_bytes"].to_numpy()
    tokens = data.arms["ids"].rows["handoff_token"].to_numpy()
    per_token = float(np.nansum(sent) / np.nansum(tokens))
    return Found(
        where="simulated",
        parts=[
            part("mean stall, direct KV on open connections / recompute", (0.0, 0.999), float(kv.mean() / ids.mean())),
            part("sd of the stall, the same", (2.0, INF), float(kv.std() / max(ids.std(), 1e-9))),
            part("bytes, direct KV / ids", about(3100, 0.25), float(np.nansum(moved) / np.nansum(sent))),
            part("bytes a token handed over", about(15, 0.1), per_token, "bytes"),
        ],
        note=(
            f"{len(ids):,} and {len(kv):,} hand-offs beside other KV, no loss; means {1e3 * ids.mean():.0f} ms (ids), "
            f"{1e3 * kv.mean():.0f} ms (KV, open connections), {1e3 * fresh.mean():.0f} ms (KV, new ones); largest "
            f"{1e3 * ids.max():.0f}, {1e3 * kv.max():.0f}, {1e3 * fresh.max():.0f}. The recompute's cost is taken from "
            f"this very claim, so its mean is no evidence; ids go bare here ({per_token:.1f} bytes a token), 15 in "
            "the claim's protocol"
        ),
    )


def c11(scenes: Scenes) -> Found:
    """The hand-off of ids is untouched by queueing on the line; direct KV waits in it."""
    quiet = _modes(scenes, "handoff", _TWO)
    busy = _modes(scenes, "handoff-crowded", _TWO, wan={"profile": "national", "rate_mbit": 8000.0})
    grown = {arm: float(np.quantile(stalls(busy, arm), 0.9) - np.quantile(stalls(quiet, arm), 0.9)) for arm in _TWO}
    return Found(
        where="simulated",
        parts=[part("P90 of the stall on a crowded line - on a wide one, ids", (-0.03, 0.03), grown["ids"], "s"),
               part("P90 of the stall on a crowded line - on a wide one, direct KV", (0.03, INF), grown["kv"], "s"),
               part("the same under jitter and loss, ids", (-0.03, 0.03),
                    Figure(unit="s", withheld="the simulated link has neither"))],
        note="a line of 8 Gbit/s against 10 under about 6.7 Gbit/s of KV; flat means within an RTT (30 ms). Real "
             "packets with jitter and loss: pddbench run --wan netem or tun",
    )  # fmt: skip


def c12(scenes: Scenes) -> Found:
    """One shot frees the relay soonest but bursts MD."""
    data = _modes(scenes, "modes", _MODES)
    return Found(
        where="simulated",
        parts=[beyond("P99.9 of ITL on MD, one shot / catch-up of 64", 1.0, *_ratio(data, "one-shot", "cu-64"))],
        note="other streams wait for the ids that ride in their step: 0.125 ms an id by roofline (half of peak)",
    )  # fmt: skip


_MODES: dict[str, dict[str, Any]] = {
    "one-shot": {"handoff": "one_shot"},
    "cu-8": {"handoff": "catch_up", "catch_up_tokens": 8},
    "cu-64": {"handoff": "catch_up", "catch_up_tokens": 64},
    "cu-256": {"handoff": "catch_up", "catch_up_tokens": 256},
}


def _ratio(data: Dataset, of: str, to: str) -> tuple[list[float], float]:
    """Draws of the ratio of two arms' tails, sessions resampled alike, and the ratio itself."""
    above, under = data.arms[of], data.arms[to]
    draws = above.draws("itl_md", "p99.9") / under.draws("itl_md", "p99.9")
    return draws.tolist(), above.point("itl_md", "p99.9") / under.point("itl_md", "p99.9")


def c13(scenes: Scenes) -> Found:
    """Catch-up in batches: a smaller worst ITL for a few per cent more relay tokens."""
    data = _modes(scenes, "modes", _MODES)
    extra = data.arms["cu-64"].point("rld_tokens", "share") / data.arms["one-shot"].point("rld_tokens", "share") - 1
    rounds = data.arms["cu-64"].rows["handoff_rounds"].mean()
    return Found(
        where="simulated",
        parts=[
            beyond("P99.9 of ITL on MD, catch-up / one shot", 1.0, *_ratio(data, "cu-64", "one-shot"), below=True),
            part("more relay tokens with catch-up of 64", (0.0, 0.10), extra, "share"),
        ],
        note=f"the first figure is C12's from the other side; mean {rounds:.1f} rounds; it matters only where eager "
        "tokens exceed the batch",
    )  # fmt: skip


def c25(scenes: Scenes) -> Found:
    """Small transfers get around congestion by TCP's fairness between flows."""
    from pddbench.wan.clock import VirtualClock
    from pddbench.wan.fluid import FluidLink
    from pddbench.wan.link import Link

    link = Link(15.0, 1000.0, 1000.0)
    small, elephant = 20e6, 2e9

    def arrival(with_elephant: bool) -> float:
        clock = VirtualClock()
        wire = FluidLink(link, clock)
        times: dict[int, float] = {}
        if with_elephant:
            wire.send(1, elephant, lambda: times.__setitem__(1, clock.now()))
        clock.call_at(2.0, lambda: wire.send(2, small, lambda: times.__setitem__(2, clock.now())))
        clock.run()
        return times[2] - 2.0

    alone, fair = arrival(False), arrival(True)
    queued = (elephant - 2.0 * link.rate_bytes_s) / link.rate_bytes_s + alone
    return Found(
        where="simulated",
        parts=[part("time beside an elephant / alone, a flow each", (1.0, 4.0), fair / alone),
               part("the same behind it on one connection / a flow each", (2.0, INF), queued / fair)],
        note=f"20 MB beside 2 GB on 1 Gbit/s, 15 ms one way: alone {alone:.2f} s, beside {fair:.2f}, "
             f"behind {queued:.1f}; "
             "fluid model: flows share equally once their windows are open",
    )  # fmt: skip


def c26(_: Scenes) -> Found:
    """Extend-decode adds almost no time."""
    from pddbench.deploy.presets import CHIPS

    chip = CHIPS["A"]
    step = chip.decode_c0_s + 16 * chip.decode_c1_s
    share = {ids: ids * chip.extend_e1_s / step for ids in (8, 64, 256)}
    knee = 0.1 * step / chip.extend_e1_s
    return Found(
        where="arithmetic",
        parts=[part("step of a batch of 16 with 64 ids to extend, longer by", (0.0, 0.10), share[64], "share")],
        note=(
            f"8, 64, 256 ids: {', '.join(f'+{100 * value:.0f}%' for value in share.values())}; +10% at {knee:.0f} "
            "ids. By our own "
            "roofline (half of peak achieved); a real step may hide them better: one mixed step was +8 or +75 ms on 56"
        ),
    )


__all__ = ["c10", "c11", "c12", "c13", "c25", "c26"]
