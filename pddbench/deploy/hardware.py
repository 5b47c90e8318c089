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


class Figures(msgspec.Struct, frozen=True):
    """Of one chip: peak dense BF16 compute, memory, memory bandwidth, interconnect between the chips of a server."""

    name: str
    peak_tflops: float
    memory_gb: float
    memory_tb_s: float
    interconnect_gb_s: float
    source: str


class Network(msgspec.Struct, frozen=True):
    """What of a model decides times: active parameters, bytes of all weights, FLOP a (query, key) pair, KV a token."""

    name: str
    active_parameters: float
    weight_bytes: float
    pair_flop: float
    kv_token_bytes: float
    source: str


H20 = Figures("H20", 148, 96, 4.0, 900, "148 BF16 TFLOPS and 4.0 TB/s (CLAIMS); 96 GB, NVLink 900 GB/s: data sheet")
H800 = Figures("H800", 989, 80, 3.35, 400, "989 BF16 TFLOPS and 3.35 TB/s (CLAIMS); 80 GB, NVLink 400 GB/s: data sheet")
H200 = Figures("H200", 989, 141, 4.8, 900, "data sheet: 989 dense BF16 TFLOPS, 141 GB, 4.8 TB/s, NVLink 900 GB/s")
HARDWARE = {figures.name: figures for figures in (H20, H800, H200)}

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
