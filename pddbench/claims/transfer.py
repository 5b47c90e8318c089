"""Claims about KV on its two ways: what the decode-side cache saves, when it is where, who makes tokens meanwhile.

Each function takes a run (simulated or live) whose arms have the names of `workloads/claims`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import Figure, number
from pddbench.analyze.samples import ArmData
from pddbench.claims.figures import cut, difference, drawn, ratio
from pddbench.claims.model import Found, Part, about, part, without

if TYPE_CHECKING:
    import pandas as pd

INF = float("inf")
_TIMER_S = 0.02  # below that two medians of a live run are alike


def warm(arm: ArmData) -> ArmData:
    """The requests a fixed trace is about: not its cold donors (kind `root`)."""
    return arm.subset((arm.rows["kind"] != "root").to_numpy(dtype=bool))


def c5(data: Dataset, _off: Dataset | None = None) -> Found:
    """The decode-side cache cuts cross-datacentre bandwidth up to ten times at a mean hit of 90%."""
    on, off = data.arms["naive"], data.arms["no_drc"]
    saved = ratio(off, on, "kv_wan_bytes", "sum")
    weighted = on.ratio("hit_planned", "token_weighted")
    law = drawn(
        float(saved.point or 0.0) * (1 - weighted.point()),
        off.draws("kv_wan_bytes", "sum") / on.draws("kv_wan_bytes", "sum") * (1 - weighted.draws(on.weights)), "", on,
    )  # fmt: skip
    cold = _share_nothing(on)
    base = off.subset(off.rows["request_id"].isin(on.rows.loc[cold, "request_id"]).to_numpy())
    return Found(
        where="simulated",
        parts=[part("WAN bytes without / with the cache", about(10.0), saved),
               part("that x (1 - token-weighted hit)", about(1.0, 0.05), law)],
        off=[without("the same on prompts that share nothing", (0.999, 1.001),
                     ratio(base, on.subset(cold.to_numpy()), "kv_wan_bytes", "sum"))],
        note=(
            f"hit {100 * on.point('hit_planned', 'mean'):.1f}% in the mean, {100 * weighted.point():.1f}% by tokens; "
            "ten times needs 90% by tokens"
        ),
        hangs_on="the token-weighted hit of the trace alone: at 90% by tokens the verdict is `agrees`",
    )  # fmt: skip


def _share_nothing(arm: ArmData) -> pd.Series:
    """Requests whose prompt nobody has had: the singular ones, or the cold donors of a fixed trace.

    Other cold requests may share a system prompt with what the plan puts after them and the run before them.
    """
    cold = arm.rows["cached_tokens_planned"] == 0
    singular = cold & (arm.rows["kind"] == "singular")
    return singular if singular.any() else cold


def c6(data: Dataset, _off: Dataset | None = None) -> Found:
    """KV to the relay in tens of ms, over the line in seconds."""
    pdd, instant, slow = (warm(data.arms[name]) for name in ("pdd", "instant_fabric", "slow_fabric"))
    near = difference(pdd, instant, "ttft", "p50")
    far = pdd.figure("kv_wan_s", "p50")
    near_draws = pdd.draws("ttft", "p50") - instant.draws("ttft", "p50")
    near_slow = slow.draws("ttft", "p50") - instant.draws("ttft", "p50")
    times = drawn(pdd.point("kv_wan_s", "p50") / float(near.point or INF), pdd.draws("kv_wan_s", "p50") / near_draws,
                  "", pdd)  # fmt: skip
    point = slow.point("kv_wan_s", "p50") / (slow.point("ttft", "p50") - instant.point("ttft", "p50"))
    gone = drawn(point, slow.draws("kv_wan_s", "p50") / near_slow, "", slow)
    return Found(
        where="simulated",
        parts=[part("KV to the relay, median", (0.01, 0.1), near),
               part("KV over the line, median", (1.0, 20.0), far),
               part("line / fabric", (10.0, 1000.0), times)],
        off=[without("line / fabric, with a fabric like a WAN flow (1 Gbit/s)", (0.8, 1.5), gone)],
        note=(
            "to the relay: TTFT against an arm with a fabric without delay. Un-hit KV (262 MB at 64K and 90% hit); the "
            "two ways overlap: TTFT holds only the shorter"
        ),
        hangs_on=(
            "fabric 200 Gbit/s (an assumption: 400 would be 5 ms, below 'tens'), flow 1 Gbit/s (C1), 40,016 B a token "
            "(DeepSeek-V3 FP8); the order of magnitude holds for 25 to 800 Gbit/s"
        ),
    )  # fmt: skip


def c7(data: Dataset, _off: Dataset | None = None) -> Found:
    """The relay starts at once and hides the transfer."""

    def added(arm: str, metric: str) -> Figure:
        pair = data.pair("baseline", arm)
        return pair.subset((pair.a.rows["kind"] != "root").to_numpy(dtype=bool)).by_request(metric, 0.5)

    parts: list[Part] = [
        part("TTFT, relay - one datacentre", (-0.01, 0.1), added("pdd", "ttft")),
        part("second token, relay - one datacentre", (-0.01, 0.1), added("pdd", "second_sched")),
        part("TTFT, no relay - one datacentre", (0.5, INF), added("naive", "ttft")),
    ]  # fmt: skip
    if "naive_first" in data.arms:
        parts.append(part("second token, P's first token at once - one datacentre", (0.5, INF),
                          added("naive_first", "second_sched")))  # fmt: skip
    hidden = difference(warm(data.arms["naive"]), warm(data.arms["relay_off"]), "ttft", "p50")
    gap = data.pair("baseline", "pdd").by_request("max_gap", 0.5)
    return Found(
        where="simulated",
        parts=parts,
        off=[without("TTFT hidden (no relay - relay never used)", (-_TIMER_S, _TIMER_S), hidden)],
        note=(
            "'tens of ms' read as at most 100 ms, 'rises' as at least 500; by request, median. What the relay costs "
            f"instead is a gap in the stream at the hand-off: largest gap {1e3 * float(gap.point or 0):+.0f} ms"
        ),
        hangs_on="nothing: with any fabric faster than the line the direction is the same",
    )  # fmt: skip


def c9(data: Dataset, _off: Dataset | None = None) -> Found:
    """64K, 90% hit, 1K output: the relay makes 6.2% of the tokens."""
    arm, off = warm(data.arms["pdd"]), warm(data.arms["relay_off"])
    made = _of_1k(arm)
    ours = float(made.point or 0.0)
    ends = [1 / float(end) - 1 if end else INF for end in (made.point, made.high, made.low)]
    per_token = _ms_a_token(data, "pdd")
    needs = per_token * ours / 0.062
    others = [_load(data, name) for name in data.arms if name.startswith("rld")]
    return Found(
        where="simulated",
        parts=[part("tokens made by the relay / 1,024", (0.0615, 0.0625), made),
               part("MD's tokens / the relay's", (15.1, 15.3),
                    Figure(unit="", point=number(ends[0]), low=number(ends[1]), high=number(ends[2])))],
        off=[without("tokens made by the relay / 1,024, relay never used", (0.0, 0.0), _of_1k(off))],
        note=(
            f"the share is transfer time / time a token on the relay, here {per_token:.1f} ms; 6.2% needs {needs:.0f}"
            + (f"; other loads: {', '.join(others)}" if others else "")
        ),
        hangs_on=(
            "decode 21.4 + 0.91 batch ms (R1 on H20), KV of 40,016 B a token (DeepSeek-V3 FP8) and 1 Gbit/s a flow "
            f"(C1). 6.2% comes out at {max(0.0, (needs - 21.4) / 0.91):.0f} streams a relay instance, or with a "
            f"flow {needs / per_token:.1f} times as fast; KV of 70,272 B (bf16) makes it "
            f"{100 * ours * 70_272 / 40_016:.0f}%"
        ),
    )  # fmt: skip


def _of_1k(arm: ArmData) -> Figure:
    """Tokens of the relay as a share of answers of 1,024 (they are the same however long an answer goes on)."""
    found = arm.ratio("rld_tokens", "share")
    of = float(arm.rows["completion_tokens"].mean()) / 1024
    made = arm.figure("rld_tokens", "share")
    ends = [None if end is None else number(float(end) * of) for end in (made.point, made.low, made.high)]
    return Figure(unit="share", point=ends[0], low=ends[1], high=ends[2], rows=found.rows, sessions=found.seen)


def _load(data: Dataset, name: str) -> str:
    share = float(_of_1k(warm(data.arms[name])).point or 0.0)
    return f"{100 * share:.1f}% with {name.removeprefix('rld')} relay instances ({_ms_a_token(data, name):.0f} ms)"


def _ms_a_token(data: Dataset, name: str) -> float:
    arm = warm(data.arms[name])
    return 1e3 * arm.point("kv_wan_s", "mean") / arm.point("eager_tokens", "mean")


def c15(data: Dataset, off: Dataset | None = None) -> Found:
    """Singular traffic ends on the relay: cancelling its transfer saves far more than its share."""
    base = data.arms["singular_off"]
    rows = base.rows
    long = (rows["input_tokens_planned"] >= 131_072) & (rows["output_tokens_planned"] < 500)
    singular = float((rows["kind"] == "singular").mean())
    parts = [part("singular requests of the trace", (0.03, 0.04), singular, "share")]
    parts += [part(f"WAN bytes saved, {who}", (0.08, INF), cut(data.arms[who], base, "kv_wan_bytes", "sum"))
              for who in ("oracle", "predictor")]  # fmt: skip
    gone = []
    if off is not None:
        gone = [without(f"WAN bytes saved without singular traffic, {who}", (-0.001, 0.001),
                        cut(off.arms[who], off.arms["singular_off"], "kv_wan_bytes", "sum"))
                for who in ("oracle", "predictor")]  # fmt: skip
    price = _followers(data)
    return Found(
        where="simulated",
        parts=parts,
        off=gone,
        note=(
            f"'far more than 4%' read as at least twice that; {100 * float(long.mean()):.1f}% of requests have 128K in "
            f"and under 500 out; RLD made {100 * share_of(base):.1f}% of the tokens without the filter, "
            f"{100 * share_of(data.arms['oracle']):.1f}% with the oracle. {price}Output length is unknown beforehand, "
            "hence oracle and predictor"
        ),
        hangs_on=(
            "'very long' read as 128K to 256K, cold (published: very long input, under 500 out): the saving is about "
            f"their share of the un-hit bytes; prompts of {_least_tokens(base):,} tokens would do for twice their share"
        ),
    )  # fmt: skip


def share_of(arm: ArmData) -> float:
    """Tokens made by the relay, a share."""
    return arm.point("rld_tokens", "share")


def _least_tokens(arm: ArmData) -> int:
    """Length of cold singular prompts from which on cancelling them saves 8% of the bytes, all else the same."""
    rows = arm.rows
    single = rows["kind"] == "singular"
    others = float(rows.loc[~single, "kv_wan_bytes"].sum())
    a_token = float(rows.loc[single, "kv_wan_bytes"].sum()) / float(rows.loc[single, "input_tokens_planned"].sum())
    return round(0.08 / 0.92 * others / a_token / float(single.sum()))


def _followers(data: Dataset) -> str:
    """What the filter costs: bytes of the next turns of those whose KV stayed at home."""
    base, oracle = data.arms["singular_off"].rows, data.arms["oracle"].rows
    home = set(oracle.loc[oracle["pipeline"] == "P-RLD", "session_id"])
    after = oracle["session_id"].isin(home) & (oracle["pipeline"] != "P-RLD")
    before = float(base.loc[base["request_id"].isin(oracle.loc[after, "request_id"]), "kv_wan_bytes"].sum())
    now = float(oracle.loc[after, "kv_wan_bytes"].sum())
    saved = float(base["kv_wan_bytes"].sum() - oracle["kv_wan_bytes"].sum())
    return f"Other turns of those sessions send {(now - before) / 1e9:+.0f} GB ({saved / 1e9:.0f} saved net). "


__all__ = ["c5", "c6", "c7", "c9", "c15", "warm"]
