"""C4: the hits of the traffic."""

from __future__ import annotations

import numpy as np

from pddbench.analyze import hits
from pddbench.analyze.intervals import share_figure
from pddbench.claims.model import Found, about, part
from pddbench.claims.scenes import Scenes


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
