"""Claims about the hand-off itself: ids against KV, a crowded line, size and batches, and what others on MD feel.

Each function takes a run (simulated or live) whose arms have the names of `workloads/claims`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import Figure
from pddbench.analyze.samples import ArmData, Values
from pddbench.claims.figures import difference, drawn, known, ratio, spread_difference, spread_ratio, stall_of
from pddbench.claims.model import Found, NotTestable, Part, about, part, without
from pddbench.claims.transfer import warm

if TYPE_CHECKING:
    from pddbench.claims.scenes import Scenes

INF = float("inf")
RTT_S = 0.03  # of the profile `national`, on which these run


def c10(data: Dataset, off: Dataset | None = None) -> Found:
    """Direct KV 185 ms in the mean but up to 512.6; recompute 305, at most 321.4."""
    ids, kv, fresh = (warm(data.arms[name]) for name in ("pdd", "direct_warm", "direct"))
    per_token = ids.ratio("handoff_bytes", "sum")
    tokens = float(np.nansum(ids.rows["handoff_token"].to_numpy()))
    each = float(np.nansum(ids.rows["handoff_bytes"].to_numpy())) / tokens if tokens else float("nan")
    gone = []
    if off is not None:
        quiet, base = warm(off.arms["direct_warm"]), warm(off.arms["pdd"])
        gone = [without("sd of the stall, direct KV - recompute, nothing else on the line", (-0.01, 0.01),
                        spread_difference(quiet, base, "seam_stall"))]  # fmt: skip
    return Found(
        where="simulated",
        parts=[
            part("mean stall, direct KV on open connections / recompute", (-INF, 0.999),
                 ratio(kv, ids, "seam_stall", "mean")),
            part("sd of the stall, the same", (2.0, INF), spread_ratio(kv, ids, "seam_stall")),
            part("bytes, direct KV / ids", about(3100, 0.25), ratio(kv, ids, "handoff_bytes", "sum")),
            part("bytes a token handed over", about(15, 0.1), each, "bytes"),
        ],
        off=gone,
        note=(
            f"{per_token.rows:,} hand-offs of {tokens / per_token.rows:.0f} tokens in the mean each way; "
            + ", ".join(f"{label} {_stalls(arm)}" for label, arm in
                        (("ids", ids), ("KV, open connections", kv), ("KV, new ones", fresh)))
            + ". The recompute's cost is taken from this very claim, so its mean is no evidence; that direct KV "
            f"varies and recompute does not is ours. Ids go bare here ({each:.1f} bytes a token), 15 in the claim"
        ),
        hangs_on=(
            "the state of the connection: on new ones (handshake, slow start) direct KV takes "
            f"{fresh.point('seam_stall', 'mean') / ids.point('seam_stall', 'mean'):.2f} of recompute (the first figure "
            "flips at 1); how full the line is (overfull it takes the lead in the mean too); recompute 292.5 + 0.125 "
            "ms an id and the copy 24.5 ms (C10 itself)"
        ),
    )  # fmt: skip


def _stalls(arm: ArmData) -> str:
    x = 1e3 * known(arm, "seam_stall")
    return f"{x.mean():.0f} ms (sd {x.std():.0f}, max {x.max():.0f})"


def c11(data: Dataset, off: Dataset | None = None) -> Found:
    """The hand-off of ids is untouched by queueing on the line; direct KV waits in it."""
    if off is None:
        raise NotTestable("needs the same arms on an idle line (c11-off.toml)")
    crowded, idle = (({name: warm(one.arms[name]) for name in ("pdd", "direct")}) for one in (data, off))
    raw = difference(crowded["pdd"], idle["pdd"], "seam_stall", "p99")
    kept = idle["direct"]
    draws = kept.draws("seam_stall", "p99") - kept.draws("seam_stall", "p50")
    more = crowded["pdd"].point("eager_tokens", "mean") - idle["pdd"].point("eager_tokens", "mean")
    return Found(
        where="simulated",
        parts=[part("P99 of the stall, crowded line - idle, ids (without what further ids cost)", (-RTT_S, RTT_S),
                    _net(crowded["pdd"], idle["pdd"])),
               part("P99 of the stall, crowded line - idle, direct KV", (RTT_S, INF),
                    difference(crowded["direct"], idle["direct"], "seam_stall", "p99"))],
        off=[without("P99 - P50 of the stall on the idle line, direct KV", (-RTT_S, RTT_S),
                     drawn(kept.point("seam_stall", "p99") - kept.point("seam_stall", "p50"), draws, "s", kept))],
        note=(
            f"untouched means within an RTT (30 ms). As it is P99 moves by {1e3 * float(raw.point or 0.0):+.0f} ms: a "
            f"crowded line delays the KV, so that {more:+.0f} ids are handed over in the mean, 0.125 ms each. Queueing "
            "by other KV; loss and jitter need packets: C11 over TUN"
        ),
        hangs_on=(
            "how full the line is: direct KV grows without bound towards saturation. The model gives ids no queue; "
            "over packets they share it, and need priority or a queue of their own"
        ),
    )  # fmt: skip


def _net(crowded: ArmData, idle: ArmData) -> Figure:
    """Difference of the P99 of the stall, each less what recomputing its ids takes by the chip's law."""
    from pddbench.deploy.presets import CHIPS

    def stalls(arm: ArmData) -> Values:
        cost = CHIPS["B"].extend_e1_s * arm.rows["handoff_token"].to_numpy()
        stall = stall_of(arm) - cost
        return Values(stall, arm.code, len(arm.sessions))

    of, to = stalls(crowded), stalls(idle)
    draws = of.index.at(0.99, crowded.weights) - to.index.at(0.99, idle.weights)
    return drawn(of.point(0.99) - to.point(0.99), draws, "s", crowded)


def c12(data: Dataset, _off: Dataset | None = None) -> Found:
    """One shot frees the relay soonest but bursts MD."""
    one, slow, free, batches, none = (
        warm(data.arms[name]) for name in ("pdd", "one_shot_slow", "one_shot_free", "catch64_slow", "relay_off")
    )
    handed = slow.point("eager_tokens", "p99")
    gap = free.draws("itl_md", "p99.9") - none.draws("itl", "p99.9")
    return Found(
        where="simulated",
        parts=[
            part("ITL P99.9 on MD, one shot - free recompute, 0.125 ms an id", (0.001, INF),
                 difference(one, free, "itl_md", "p99.9")),
            part("the same, 1 ms an id", (0.001, INF), difference(slow, free, "itl_md", "p99.9")),
            part("tokens on the relay, one shot / batches of 64, 1 ms an id", (-INF, 0.999),
                 ratio(slow, batches, "eager_tokens", "sum")),
        ],
        off=[without("ITL P99.9, one shot with free recompute - no hand-offs at all", (-INF, 0.005),
                     drawn(free.point("itl_md", "p99.9") - none.point("itl", "p99.9"), gap, "s", free),
                     agrees=(0.001, INF))],
        note=(
            "streams of MD that had no hand-off then wait for the ids that ride in their step (P99 of a hand-off: "
            f"{handed:.0f} ids)"
        ),
        hangs_on=(
            "cost of an id in a step of MD: 0.125 ms by roofline (R1, half of 8 x H20's peak: an assumption), 1 ms "
            "with weak kernels (one mixed step was +8 or +75 ms on 56): the same direction, eight times the size"
        ),
    )  # fmt: skip


def c13(data: Dataset, _off: Dataset | None = None) -> Found:
    """Catch-up in batches: a smaller worst ITL for a few per cent more relay tokens."""
    arms = {name: warm(arm) for name, arm in data.arms.items()}
    parts: list[Part] = []
    for label, name, base in (("0.125 ms an id", "catch64", "pdd"), ("1 ms an id", "catch64_slow", "one_shot_slow")):
        if name in arms:
            parts += [
                part(f"ITL {stat.upper()} on MD, batches of 64 / one shot, {label}", (-INF, 0.999),
                     ratio(arms[name], arms[base], "itl_md", stat))
                for stat in ("p99", "p99.9")
            ]  # fmt: skip
            parts += [
                part(f"more relay tokens with batches of 64, {label}", (0.0, 0.10), _more(arms[name], arms[base])),
            ]  # fmt: skip
    gone = []
    if "catch_never" in arms:
        never = ratio(arms["catch_never"], arms["one_shot_slow"], "itl_md", "p99.9")
        gone = [
            without(
                "ITL P99.9, batches larger than what there is / one shot",
                (0.99, 1.01),
                never,
                agrees=(-INF, 0.999),
                nothing=1.0,
            )
        ]
    batches = sorted((name for name in arms if name.startswith("catch")), key=_batch_size)
    return Found(
        where="simulated",
        parts=parts,
        off=gone,
        note=f"'a little more' read as at most 10%; by batch: {'; '.join(_batch(name, arms) for name in batches)}",
        hangs_on=(
            "how often two batches meet in a step of MD: more batches meet more often, and where that is more than "
            "one step in a thousand P99.9 is theirs. A round takes 0.29 s (C10's fixed part), in which the relay makes "
            "about a dozen tokens: that is the surplus, and smaller batches never catch up and end after 20 rounds"
        ),
    )


def _batch_size(name: str) -> tuple[int, str]:
    digits = "".join(letter for letter in name if letter.isdigit())
    return int(digits or 1 << 30), name


def _more(of: ArmData, to: ArmData) -> Figure:
    found = ratio(of, to, "eager_tokens", "sum")
    ends = [None if end is None else float(end) - 1 for end in (found.point, found.low, found.high)]
    return Figure(unit="share", point=ends[0], low=ends[1], high=ends[2], rows=found.rows, sessions=found.sessions)


def _batch(name: str, arms: dict[str, ArmData]) -> str:
    arm = arms[name]
    base = arms["one_shot_slow" if name.endswith(("slow", "never")) else "pdd"]
    more = float(_more(arm, base).point or 0.0)
    itl = 1e3 * arm.point("itl_md", "p99.9")
    label = name.removeprefix("catch").replace("_", " ").strip()
    return f"{label}: P99.9 {itl:.0f} ms, {arm.rows['handoff_rounds'].mean():.1f} rounds, tokens {100 * more:+.0f}%"


def c25(_: Scenes) -> Found:
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
