"""Claims that arithmetic decides: no run, no model, only the published figures themselves."""

from __future__ import annotations

from itertools import pairwise

from pddbench.analyze import economy
from pddbench.analyze.feasibility import burst, feasibility, transfer
from pddbench.claims.model import Found, about, digits, part
from pddbench.claims.scenes import Scenes

GBIT = 1e9


def c16(_: Scenes) -> Found:
    """43 A + 32 B + a line against 88 A."""
    best, worst = economy.bcr_gain(1.278, 0.929), economy.bcr_gain(1.278, 0.965)
    split = economy.Split()
    rho = economy.rho_limit(1.278, split)
    line = [economy.implied_line(88, share, [(43, 1.0), (32, price)]) for share, price in ((0.965, 1.3), (0.929, 1.2))]
    return Found(
        where="arithmetic",
        parts=[part("BCR gain, best case", digits(1.375, 0.01), best)],
        note=(
            f"+27.8% within SLA at 92.9 to 96.5% of the cost is BCR +{100 * (worst - 1):.1f} to "
            f"+{100 * (best - 1):.1f}%; "
            f"the line must cost {line[0]:.2f} to {line[1]:.2f} A. Beyond arithmetic it is a region, not a check: "
            "prefill "
            f"seconds a request x decode requests/s (both on A) at most {rho:.2f}, and decode of B / of A at the "
            "SLO at "
            f"least {economy.beta_needed(1.278, rho, split) * (1 + rho):.2f}/(1 + that). Measure yours: pddbench "
            "capacity"
        ),
    )  # fmt: skip


def c17(_: Scenes) -> Found:
    """A 100K request is gigabytes of KV; a line cannot carry tens a second."""
    sizes = [transfer(100_000, 0.0, per_token, 100 * GBIT) for per_token in (10e3, 50e3, 80e3)]
    typical = feasibility(sizes[1], 10, 100 * GBIT)
    return Found(
        where="arithmetic",
        parts=[
            part("KV of 100K tokens at 10 KB each", (1e9, 10e9), sizes[0].kv_bytes, "bytes"),
            part("KV of 100K tokens at 50 KB each", (1e9, 10e9), sizes[1].kv_bytes, "bytes"),
            part("KV of 100K tokens at 80 KB each", (1e9, 10e9), sizes[2].kv_bytes, "bytes"),
            part("ten a second / a line of 100 Gbit/s", (1.0, float("inf")), typical.line_share),
        ],
        note=f"at 50 KB a token 100 Gbit/s carry {typical.most_requests_s:.2g} such requests a second without any hit",
    )


def c18(_: Scenes) -> Found:
    """Even compressed: 80 prompts of 64K."""
    found = [burst(transfer(n, 0.0, per, 100 * GBIT), 80, 1.0, 100 * GBIT)
             for n, per in ((65_536, 4_400.0), (64_000, 4_500.0))]  # fmt: skip
    return Found(
        where="arithmetic",
        parts=[part("KV of 80 x 64K, GB", digits(23, 1), found[1].kv_bytes / 1e9),
               part("all in a second, Gbit/s", (180, float("inf")), found[0].needed_bit_s / GBIT)],
        note="at 4.4 KB a token (64K = 65,536) or 4.5 KB (64,000), all 80 in one second",
    )  # fmt: skip


def c23(_: Scenes) -> Found:
    """The gain moves with the hit rate without a cliff."""
    ratios = _gain_by_hit()
    falls = [before - after for before, after in pairwise(ratios)]
    return Found(
        where="arithmetic",
        parts=[
            part("largest step down between hits 1% apart", (float("-inf"), 0.0), max(0.0, *falls)),
            part("largest step up between hits 1% apart, share", (0.0, 0.1), max(-fall for fall in falls)),
        ],
        note=(
            "fluid balance of 43 A + 32 B against 88 A at 64K input and 512 output tokens by the emulator's laws, B "
            "decoding "
            "twice as fast as A, the line as wide as the un-hit KV asks; no queue, no tail. Measured: pddbench capacity"
        ),
    )


def _gain_by_hit() -> list[float]:
    """Throughput of the split / of the reference at hits of 50 to 99%."""
    from pddbench.deploy.emulator.prefill import prefill_s
    from pddbench.deploy.presets import CHIPS

    chip, length, batch = CHIPS["A"], 65_536, 16
    decode_s = 512 * (chip.decode_c0_s + chip.decode_c1_s * batch) / batch
    rho = [
        prefill_s(chip, round(length * (1 - hit / 100)), round(length * hit / 100)) / decode_s for hit in range(50, 100)
    ]
    return [economy.throughput_ratio(one, 2.0, economy.Split()) for one in rho]


def c24(_: Scenes) -> Found:
    """The cost of a single token falls by 37.5%."""
    change = economy.cost_per_request_change(economy.bcr_gain(1.278, 0.929))
    return Found(
        where="arithmetic",
        parts=[part("change of the cost of a request", digits(-0.375, 0.001), change, "share")],
        note=f"BCR +37.5% is {100 * change:.1f}% a request: the two are not the same figure",
    )


def c22(scenes: Scenes) -> Found:
    """Decode takes 10 to 30 ms a token."""
    data = scenes.run("skewed", "pdd-agentic")
    return Found(
        where="simulated",
        parts=[part("ITL P50, one datacentre", (0.010, 0.030), data.arms["baseline"].figure("itl", "p50")),
               part("ITL P99, one datacentre", (0.010, 0.030), data.arms["baseline"].figure("itl", "p99"))],
        note="the decode law is a published measurement (R1 on H20); the SLO presets are 2 s/70 ms, 1.5/50 and 1/30",
    )  # fmt: skip


__all__ = ["about", "c16", "c17", "c18", "c22", "c23", "c24"]
