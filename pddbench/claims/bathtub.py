"""C19 and C20: hits from 0 to 98% at saturation; dips of tail chunks, and what a chip second earns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pddbench.analyze import bathtub
from pddbench.analyze.binomial import t_quantile
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import Figure
from pddbench.analyze.quantiles import Floats
from pddbench.claims.figures import replicated
from pddbench.claims.model import Found, OffPart, part, without

INF = float("inf")
LENGTH, CHUNK = 65_536, 16_384
HIT = np.arange(0, 100, 2) / 100
CLAIMED = (0.20, 0.40, 0.70)
LOST = (0.001, INF)  # share of efficiency: a dip
PRICES = (0.10, 0.25)  # of a hit token, in prices of another


def stage_s(data: Dataset, arm: str) -> Floats:
    """Prefill seconds a prompt at each of `HIT` on one saturated instance (after the stage's cold donor)."""
    rows = data.arms[arm].rows
    stage = rows["request_id"].str.slice(1, 3).astype(int) // 2
    ends = (rows["sent_s"] + rows["ttft"]).groupby(stage).agg(["min", "max", "size"]).sort_index()
    out: Floats = ((ends["max"] - ends["min"]) / (ends["size"] - 1)).to_numpy()
    return out


def c19(alike: Sequence[Dataset], varied: Sequence[Dataset]) -> Found:
    """Dips of efficiency from tail chunks at lengths (nearly) alike; smeared when they vary by 20%. Seeds each."""
    curves = [_efficiency(data) for data in alike]
    smeared = [_efficiency(data) for data in varied]
    found = dips(curves)
    tails = [hit for hit in found if bathtub.tail_chunk(hit, LENGTH, CHUNK) is not None]
    raw = np.mean([bathtub.efficiency(HIT, 1 / stage_s(data, "tails"), LENGTH) for data in alike], axis=0)
    alone = [dip.hit for dip in bathtub.dips(HIT, raw, LENGTH, CHUNK)]
    parts = [part(f"efficiency lost at {100 * hit:.0f}% hit, against 2 points above", LOST, _lost(curves, hit))
             for hit in tails]  # fmt: skip
    parts += [part(f"nearest dip to {100 * near:.0f}% hit", (near - 0.05, near + 0.05), _nearest(tails, near), "share")
              for near in CLAIMED]  # fmt: skip
    gone = [without(f"efficiency lost at {100 * hit:.0f}% hit when lengths vary by 20%", (-0.005, 0.005),
                    _lost(smeared, hit), agrees=LOST) for hit in tails]  # fmt: skip
    return Found(
        where="simulated",
        parts=parts,
        off=gone,
        note=(
            f"dips by interval at {_listed(found)} hit ({len(tails)} where a tail of 16K begins); "
            f"when lengths vary by 20% at {_listed(dips(smeared))}. Prompts of 64K or 0.5% less, chunks of 16K that "
            "share no step; efficiency against an instance that does not chunk, so that the law's own slope cancels. "
            f"From its own curve alone, which slopes, `pddbench bathtub` (1% deep at least) sees {_listed(alone)}. "
            "'Near' is read as within 5 points. Requests a second rise all the same"
        ),
        hangs_on=(
            "chunk / length sets the places (16K / 64K: below 25, 50, 75%; 8K: every 12.5%; no chunk size gives 20, 40 "
            "and 70% at one length), the step of a tail (21.4 ms, a decode step without streams) the depth"
        ),
    )


def dips(curves: Sequence[Floats]) -> list[float]:
    """Hits at which efficiency is lower than on either side in the mean, and surely lower than just above.

    Surely: by Student's interval over replicates at 5% for all places together (Bonferroni).
    """
    values = np.array(curves)
    mean, n = values.mean(axis=0), len(values)
    reach = t_quantile(1 - 0.025 / (len(HIT) - 2), n - 1) / np.sqrt(n)
    out = []
    for i in range(1, len(HIT) - 1):
        rise = values[:, i + 1] - values[:, i]
        if mean[i] <= mean[i - 1] and rise.mean() > reach * rise.std(ddof=1) and rise.mean() > 1e-6:
            out.append(float(HIT[i]))
    return out


def _efficiency(data: Dataset) -> Floats:
    """Of chunked prefill against prompts in one step, so that attention and fixed costs cancel."""
    value: Floats = stage_s(data, "off") / stage_s(data, "tails")
    return value


def _lost(curves: Sequence[Floats], hit: float) -> Figure:
    """How much lower efficiency is at a hit than at the next of the sweep, relative."""
    at = int(np.argmin(np.abs(HIT - hit)))
    return replicated([1 - float(curve[at] / curve[at + 1]) for curve in curves], "share")


def _nearest(places: Sequence[float], to: float) -> float:
    return min(places, key=lambda place: abs(place - to), default=float("nan"))


def _listed(hits: Sequence[float]) -> str:
    return ", ".join(f"{100 * hit:.0f}%" for hit in hits) or "none"


def c20(seeds: Sequence[Dataset]) -> Found:
    """Revenue a chip second over the hit rate: a valley in between? Arms: `measured` law, `h200` by roofline."""
    parts, said = [], []
    for arm, law in (("measured", "measured law"), ("h200", "roofline of 8 H200")):
        for price in PRICES:
            curves = [_revenue(stage_s(data, arm), price) for data in seeds]
            where = f"{law}, cached at {100 * price:.0f}%"
            parts += [part(f"revenue at no hit / lowest, {where}", (1.01, INF), _over(curves, _fall)),
                      part(f"revenue at 98% hit / lowest, {where}", (1.01, INF), _over(curves, _rise))]  # fmt: skip
            at = _over(curves, _valley)
            said.append(f"{where} {100 * float(at.point or 0.0):.0f}%")
    return Found(
        where="simulated",
        parts=parts,
        off=_no_attention(),
        note=(
            f"{len(seeds)} seeds, prompts of 64K or up to 0.5% less, one saturated instance; revenue is lowest at "
            f"a hit of: {'; '.join(said)}"
        ),
        hangs_on=(
            "the fixed cost of a request, 0.395 s in the fit of MiniMax-M2.5 on 8 x H200 (roofline: 0): with hits "
            f"billed at 10% there is a valley below {1e3 * _most_fixed_s(0.10):.0f} ms, at 25% below "
            f"{1e3 * _most_fixed_s(0.25):.0f} ms"
        ),
    )


def _revenue(seconds: Floats, price: float) -> Floats:
    """What a second earns, in prices of an un-hit token x tokens a second."""
    value: Floats = ((1 - HIT) + price * HIT) * LENGTH / seconds
    return value


def _over(curves: Sequence[Floats], measure: Callable[[Floats], float]) -> Figure:
    return replicated([measure(curve) for curve in curves], "")


def _fall(curve: Floats) -> float:
    return float(curve[0] / curve.min())


def _rise(curve: Floats) -> float:
    return float(curve[-1] / curve.min())


def _valley(curve: Floats) -> float:
    return float(HIT[curve.argmin()])


def _law(fixed_s: float, attention_s: float | None = None) -> bathtub.Law:
    from pddbench.deploy.presets import CHIPS

    chip = CHIPS["A"]
    attention_s = chip.prefill_c_s if attention_s is None else attention_s
    return bathtub.Law(fixed_s=fixed_s, tokens_s=1 / chip.prefill_b_s, attention_s=attention_s)


def _no_attention() -> list[OffPart]:
    """Without the attention term the law is linear, and revenue monotone."""
    from pddbench.deploy.presets import CHIPS

    out = []
    for price in PRICES:
        law = _law(CHIPS["A"].prefill_a_s, attention_s=0.0)
        curve = np.array(bathtub.revenue(law, LENGTH, price, HIT.tolist()).value)
        out.append(without(f"lesser end / lowest without attention, cached at {100 * price:.0f}%", (1.0, 1.01),
                           min(_fall(curve), _rise(curve))))  # fmt: skip
    return out


def _most_fixed_s(price: float) -> float:
    """The largest fixed cost of a request, seconds, with which revenue still rises again by 1% up to 98% hit."""
    low, high = 0.0, 10.0
    for _ in range(40):
        middle = (low + high) / 2
        rises = _rise(np.array(bathtub.revenue(_law(middle), LENGTH, price, HIT.tolist()).value)) > 1.01
        low, high = (middle, high) if rises else (low, middle)
    return low
