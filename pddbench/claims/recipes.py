"""The traces of `workloads/claims` by name, so that those too large for a repository are made again where needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from pddbench.errors import InputError, suggest
from pddbench.trace.model import Header, Row, Trace

LENGTH, BLOCK = 65_536, 64
SINGULAR_TOKENS = 131_072  # prompts from here on are singular traffic (C15)
SUFFIX = ".trace.jsonl.zst"


def fixed(requests: int, output_tokens: float, seed: int) -> Trace:
    """Prompts of 64K at 90% hit (preset `fixed-64k-h90`), answers of `output_tokens`."""
    from pddbench.trace.quota.generate import generate
    from pddbench.trace.quota.presets import preset

    spec = preset("fixed-64k-h90", requests)
    spec = msgspec.structs.replace(spec, output=msgspec.structs.replace(spec.output, mean=float(output_tokens)))
    return generate(spec, requests, seed)


def agentic(requests: int, seed: int) -> Trace:
    """Preset `pdd-agentic`."""
    from pddbench.trace.quota.generate import generate
    from pddbench.trace.quota.presets import preset

    return generate(preset("pdd-agentic", requests), requests, seed)


def short(trace: Trace) -> Trace:
    """The same without singular traffic: no prompt is as long (what a prompt shares is cut with it)."""
    most = SINGULAR_TOKENS - 1
    rows = [msgspec.structs.replace(row, input_tokens=min(row.input_tokens, most),
                                    prefix_tokens=min(row.prefix_tokens, min(row.input_tokens, most) - 1))
            for row in trace.rows]  # fmt: skip
    return Trace(trace.header, rows)


def saturated_sweep(seed: int = 1, shares: tuple[float, float] = (1.0, 1.0), prompts: int = 12) -> Trace:
    """Hits of 0, 2, ... 98%: for each a cold donor and `prompts` that keep so much of it, all there from the start.

    Lengths are drawn evenly between two shares of 64K, each with the hit of its stage.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    longest = round(LENGTH * shares[1])
    rows = []
    for percent in range(0, 100, 2):
        donor = f"h{percent:02d}"
        rows.append(Row(donor, donor, 0, longest, 1, start_s=0.0))
        for n in range(1, prompts + 1):
            length = round(LENGTH * rng.uniform(*shares))
            kept = length * percent // 100 // BLOCK * BLOCK
            rows.append(Row(f"{donor}.{n}", f"{donor}.{n}", 0, length, 1, start_s=0.0, kind="edit",
                            prefix_of=donor if kept else None, prefix_tokens=kept))  # fmt: skip
    return Trace(Header(source="hits of 0, 2, ... 98% at saturation", licence="Apache-2.0"), rows)


RECIPES: dict[str, Callable[[int], Trace]] = {
    "fixed-64k-h90": lambda seed: fixed(480, 1024, seed),
    "fixed-64k-h90-256": lambda seed: fixed(192, 256, seed),
    "fixed-64k-h90-2400": lambda seed: fixed(2_400, 1024, seed),
    "fixed-64k-h90-66000": lambda seed: fixed(66_000, 1024, seed),
    "pdd-agentic": lambda seed: agentic(1_500, seed),
    "pdd-agentic-9900": lambda seed: agentic(9_900, seed),
    "pdd-agentic-20000": lambda seed: agentic(20_000, seed),
    "pdd-agentic-short": lambda seed: short(agentic(1_500, seed)),
    "pdd-agentic-short-20000": lambda seed: short(agentic(20_000, seed)),
    "saturated-sweep": lambda _: saturated_sweep(),
    "saturated-sweep-alike": lambda seed: saturated_sweep(seed, (0.995, 1.0)),
    "saturated-sweep-varied": lambda seed: saturated_sweep(seed, (0.8, 1.2), 24),
}


def trace_for(path: str, seed: int) -> Trace:
    """The trace that an experiment names: its file if it is there and seed 1 is asked for, else made by its recipe."""
    from pddbench.trace.read import read_trace

    if seed == 1 and Path(path).exists():
        return read_trace(Path(path))
    name = Path(path).name.removesuffix(SUFFIX)
    if name not in RECIPES:
        raise InputError(f"{path}: no such trace, and no recipe for {name!r}: {suggest(name, list(RECIPES))}")
    return RECIPES[name](seed)
