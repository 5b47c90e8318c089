"""Can the line carry the KV? Arithmetic of KV bytes against a line, without queues, protocol or loss.

What comes out is a bound: a line that fails here fails; one that passes may still be too slow in the tail.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

BITS = 8


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """One request's KV: `tokens` cross the line, `kv_bytes` of them, in `seconds` on the idle line."""

    input_tokens: int
    hit: float
    tokens: float
    kv_bytes: float
    seconds: float


class Burst(msgspec.Struct, frozen=True, kw_only=True):
    """`requests` transfers that begin together: all their KV, what rate carries it within `within_s`, time it takes."""

    requests: int
    within_s: float
    kv_bytes: float
    needed_bit_s: float
    seconds_on_line: float


class Feasibility(msgspec.Struct, frozen=True, kw_only=True):
    """KV against a line. Rates in bit/s, shares of the line; `requests_s` is what was offered.

    `line_share` above 1: the line cannot carry it. `most_requests_s` fill the line (null: they move nothing).
    `hit_needed` is the token-weighted hit at which the offered rate just fits (0: it fits without any; null: not even
    at 100%, with a fixed part).
    """

    transfer: Transfer
    requests_s: float
    offered_bit_s: float
    line_bit_s: float
    line_share: float
    fits: bool
    most_requests_s: float | None
    hit_needed: float | None
    burst: Burst | None = None


def kv_bytes(tokens: float, per_token_bytes: float, base_bytes: float = 0.0) -> float:
    """KV bytes of a context of `tokens` tokens: base + per token; nothing for no tokens."""
    return base_bytes + per_token_bytes * tokens if tokens > 0 else 0.0


def transfer(
    input_tokens: int, hit: float, per_token_bytes: float, line_bit_s: float, base_bytes: float = 0.0
) -> Transfer:
    """The un-hit KV of one request on an idle line of `line_bit_s`; `hit` is a share of its tokens (0 to 1)."""
    tokens = input_tokens * (1 - hit)
    size = kv_bytes(tokens, per_token_bytes, base_bytes)
    return Transfer(input_tokens=input_tokens, hit=hit, tokens=tokens, kv_bytes=size, seconds=size * BITS / line_bit_s)


def feasibility(one: Transfer, requests_s: float, line_bit_s: float, base_bytes: float = 0.0) -> Feasibility:
    """`requests_s` such requests a second against the line."""
    offered = one.kv_bytes * BITS * requests_s
    return Feasibility(
        transfer=one,
        requests_s=requests_s,
        offered_bit_s=offered,
        line_bit_s=line_bit_s,
        line_share=offered / line_bit_s,
        fits=offered <= line_bit_s,
        most_requests_s=line_bit_s / (one.kv_bytes * BITS) if one.kv_bytes else None,
        hit_needed=_hit_needed(one, requests_s, line_bit_s, base_bytes),
    )


def _hit_needed(one: Transfer, requests_s: float, line_bit_s: float, base_bytes: float) -> float | None:
    """The hit at which offered = line: solve requests x 8 x (base + per x input x (1 - hit)) = line."""
    if requests_s <= 0 or one.tokens <= 0:
        return 0.0
    per_token = (one.kv_bytes - base_bytes) / one.tokens
    room = line_bit_s / (BITS * requests_s) - base_bytes
    if room < 0:
        return None
    return max(0.0, 1 - room / (per_token * one.input_tokens))


def burst(one: Transfer, requests: int, within_s: float, line_bit_s: float) -> Burst:
    """`requests` such transfers that must all cross within `within_s`."""
    total = one.kv_bytes * requests
    return Burst(
        requests=requests,
        within_s=within_s,
        kv_bytes=total,
        needed_bit_s=total * BITS / within_s,
        seconds_on_line=total * BITS / line_bit_s,
    )


def bytes_saved_by_cache(token_weighted_hit: float) -> float:
    """Line bytes without a decode-side cache / with it: 1 / (1 - token-weighted hit) (claim C5)."""
    return float("inf") if token_weighted_hit >= 1 else 1 / (1 - token_weighted_hit)


def token_weighted(hits: Sequence[int], inputs: Sequence[int]) -> float:
    """Hit tokens / input tokens over requests."""
    total = sum(inputs)
    return sum(hits) / total if total else 0.0
