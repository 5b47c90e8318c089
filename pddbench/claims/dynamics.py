"""Claims about what builds up: oscillating policies, tail chunks under saturation, revenue over the hit rate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pddbench.analyze import bathtub
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.quantiles import Floats
from pddbench.claims.model import Found, NotTestable, part
from pddbench.claims.scenes import Scenes

if TYPE_CHECKING:
    from pddbench.deploy.emulator.spec import Chip

INF = float("inf")
LENGTH = 65_536
_PROMPTS = 120  # a point of the sweep: enough that the last prompt's end does not matter


def c14(scenes: Scenes) -> Found:
    """A third pipeline that ends on the relay: does load flow back to it until it collapses?"""
    roles = {"RLD": {"chip": "A", "count": 1, "max_batch": 32}}
    arms = (
        {"name": "two", "emulated": "pdd", "roles": roles},
        {"name": "three", "emulated": "pdd", "roles": roles, "policy": "three", "route_by": "md"},
        {"name": "three-by-p", "emulated": "pdd", "roles": roles, "policy": "three", "route_by": "p"},
    )
    data = scenes.run("policies", "pdd-agentic", arms, rate=0.05)
    minutes = float((data.arms["two"].rows["due_s"].max() - data.arms["two"].rows["due_s"].min()) / 60)
    if minutes < 30:
        raise NotTestable(f"{minutes:.0f} virtual minutes are too short to see an oscillation")
    share = {name: arm.point("rld_tokens", "share") for name, arm in data.arms.items()}
    return Found(
        where="simulated",
        parts=[
            part("relay's token share, three pipelines / two", (1.5, INF), share["three"] / share["two"]),
            part("time a token on the relay, last third / first third", (2.0, INF), _growth(data, "three")),
        ],
        note=(
            f"{minutes:.0f} virtual minutes, one RLD of 32 streams; relay's share {100 * share['two']:.1f}% with "
            "two pipelines, "
            f"{100 * share['three']:.1f}% with three (routed by MD's hit), {100 * share['three-by-p']:.1f}% (by P's "
            "hit); two "
            f"pipelines grow {_growth(data, 'two'):.2f}-fold. A collapse is read as at least a doubling"
        ),
    )


def _growth(data: Dataset, arm: str) -> float:
    """Mean time per output token of requests that used the relay: last third of the run / first third."""
    rows = data.arms[arm].rows
    rows = rows[rows["pipeline"].isin(["P-RLD", "P-RLD-MD"]) & np.isfinite(rows["tpot"])]
    due = rows["due_s"].to_numpy()
    if len(rows) < 30:
        return float("nan")
    first, last = np.quantile(due, [1 / 3, 2 / 3])
    tpot = rows["tpot"].to_numpy()
    return float(tpot[due >= last].mean() / tpot[due <= first].mean())


def _measured(found: tuple[int, int], _instance: int) -> tuple[int, int]:
    return found


def _ignore(_instance: int) -> None:
    pass


def saturated(chip: Chip, hit: float, chunk: int, *, packing: bool, spread: float = 0.0, seed: int = 1) -> float:
    """Prompts a second of one saturated prefill instance, 64K each (`spread`: +- that share), all at one hit."""
    from pddbench.deploy.emulator.prefill import Prefill
    from pddbench.deploy.emulator.spec import RoleSpec
    from pddbench.wan.clock import VirtualClock

    clock = VirtualClock()
    prefill = Prefill(clock, RoleSpec(chip, 1), chunk_tokens=chunk, packing=packing)
    sizes = LENGTH * (1 + spread * np.random.default_rng(seed).uniform(-1, 1, _PROMPTS))
    for rid, size in enumerate(sizes):
        fresh = max(1, round(float(size) * (1 - hit)))
        prefix = round(float(size)) - fresh
        prefill.submit(rid, partial(_measured, (fresh, prefix)), _ignore)
    clock.run()
    return _PROMPTS / clock.now()


def _sweep(chunk: int, *, packing: bool, spread: float = 0.0) -> tuple[Floats, Floats]:
    from pddbench.deploy.presets import CHIPS

    # a step with a few tokens still reads the weights once, as a decode step does
    chip = msgspec.structs.replace(CHIPS["A"], prefill_a_s=0.0, prefill_step_s=CHIPS["A"].decode_c0_s)
    hit = np.arange(0, 0.99, 0.02)
    return hit, np.array([saturated(chip, float(h), chunk, packing=packing, spread=spread) for h in hit])


def c19(_: Scenes) -> Found:
    """Dips of efficiency from tail chunks, at fixed length under saturation."""
    found = {}
    for name, chunk, spread in (("16K", 16_384, 0.0), ("8K", 8192, 0.0), ("varied", 16_384, 0.2)):
        hit, rate = _sweep(chunk, packing=False, spread=spread)
        found[name] = bathtub.dips(hit, bathtub.efficiency(hit, rate, LENGTH), LENGTH, chunk)
    places = [dip.hit for dip in found["16K"]]
    at_tails = [dip for dip in found["16K"] if dip.tail_chunk is not None]
    parts = [part("dips where a tail chunk begins, chunks of 16K", (3.0, INF), float(len(at_tails)))]
    parts += [
        part(f"a dip near {100 * near:.0f}% hit", (near - 0.05, near + 0.05), _nearest(places, near), "share")
        for near in (0.2, 0.4, 0.7)
    ]
    parts.append(part("dips left when lengths vary by 20%", (0.0, 0.0), float(len(found["varied"]))))
    return Found(
        where="simulated",
        parts=parts,
        note=(
            f"64K prompts, chunks of 16K: dips at {_listed(found['16K'])}; of 8K: {_listed(found['8K'])}; lengths "
            "that vary by 20%: "
            f"{_listed(found['varied'])}. Efficiency (un-hit tokens/s) dips, raw requests/s still rise. A tail has "
            "a step of its "
            "own that costs at least one reading of the weights (21.4 ms); no fixed cost a prompt, which would hide "
            "them. " + bathtub.advice(found["16K"], LENGTH, 16_384)
        ),
    )


def _nearest(places: list[float], to: float) -> float:
    return min(places, key=partial(_distance, to)) if places else float("nan")


def _distance(to: float, place: float) -> float:
    return abs(place - to)


def _listed(found: list[bathtub.Dip]) -> str:
    return ", ".join(f"{100 * dip.hit:.0f}%" for dip in found) or "none"


def c20(_: Scenes) -> Found:
    """Revenue a GPU-second over the hit rate: a valley in between."""
    from pddbench.deploy.presets import CHIPS

    chip = CHIPS["A"]
    law = bathtub.Law(fixed_s=chip.prefill_a_s, tokens_s=1 / chip.prefill_b_s, attention_s=chip.prefill_c_s)
    shapes = {price: bathtub.revenue(law, LENGTH, price) for price in (0.10, 0.25)}
    linear = msgspec.structs.replace(law, attention_s=0.0)
    said = [
        f"cached at {100 * price:.0f}%: "
        + (
            f"lowest at {100 * found.valley:.0f}% hit"
            if found.is_bathtub
            else f"no valley, lowest at {100 * found.valley:.0f}%"
        )
        + (f", above no hit from {100 * found.break_even:.0f}% on" if found.break_even is not None else "")
        for price, found in shapes.items()
    ]
    bare = bathtub.revenue(msgspec.structs.replace(law, fixed_s=0.0), LENGTH, 0.10)
    rises = bathtub.rises_with_hit(linear, LENGTH, 0.10)
    return Found(
        where="arithmetic",
        parts=[part("revenue falls, then rises (1: yes), cached at 10%", (1.0, 1.0), float(shapes[0.10].is_bathtub)),
               part("revenue falls, then rises (1: yes), cached at 25%", (1.0, 1.0), float(shapes[0.25].is_bathtub))],
        note=(
            f"64K prompts by the emulator's prefill law (8xH200, MiniMax-M2.5); {'; '.join(said)}. without a fixed "
            "cost a prompt, "
            f"at 10%: lowest at {100 * bare.valley:.0f}%{'' if bare.is_bathtub else ' (no valley)'}. Without the "
            "attention term the "
            f"curve is monotone ({'rising' if rises else 'falling'} at 10%): a valley needs it"
        ),
    )  # fmt: skip
