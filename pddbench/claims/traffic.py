"""Claims about traffic and the line: hits, bytes saved by the decode-side cache, who need not cross at all."""

from __future__ import annotations

import numpy as np

from pddbench.analyze import hits
from pddbench.analyze.feasibility import bytes_saved_by_cache
from pddbench.analyze.intervals import Figure, share_figure
from pddbench.analyze.samples import ArmData
from pddbench.claims.model import Found, about, part
from pddbench.claims.scenes import Scenes

PDD = {"name": "pdd", "emulated": "pdd"}


def c4(scenes: Scenes) -> Found:
    """Mean hit about 90%, 70 to 80% of requests above 95%."""
    arm = scenes.run("skewed", "pdd-agentic").arms["baseline"]
    rows = arm.rows
    served = (rows["cached_tokens"] / rows["input_tokens_planned"]).to_numpy()
    shares = {"planned": hits.planned_share(rows), "served": served}
    above = {name: share_figure(share > 0.95, arm.code, len(arm.sessions)) for name, share in shares.items()}
    counts = np.bincount(hits.bucket_of(shares["planned"]), minlength=7)
    buckets = ", ".join(
        f"{name} {100 * n / len(rows):.1f}%" for name, n in zip(hits.bucket_names(), counts, strict=True)
    )
    return Found(
        where="simulated",
        parts=[
            part("mean hit, planned", about(0.90, 0.02), arm.figure("hit_planned", "mean")),
            part("mean hit, served", about(0.90, 0.02), arm.figure("hit_served", "mean")),
            part("requests above 95%, planned", (0.70, 0.80), above["planned"]),
            part("requests above 95%, served", (0.70, 0.80), above["served"]),
        ],
        note=f"the trace is generated to this claim, so 'planned' checks the generator; buckets (planned): {buckets}",
    )  # fmt: skip


def c5(scenes: Scenes) -> Found:
    """The decode-side cache cuts cross-datacentre bandwidth up to ten times at a mean hit of 90%."""
    arms = ({"name": "with", "emulated": "naive"}, {"name": "without", "emulated": "naive", "drc": False})
    data = scenes.run("drc", "pdd-agentic", arms)
    on, off = data.arms["with"], data.arms["without"]
    weighted = on.point("hit_planned", "token_weighted")
    saved = wan_bytes(off) / wan_bytes(on)
    return Found(
        where="simulated",
        parts=[part("bytes without / with the cache", about(10.0), saved),
               part("that, against 1 / (1 - token-weighted hit)", about(1.0, 0.05),
                    saved / bytes_saved_by_cache(weighted))],
        note=(
            f"mean hit {100 * on.point('hit_planned', 'mean'):.1f}% a request, but {100 * weighted:.1f}% by tokens: "
            "ten times "
            "needs 90% by tokens"
        ),
    )  # fmt: skip


def wan_bytes(arm: ArmData) -> float:
    """KV bytes over the line."""
    return float(np.nansum(arm.rows["kv_wan_bytes"].to_numpy()))


def c15(scenes: Scenes) -> Found:
    """Singular traffic ends on the relay: cancelling its transfer saves far more than its share."""

    def one(singular: str) -> dict[str, object]:
        return {"name": singular, "emulated": "pdd", "singular": singular}

    data = scenes.run("singular", "pdd-agentic", tuple(one(name) for name in ("off", "oracle", "predictor")))
    base = data.arms["off"]
    saved = {name: 1 - wan_bytes(data.arms[name]) / wan_bytes(base) for name in ("oracle", "predictor")}
    long = (base.rows["input_tokens_planned"] >= 131_072) & (base.rows["output_tokens_planned"] < 500)
    return Found(
        where="simulated",
        parts=[part("singular requests", (0.03, 0.04), float((base.rows["kind"] == "singular").mean()), "share"),
               part("bytes saved by an oracle", (0.08, 1.0), saved["oracle"], "share"),
               part("bytes saved by a predictor", (0.08, 1.0), saved["predictor"], "share")],
        note=(
            f"'far more than 4%' read as at least twice that; {100 * float(long.mean()):.1f}% of requests have 128K "
            "in and "
            f"under 500 out; RLD made {100 * base.point('rld_tokens', 'share'):.1f}% of the tokens without the filter, "
            f"{100 * data.arms['oracle'].point('rld_tokens', 'share'):.1f}% with the oracle. Output length is unknown "
            "beforehand, hence both"
        ),
    )  # fmt: skip


def c6(scenes: Scenes) -> Found:
    """KV to the relay in tens of ms, over the line in seconds."""
    arm = scenes.run("fixed", "fixed-90").arms["pdd"]
    moved = arm.subset(((arm.rows["kv_wan_bytes"] > 0) & (arm.rows["kind"] != "root")).to_numpy(dtype=bool))
    near = moved.point("kv_wan_bytes", "p50") * 8 / 200e9
    far = moved.figure("kv_wan_s", "p50")
    return Found(
        where="simulated",
        parts=[
            part("KV to the relay, median", (0.01, 0.1), near, "s"),
            part("KV over the line, median", (1.0, 20.0), far),
            part("line / fabric", (10.0, 1000.0), float(far.point or 0.0) / near),
        ],
        note="fabric of 200 Gbit/s by bytes / rate (262 MB at 64K and 90% hit); the two overlap, they do not add",
    )  # fmt: skip


def c9(scenes: Scenes) -> Found:
    """64K, 90% hit, 1K output: the relay makes 6.2% of the tokens."""
    arm = scenes.run("fixed-1k", "fixed-90-1k", (PDD,)).arms["pdd"]
    warm = arm.subset((arm.rows["kind"] != "root").to_numpy(dtype=bool))
    share = warm.figure("rld_tokens", "share")
    itl = 1e3 * warm.point("itl_rld", "p50")
    ours = float(share.point or 0.0)
    return Found(
        where="simulated",
        parts=[part("tokens made by the relay", (0.0615, 0.0625), share),
               part("MD's tokens / the relay's", about(15.2, 0.02), (1 - ours) / ours if ours else float("inf"))],
        note=(
            f"the share is transfer time / the relay's ITL, here {itl:.1f} ms a token at this load; 6.2% of 1,024 "
            "tokens in "
            f"the {1e3 * warm.point('kv_wan_s', 'p50'):.0f} ms our transfers take would need "
            f"{1e3 * warm.point('kv_wan_s', 'p50') / (0.062 * 1024):.0f} ms a token"
        ),
    )  # fmt: skip


__all__ = ["Figure", "c4", "c5", "c6", "c9", "c15", "wan_bytes"]
