"""The presets: each a specification with its sources. What no source says is our choice, and the note says so.

`fixed-64k` and `hit-sweep` come in sessions of one cold donor and `MEASURED` measured requests, so their shares
depend on the number of requests; the others are the same for any number.
"""

from __future__ import annotations

from collections.abc import Callable

from pddbench.errors import InputError, suggest
from pddbench.trace.quota.spec import (
    Arrival,
    Eviction,
    Law,
    LowKinds,
    QuotaSpec,
    Service,
    Singular,
    Subagents,
    SystemPrompts,
)

LENGTH_64K = 65_536
MEASURED = 15  # requests after each donor
_WIDTH = 0.0005  # of the bucket that holds the one hit of a fixed trace: two blocks of 16 in 64K
_WEKA = "kv-cache-tester traces (Apache-2.0), 49,334 requests of 710 sessions: shares, quantiles and gaps measured"


def pdd_agentic() -> QuotaSpec:
    """Agents' traffic as PDD was built for: mean hit 90%, three quarters above 95%, 3.5% singular."""
    return QuotaSpec(
        name="pdd-agentic",
        note=(
            "Mean hit 90%, 70-80% of requests above 95%, mean input 64K, output 0.5K and 3-4% singular requests are "
            "published; the shares of the inner buckets, the laws around the means and the times are ours, shaped "
            "after the WEKA traces (turns, kinds of low hits, their clustering, gaps)."
        ),
        sources=("PDD interview and report (Infinigence, July 2026): C4 and C15 of its claims", _WEKA),
        singular=Singular(share=0.035),
        eviction=Eviction(ttl_s=300, share=0.44),
        subagents=Subagents(share=0.05),
        block_tokens=16,
    )


def weka_like() -> QuotaSpec:
    """Coding agents as recorded by kv-cache-tester: contexts of 122K, mean hit 95%."""
    return QuotaSpec(
        name="weka-like",
        note="Means, shares, turns, gaps and kinds of low hits as measured; session starts are ours (none recorded).",
        sources=(_WEKA,),
        shares=(0.0699, 0.0440, 0.0558, 0.0662, 0.1770, 0.2310, 0.3561),
        mean_hit=0.951,
        input=Law(mean=122_379, sigma=0.67, min=6_000, max=900_000),
        output=Law(mean=440, sigma=0.90, min=1, max=18_195),
        system=SystemPrompts(count=12, tokens=Law(mean=14_500, sigma=0.16, min=4_096, max=24_000)),
        low_lag1=0.22,
        low_kinds=LowKinds(tool=0.65, edit=0.04, compaction=0.31),
        user_share=0.14,
        tool_gap=Law(
            kind="quantiles", points=((0, 1), (0.25, 5), (0.5, 9), (0.75, 19), (0.9, 67), (0.99, 700), (1, 3_600))
        ),
        user_gap=Law(kind="quantiles", points=((0, 5), (0.25, 40), (0.5, 127), (0.75, 408), (0.9, 1_541), (1, 7_200))),
        eviction=Eviction(ttl_s=300, share=0.44),
        subagents=Subagents(share=0.024, min_turns=8, max_turns=60),
        service=Service(base_s=2.0, token_s=0.018),
        block_tokens=16,
    )


def mooncake_like() -> QuotaSpec:
    """Chat over long documents as in Mooncake's conversation trace: 14K in, mean hit 32%."""
    return QuotaSpec(
        name="mooncake-like",
        note=(
            "Shares, mean hit, lengths and the rate of arrivals as counted in the first 1,500 requests. That trace "
            "names no sessions: the turns in a session, and with them which hits are turns and which roots, are ours."
        ),
        sources=("Mooncake FAST'25 conversation trace (Apache-2.0), first 1,500 of 12,031 requests",),
        shares=(0.884665, 0.044667, 0.024667, 0.012667, 0.014667, 0.006667, 0.012),
        mean_hit=0.317,
        input=Law(mean=13_988, sigma=1.1, min=600, max=123_192),
        output=Law(mean=352, sigma=1.2, min=1, max=2_000),
        system=SystemPrompts(count=3, tokens=Law(kind="fixed", mean=512)),
        turns=Law(mean=1.7, sigma=0.6, min=1, max=20),
        low_kinds=LowKinds(tool=0.8, edit=0.2, compaction=0.0, stretch=4.0),
        user_share=1.0,
        user_gap=Law(mean=60, sigma=1.0, min=2, max=600),
        arrival=Arrival(session_rate=1.7),
        block_tokens=1,
    )


def chat() -> QuotaSpec:
    """Short conversations: about 1.2K in, 250 out; most of a turn's prompt is the last reply and the new question."""
    return QuotaSpec(
        name="chat",
        note=(
            "Lengths as counted in 6,000 requests of the Azure conversation trace, which names neither sessions nor "
            "prefixes: hits, turns and times are ours (hits of 25-90% are what short turns give on the prompt basis)."
        ),
        sources=("Azure LLM inference trace 2023, conversation (CC-BY-4.0; Patel et al., Splitwise, ISCA 2024)",),
        edges=(0.0, 0.25, 0.5, 0.75, 0.9, 1.0),
        shares=(0.33, 0.15, 0.27, 0.20, 0.05),
        mean_hit=0.47,
        input=Law(mean=1_151, sigma=0.85, min=130, max=14_050),
        output=Law(mean=253, sigma=0.9, min=1, max=1_000),
        system=SystemPrompts(count=4, tokens=Law(mean=120, sigma=0.2, min=64, max=256)),
        turns=Law(mean=3.5, sigma=0.7, min=1, max=40),
        low_kinds=LowKinds(tool=0.95, edit=0.05, compaction=0.0, stretch=4.0),
        user_share=1.0,
        user_gap=Law(mean=45, sigma=1.0, min=2, max=1_800),
        arrival=Arrival(session_rate=1.0),
        min_fresh_tokens=4,
    )


def fixed(requests: int, hit: float, length: int = LENGTH_64K) -> QuotaSpec:
    """Prompts of one length with one hit: sessions of a cold donor and `MEASURED` requests that each keep that much.

    Each request of a session shares `hit` of its prompt with the one before, to the next 16-token block upwards. The
    donors, 1 in 16, are of kind `root` and hit nothing; the measured ones are of kind `edit`.
    """
    if not 0 <= hit < 1 - _WIDTH:
        raise InputError(f"a hit of {hit:g} is not a share from 0 to {1 - _WIDTH:g}")
    donors = max(1, round(requests / (MEASURED + 1))) if hit else requests
    rest = 1 - donors / requests
    low, name = (hit if hit else 0.0), f"fixed-{length // 1024}k-h{round(100 * hit):02d}"
    edges = (0.0, low, low + _WIDTH, 1.0) if hit else (0.0, _WIDTH, 1.0)
    return QuotaSpec(
        name=name,
        note="A cold donor and requests that share one part of it: not the shape of real traffic, a clean experiment.",
        sources=("PDD interview and report (Infinigence, July 2026): C1 and C9 of its claims (64K total, 90% hit)",),
        edges=edges,
        shares=(1 - rest, rest, 0.0) if hit else (1.0, 0.0),
        mean_hit=rest * (low + _WIDTH / 2) if hit else 0.0,
        input=Law(kind="fixed", mean=length),
        output=Law(kind="fixed", mean=512),
        system=SystemPrompts(count=0, cold_share=1.0),
        turns=Law(kind="fixed", mean=requests / donors),
        low_lag1=0.0,
        user_share=0.0,
        tool_gap=Law(kind="fixed", mean=5),
        user_gap=Law(kind="fixed", mean=5),
        arrival=Arrival(session_rate=0.2),
        block_tokens=16,
    )


_STATIC: dict[str, Callable[[], QuotaSpec]] = {
    "pdd-agentic": pdd_agentic,
    "weka-like": weka_like,
    "mooncake-like": mooncake_like,
    "chat": chat,
}
NAMES = (*_STATIC, "fixed-64k-h90", "hit-sweep")
SWEEP_HITS = (*(level / 50 for level in range(50)), 0.99)  # 0, 0.02, … 0.98, 0.99


def preset(name: str, requests: int) -> QuotaSpec:
    """The specification of a preset (`hit-sweep` is a list of them: see `sweep`); `InputError` for another name."""
    if name == "fixed-64k-h90":
        return fixed(requests, 0.90)
    if name not in _STATIC:
        raise InputError(f"preset {name!r} is not known here: {suggest(name, list(NAMES))}")
    return _STATIC[name]()
