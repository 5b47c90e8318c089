"""Chips as four figures, and the times that follow from them by roofline: what a measured law is compared with.

A roofline is a bound, not a measurement: prefill is limited by compute, decode by reading weights and KV. How much of
the peak is reached is an assumption (`COMPUTE_SHARE`, `BANDWIDTH_SHARE`), the same for all chips, so that chips can be
compared with one another.
"""

from __future__ import annotations

import msgspec

from pddbench.deploy.emulator.spec import Chip

COMPUTE_SHARE = 0.5
BANDWIDTH_SHARE = 0.7
CHIPS_AN_INSTANCE = 8


class Price(msgspec.Struct, frozen=True):
    """What somebody asks in public for an hour of one chip, and when. A list price, not what anybody pays."""

    amount: float
    currency: str
    source: str


class Figures(msgspec.Struct, frozen=True):
    """Of one chip: peak dense BF16 compute, memory, memory bandwidth, interconnect between the chips of a server.

    `price` None: none was found in public.
    """

    name: str
    peak_tflops: float
    memory_gb: float
    memory_tb_s: float
    interconnect_gb_s: float
    source: str
    price: Price | None = None


class Network(msgspec.Struct, frozen=True):
    """What of a model decides times: active parameters, bytes of all weights, FLOP a (query, key) pair, KV a token."""

    name: str
    active_parameters: float
    weight_bytes: float
    pair_flop: float
    kv_token_bytes: float
    source: str


H20 = Figures(
    "H20", 148, 96, 4.0, 900, "148 BF16 TFLOPS and 4.0 TB/s (CLAIMS); 96 GB, NVLink 900 GB/s: data sheet",
    Price(7.5, "CNY", "one seller (Compshare) in the data set brian8808/gpu-price-index, undated, seen 2026-11-29"),
)  # fmt: skip
H800 = Figures("H800", 989, 80, 3.35, 400, "989 BF16 TFLOPS and 3.35 TB/s (CLAIMS); 80 GB, NVLink 400 GB/s: data sheet")
H100 = Figures(
    "H100", 989, 80, 3.35, 900, "data sheet (SXM): 989 dense BF16 TFLOPS, 80 GB, 3.35 TB/s, NVLink 900 GB/s",
    Price(6.88, "USD", "AWS p5.48xlarge on demand, us-east-1, 55.04 an hour for eight, 2026-11-09"),
)  # fmt: skip
H200 = Figures(
    "H200", 989, 141, 4.8, 900, "data sheet: 989 dense BF16 TFLOPS, 141 GB, 4.8 TB/s, NVLink 900 GB/s",
    Price(7.912, "USD", "AWS p5en.48xlarge on demand, us-east-1, 63.296 an hour for eight, 2026-08-06"),
)  # fmt: skip
HARDWARE = {figures.name: figures for figures in (H20, H800, H100, H200)}

# MLA without absorption: 61 layers x 128 heads x (192 for the scores + 128 for the values) x 2 FLOP
R1 = Network(
    "DeepSeek-R1",
    37e9,
    671e9,
    61 * 128 * (192 + 128) * 2,
    40_016,
    "DeepSeek-V3 report: 671e9 parameters in FP8, 37e9 active, 61 layers, 128 heads, head sizes 192 and 128",
)


def roofline(figures: Figures, network: Network = R1, chips: int = CHIPS_AN_INSTANCE) -> Chip:
    """The laws of an instance of some chips serving a network.

    A step of prefill or decode reads all weights (an upper bound: a small batch does not touch all experts). There is
    no overhead a request, and none of an extend-decode besides its tokens.
    """
    flop_s = chips * figures.peak_tflops * 1e12 * COMPUTE_SHARE
    bytes_s = chips * figures.memory_tb_s * 1e12 * BANDWIDTH_SHARE
    token_s = 2 * network.active_parameters / flop_s
    return Chip(
        name=f"{figures.name}x{chips}",
        prefill_a_s=0.0,
        prefill_b_s=token_s,
        prefill_c_s=network.pair_flop / flop_s,
        prefill_step_s=network.weight_bytes / bytes_s,
        decode_c0_s=network.weight_bytes / bytes_s,
        decode_c1_s=token_s,
        decode_c2_s=network.kv_token_bytes / bytes_s,
        extend_e0_s=0.0,
        extend_e1_s=token_s,
        source=f"roofline of {chips} {figures.name} ({figures.source}) for {network.name} ({network.source}); "
        f"{COMPUTE_SHARE:g} of the compute and {BANDWIDTH_SHARE:g} of the bandwidth are assumed to be reached",
    )


def kv_memory_tokens(figures: Figures, network: Network = R1, chips: int = CHIPS_AN_INSTANCE) -> int:
    """KV tokens that fit beside the weights into 90% of the memory; 0 when the weights alone do not fit."""
    left = 0.9 * chips * figures.memory_gb * 1e9 - network.weight_bytes
    return max(0, int(left / network.kv_token_bytes))


def stage_figures(figures: Figures) -> dict[str, float]:
    """What decides which stage a chip suits: both stages of a 64K prompt of which 90% hit, and each by compute.

    `prefill_s`: prefill of 6,554 tokens on 58,982. `decode_ms`: a step of 16 such streams. `kv_tokens`: see above.
    """
    from pddbench.deploy.emulator.prefill import prefill_s

    chip = roofline(figures)
    step_s = chip.decode_c0_s + 16 * chip.decode_c1_s + 16 * 65_536 * chip.decode_c2_s
    return {
        "prefill_s": prefill_s(chip, 6554, 58_982) + chip.prefill_step_s,
        "decode_ms": step_s * 1e3,
        "kv_tokens": float(kv_memory_tokens(figures)),
        "flop_a_byte": figures.peak_tflops / figures.memory_tb_s,
    }


class StageCosts(msgspec.Struct, frozen=True):
    """Of a million tokens, in the currency of the price: un-hit ones prefilled, and decoded ones (see above)."""

    prefill: float
    decode: float


def _hours(figures: Figures) -> StageCosts:
    """Chip hours of a million tokens of each stage."""
    found = stage_figures(figures)
    prefill_s, decode_s = found["prefill_s"] / 6554, found["decode_ms"] / 1e3 / 16
    return StageCosts(*(seconds * CHIPS_AN_INSTANCE * 1e6 / 3600 for seconds in (prefill_s, decode_s)))


def stage_costs(figures: Figures) -> StageCosts | None:
    """What a million tokens cost at the list price; None without one."""
    if figures.price is None:
        return None
    hours = _hours(figures)
    return StageCosts(hours.prefill * figures.price.amount, hours.decode * figures.price.amount)


def break_even(figures: Figures, other: Figures) -> StageCosts:
    """For each stage: the share of the other chip's price below which this one is the cheaper one."""
    mine, its = _hours(figures), _hours(other)
    return StageCosts(its.prefill / mine.prefill, its.decode / mine.decode)


def no_price(chip: str) -> str:
    """What to do about a chip of an experiment that has no price, in one clause."""
    figures = next((one for name, one in HARDWARE.items() if chip == f"{name}x{CHIPS_AN_INSTANCE}"), None)
    if figures is None or figures.price is None:
        return f"give [cost] chips one for {chip!r}: no public one is known"
    price = figures.price
    whole = price.amount * CHIPS_AN_INSTANCE
    asked = f"in public {whole:.4g} {price.currency} an hour were asked ({price.source})"
    return f"give [cost] chips one for {chip!r}; {asked}"
