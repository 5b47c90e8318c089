"""Random histograms as broad as a Dirichlet draw gives them: any user's, not only what presets look like."""

from __future__ import annotations

import random
from collections.abc import Iterator

from pddbench.trace.quota.spec import Law, QuotaSpec, Singular

MIDDLES = (0.45, 0.925, 0.96, 0.975, 0.985, 0.9925, 0.9975)
REQUESTS = 600
BOUNDS = r"needs the first bucket's mean (above|below)|replies must have at most|replies leave no room"


def broad_targets(seed: int) -> Iterator[QuotaSpec]:
    """Shares uniform on the simplex, the first at least about 6%; a first bucket's mean of 15% to 75%; 2% singular."""
    rng = random.Random(f"targets/{seed}")
    while True:
        raw = [rng.expovariate(1) for _ in MIDDLES]
        shares = [value / sum(raw) for value in raw]
        shares[0] = max(shares[0], 0.06)
        shares = [share / sum(shares) for share in shares]
        mean = sum(share * middle for share, middle in zip(shares, MIDDLES, strict=True))
        yield QuotaSpec(
            shares=tuple(shares),
            mean_hit=mean + shares[0] * rng.uniform(-0.3, 0.3),
            output=Law(mean=512, sigma=1.1, min=1, max=16_384),
            singular=Singular(share=0.02),
        )
