"""C14: what a third pipeline does that ends on the relay, by routing key and by the size of the relay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import Figure
from pddbench.claims.figures import replicated
from pddbench.claims.model import Found, NotTestable, part, without

if TYPE_CHECKING:
    import pandas as pd

    from pddbench.trace.model import Trace

INF = float("inf")
MINUTES = 90.0  # of arrivals, the least in which an oscillation would show
KEYS = {"md": "MD's hit", "p": "P's hit"}
_FROM_S = 1200.0  # batches and caches have filled by then
_WINDOW_S = 600.0  # of the swing: some hundred requests


class Replicate(NamedTuple):
    """One seed: its run, whose arms are `two_N`, `md_N`, `p_N` with N streams on the relay, and its trace."""

    data: Dataset
    trace: Trace


def c14(seeds: Sequence[Replicate], least_minutes: float = MINUTES) -> Found:
    """Does load flow back to the relay until it collapses, and does it swing? Replicates are seeds."""
    minutes = min(_minutes(seed.data) for seed in seeds)
    if minutes < least_minutes:
        raise NotTestable(f"{minutes:.0f} virtual minutes of arrivals: {least_minutes:.0f} are the least")
    sizes = sorted(int(name.removeprefix("two_")) for name in seeds[0].data.arms if name.startswith("two_"))
    small, key = sizes[0], KEYS["md"]

    def over(measure: Callable[[Replicate], float], unit: str = "") -> Figure:
        return replicated([measure(seed) for seed in seeds], unit)

    return Found(
        where="simulated",
        parts=[
            part(f"hit at P - hit at MD, by {key}", (0.1, INF), over(lambda s: _gap(s, f"md_{small}"), "share")),
            part(f"relay's token share, three pipelines / two, by {key}", (1.5, INF),
                 over(lambda s: _share(s, f"md_{small}") / _share(s, f"two_{small}"))),
            part(f"collapse: TTFT P90, three / two, {small} streams on the relay, by {key}", (2.0, INF),
                 over(lambda s: _wait(s, f"md_{small}") / _wait(s, f"two_{small}"))),
            part("oscillation: swing of the share that ends on the relay, largest - least of 10 minutes", (0.2, INF),
                 over(lambda s: _swing(s, f"md_{small}"), "share")),
        ],
        off=[
            without("hit at P - hit at MD, two pipelines", (-0.01, 0.01),
                    over(lambda s: _gap(s, f"two_{small}"), "share")),
            without("swing of the share that ends on the relay, two pipelines", (0.0, 0.0),
                    over(lambda s: _swing(s, f"two_{small}"), "share")),
        ],
        note=(
            f"{len(seeds)} seeds of at least {minutes:.0f} minutes of arrivals. By MD's hit it does not swing, it "
            "steps: what ends on the relay never reaches MD, so later turns of that session miss there and end on the "
            "relay too. TTFT P90, three / two, by streams on the relay: " + _by_size(seeds, sizes)
        ),
        hangs_on=(
            "the routing key, and the relay's streams against the whole decode load. 8 streams of 64K are what 8 H20 "
            "hold beside DeepSeek-R1 (0.5 M tokens, docs/emulator.md); fails (ratio of at least 2) with "
            + (", ".join(_failing(seeds, sizes)) or "none of these sizes")
        ),
    )  # fmt: skip


def _by_size(seeds: Sequence[Replicate], sizes: Sequence[int]) -> str:
    words = []
    for size in sizes:
        for key, name in KEYS.items():
            found = _waits(seeds, key, size)
            words.append(f"{size} by {name} {found.point:.1f} [{found.low:.1f}, {found.high:.1f}]")
    return ", ".join(words)


def _waits(seeds: Sequence[Replicate], key: str, size: int) -> Figure:
    return replicated([_wait(seed, f"{key}_{size}") / _wait(seed, f"two_{size}") for seed in seeds], "")


def _failing(seeds: Sequence[Replicate], sizes: Sequence[int]) -> list[str]:
    return [f"{size} streams by {name}" for size in sizes for key, name in KEYS.items()
            if float(_waits(seeds, key, size).low or 0.0) >= 2.0]  # fmt: skip


def _arrivals_s(rows: pd.DataFrame) -> tuple[float, float]:
    """When the first and the last session arrived."""
    first = rows.groupby("session_id")["due_s"].min()
    return float(first.min()), float(first.max())


def _minutes(data: Dataset) -> float:
    begin, end = _arrivals_s(data.arms[data.run.arms[0]].rows)
    return (end - begin) / 60


def _steady(seed: Replicate, arm: str) -> pd.DataFrame:
    """Requests due after the start and before the last session has come."""
    rows = seed.data.arms[arm].rows
    begin, end = _arrivals_s(rows)
    due = rows["due_s"]
    found: pd.DataFrame = rows[(due >= begin + min(_FROM_S, (end - begin) / 4)) & (due <= end)]
    return found


def _gap(seed: Replicate, arm: str) -> float:
    """Token-weighted hit at P - at MD, caches without bound: MD has the context of what went there, P of everything."""
    rows = seed.data.arms[arm].rows
    stays = set(rows.loc[rows["pipeline"] == "P-RLD", "request_id"])
    has: dict[str, int] = {}  # request -> tokens from the start of its context that MD holds
    lost: dict[str, int] = {}
    for row in seed.trace.rows:
        hit = min(row.prefix_tokens, has.get(row.prefix_of, 0)) if row.prefix_of else 0
        lost[row.request_id] = row.prefix_tokens - hit
        has[row.request_id] = hit if row.request_id in stays else row.input_tokens + row.output_tokens
    steady = _steady(seed, arm)
    gone = sum(lost[name] for name in steady["request_id"])
    return gone / float(steady["input_tokens_planned"].sum())


def _share(seed: Replicate, arm: str) -> float:
    rows = _steady(seed, arm)
    return float(rows["tokens_rld"].sum() / rows["completion_tokens"].sum())


def _wait(seed: Replicate, arm: str) -> float:
    return float(_steady(seed, arm)["ttft"].quantile(0.9))


def _swing(seed: Replicate, arm: str) -> float:
    rows = _steady(seed, arm)
    window = (rows["due_s"] // _WINDOW_S).to_numpy()
    ends = (rows["pipeline"] == "P-RLD").to_numpy(dtype=float)
    shares = [ends[window == w].mean() for w in np.unique(window) if (window == w).sum() >= 50]
    return float(max(shares) - min(shares)) if shares else 0.0
