"""All claims in order, and how they are measured. A further claim is one function here and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from pddbench.claims import arithmetic, handoff, latency, mechanisms, traffic
from pddbench.claims.experiments import Bench
from pddbench.claims.model import Claim, Found, NotTestable, Row, verdict
from pddbench.claims.scenes import Scenes


def _claim(number: int, text: str, measure: Callable[[Scenes], Found]) -> Claim:
    return Claim(f"C{number}", text, measure)


def _mechanism(number: str) -> Callable[[Scenes], Found]:
    return lambda scenes: mechanisms.MECHANISMS[number].simulated(scenes.bench)


def _seeds(measure: Callable[[Bench], Found]) -> Callable[[Scenes], Found]:
    return lambda scenes: measure(scenes.bench)


CLAIMS: tuple[Claim, ...] = (
    _claim(1, "64K, 90% hit: median TTFT 4.2 s in one datacentre, 6.7 s with decode in another city", latency.c1),
    _claim(2, "un-optimised tail across datacentres: P90 18.3 s, P99 29.7 s at a median of 6.7 s", latency.c2),
    _claim(3, "KV transfers take 1-20 s, 70% of requests about 1 s; the tail is a few low-hit requests", latency.c3),
    _claim(4, "mean hit about 90%, but 70-80% of requests hit over 95%", traffic.c4),
    _claim(5, "DRC cuts bandwidth across datacentres up to 10 times at a mean hit of 90%", _mechanism("C5")),
    _claim(6, "KV reaches RLD in tens of ms, MD in seconds: tens to hundreds of times slower", _mechanism("C6")),
    _claim(7, "RLD starts decoding at once and hides the transfer", _mechanism("C7")),
    _claim(8, "TTFT is cut by 51.5%", latency.c8),
    _claim(9, "64K, 90% hit, 1K output: RLD makes 6.2% of the tokens, MD 93.8%", _mechanism("C9")),
    _claim(10, "hand-off of 100 tokens: direct KV is faster in the mean, recompute steadier and 3,100 times smaller",
           _mechanism("C10")),
    _claim(11, "handing over ids is untouched by jitter and queueing", _mechanism("C11")),
    _claim(12, "one-shot frees RLD soonest but bursts MD", _mechanism("C12")),
    _claim(13, "catch-up in batches: a smaller worst ITL for a little more work on RLD", _mechanism("C13")),
    _claim(14, "a P-RLD pipeline oscillates and collapses; so it is excluded", _seeds(mechanisms.c14)),
    _claim(15, "singular traffic (3-4%) ends on RLD before its KV arrives: cancel the transfer", _mechanism("C15")),
    _claim(16, "43 A + 32 B + a line against 88 A: within-SLA RPS +27.8%, BCR up to +37.5%", arithmetic.c16),
    _claim(17, "KV of a 100K request is gigabytes; tens a second exceed a WAN line", arithmetic.c17),
    _claim(18, "even compressed: 80 x 64K requests are about 23 GB, over 180 Gbit/s", arithmetic.c18),
    _claim(19, "throughput dips near 20, 40, 70% hit, from tail chunks that cannot be batched", _seeds(mechanisms.c19)),
    _claim(20, "revenue against hit rate is a bathtub: above some hit rate revenue falls", _seeds(mechanisms.c20)),
    _claim(21, "seconds a turn times tens of turns: over ten minutes a workflow", latency.c21),
    _claim(22, "decode takes 10-30 ms a token, also for the users at P99", arithmetic.c22),
    _claim(23, "hit rate only moves the economics: no cliff", arithmetic.c23),
    _claim(24, "the cost of a token falls by 37.5%", arithmetic.c24),
    _claim(25, "small transfers get around congestion by TCP's fairness between flows", handoff.c25),
    _claim(26, "extend-decode adds almost no time, decode being memory-bound", handoff.c26),
)  # fmt: skip


def measure(scenes: Scenes | None, claims: Sequence[Claim] = CLAIMS) -> Iterator[Row]:
    """A row a claim, each as soon as it is measured."""
    for claim in claims:
        start = time.monotonic()
        row = _row(claim, scenes)
        row.seconds = round(time.monotonic() - start, 2)
        yield row


def _row(claim: Claim, scenes: Scenes | None) -> Row:
    try:
        found = claim.measure(scenes)
    except NotTestable as reason:
        return Row(id=claim.id, claim=claim.text, verdict="not testable here", where="–", note=str(reason))
    return row_of(claim.id, claim.text, found)


def row_of(number: str, text: str, found: Found) -> Row:
    """The row of what was found."""
    silent = sum(one.verdict == "not testable here" for one in found.parts)
    partly = f"{silent} of {len(found.parts)} figures cannot be told here, and the verdict is without them; "
    return Row(id=number, claim=text, verdict=verdict(found.parts), where=found.where, parts=found.parts,
               off=found.off, note=(partly if silent else "") + found.note, hangs_on=found.hangs_on,
               size=found.size)  # fmt: skip
