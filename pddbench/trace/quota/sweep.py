"""The hit sweep: one trace that goes through hits of 0, 2, … 98, 99% of a fixed length, one stage after the other."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from pddbench.errors import InputError
from pddbench.trace.model import Header, Row
from pddbench.trace.quota.generate import generate_rows
from pddbench.trace.quota.histogram import largest_remainder
from pddbench.trace.quota.presets import SWEEP_HITS, fixed

PAUSE_S = 60.0  # between the last start of a stage and the first of the next


def sweep_header(requests: int, seed: int) -> Header:
    """The header of the whole sweep."""
    return Header(
        source=f"pddbench trace synth: hit-sweep, {requests} requests, seed {seed}",
        source_format="synthetic",
        licence="Apache-2.0",
        assumptions=[
            "made by a generator to a specification: it was not observed anywhere",
            "sessions of stage hNN start with a cold donor (kind root); the others (kind edit) hit NN% of 64K",
        ],
        extra={"preset": "hit-sweep", "hits": list(SWEEP_HITS), "requests": requests, "seed": seed},
    )


def sweep_rows(requests: int, seed: int) -> Iterator[Row]:
    """Stage after stage with nearly the same number of requests; session ids begin with `hNN-`."""
    if requests < 2 * len(SWEEP_HITS):
        raise InputError(f"a hit sweep has {len(SWEEP_HITS)} stages and needs at least {2 * len(SWEEP_HITS)} requests")
    offset_s = 0.0
    for hit, n in zip(SWEEP_HITS, largest_remainder([1.0] * len(SWEEP_HITS), requests), strict=True):
        stage, last_s = f"h{round(100 * hit):02d}-", 0.0
        for row in generate_rows(fixed(n, hit), n, seed):
            moved = _moved(row, stage, offset_s)
            last_s = moved.start_s if moved.start_s is not None else last_s
            yield moved
        offset_s = round(last_s + PAUSE_S, 3)


def _moved(row: Row, stage: str, offset_s: float) -> Row:
    return msgspec.structs.replace(
        row,
        request_id=stage + row.request_id,
        session_id=stage + row.session_id,
        parents=tuple(stage + parent for parent in row.parents),
        prefix_of=stage + row.prefix_of if row.prefix_of is not None else None,
        start_s=round((row.start_s or 0.0) + offset_s, 3),
    )
