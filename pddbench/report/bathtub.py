"""What `pddbench bathtub` prints: a hit sweep's efficiency, its dips, the revenue over the hit rate, advice."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
import numpy as np

from pddbench import exitcodes
from pddbench.analyze import bathtub
from pddbench.analyze.binomial import t_quantile
from pddbench.analyze.capacity import Ratio
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.quantiles import Floats
from pddbench.analyze.samples import ArmData
from pddbench.errors import InputError
from pddbench.runfolder.load import load
from pddbench.workload.sweep import DONOR

if TYPE_CHECKING:
    import pandas as pd

FILE = "bathtub.json"

_STAGE = re.compile(r"^h(\d\d)-")
LEAST_STAGES = 8
LEAST_ROUNDS = 3
MOST_OVERLAP = 0.1
_NO_VALLEY = "Revenue has no valley beyond the scatter of rounds: more of them (--rounds) would tell."
_WAIVED = {
    "backlog": "a queue that grows is what saturation is",
    "send_lag": "a request that left milliseconds late waits in the queue anyway, and rates come from first tokens",
}
_QUEUED = 1.5  # a stage whose median TTFT is that much above its smallest had a queue


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the sweep: its hit, requests that ended well, and un-hit tokens and requests a second.

    The rate is the slope of the count over the times of first tokens: what went on before the stage is not in it, and
    instances that finish together do not disturb it. With three rounds and more: 95% intervals over rounds.
    """

    hit: float
    requests: int
    requests_s: Ratio
    unhit_tokens_s: Ratio


class Sweep(msgspec.Struct, kw_only=True):
    """An arm's sweep. `length`: median prompt, tokens. `saturated`: there was a queue, so that rates are capacities.

    `overlap`: share of the stages' time in which another stage ran as well: their rates mix. `valley_depth`: revenue
    at the valley / at no hit. `invalid`: trust rules the run broke; `waived`: those broken that a sweep does without.
    """

    arm: str
    length: int
    chunk: int | None
    rounds: int
    stages: list[Stage]
    saturated: bool
    overlap: float
    dips: list[bathtub.Dip]
    revenue: bathtub.Revenue
    valley_depth: Ratio
    advice: str
    invalid: list[str] = []
    waived: list[str] = []


class _Round(msgspec.Struct):
    """One repeat's stages: hits (n,), requests, requests a second, un-hit tokens a second, windows, waits."""

    hit: list[float] = []
    requests: list[int] = []
    requests_s: list[float] = []
    unhit_s: list[float] = []
    windows: list[tuple[float, float]] = []
    queued: list[bool] = []


def sweep(part: ArmData, arm: str, chunk: int | None, cached_price: float) -> Sweep:
    """The sweep of one arm from its rows; `InputError` when its requests are not those of a hit sweep."""
    rows = part.rows
    names = rows["request_id"].astype(str)
    stage = names.str.extract(_STAGE, expand=False)
    if stage.isna().any():  # some sweeps say the stage in the session's name only
        stage = rows["session_id"].astype(str).str.extract(_STAGE, expand=False)
    if stage.isna().any() or stage.nunique() < LEAST_STAGES:
        raise InputError(
            f"arm {arm}: not a hit sweep of at least {LEAST_STAGES} stages (requests hNN-…): make one with "
            "`pddbench bathtub EXPERIMENT`, or `pddbench trace synth --preset hit-sweep`"
        )
    measured = rows[~names.str.endswith(f"-{DONOR}").to_numpy()].assign(stage=stage)
    rounds = [_round(mine) for _, mine in measured.groupby("repeat", sort=True)]
    places = sorted(set.intersection(*(set(one.hit) for one in rounds)))
    if len(places) < LEAST_STAGES:
        raise InputError(f"arm {arm}: fewer than {LEAST_STAGES} stages gave a rate: more --requests a stage")
    hits = np.array(places)
    rate = np.array([_at(one, one.requests_s, places) for one in rounds])
    unhit = np.array([_at(one, one.unhit_s, places) for one in rounds])
    length = int(np.median(measured["input_tokens_planned"]))
    found = [_with_interval(dip, hits, unhit) for dip in bathtub.dips(hits, _middle(unhit), length, chunk)]
    revenue = bathtub.measured_revenue(hits, _middle(rate), length, cached_price)
    depth = _valley_depth(hits, rate, revenue.valley, cached_price)
    return Sweep(
        arm=arm,
        length=length,
        chunk=chunk,
        rounds=len(rounds),
        stages=[
            Stage(hit=hit, requests=sum(one.requests[one.hit.index(hit)] for one in rounds),
                  requests_s=over_rounds(rate[:, i]), unhit_tokens_s=over_rounds(unhit[:, i]))
            for i, hit in enumerate(places)
        ],
        saturated=float(np.mean([queued for one in rounds for queued in one.queued])) > 0.5,
        overlap=max(_overlap(one.windows) for one in rounds),
        dips=found,
        revenue=revenue,
        valley_depth=depth,
        advice=" ".join((bathtub.advice([dip for dip in found if certain(dip)], length, chunk),
                         bathtub.cache_advice(revenue, length) if not _flat(depth) else _NO_VALLEY)),
    )  # fmt: skip


def _round(rows: pd.DataFrame) -> _Round:
    out = _Round()
    for name, mine in rows.groupby("stage", sort=True):
        ok = mine[mine["ok"].to_numpy(dtype=bool)]
        token_s = (ok["sent_s"] + ok["ttft"]).to_numpy()
        order = np.argsort(token_s, kind="stable")
        if len(order) < 2 or not token_s[order[-1]] > token_s[order[0]]:
            continue
        each_s = float(np.polyfit(token_s[order] - token_s[order[0]], np.arange(len(order)), 1)[0])
        hit = ok["cached_tokens"].fillna(ok["cached_tokens_possible"]).fillna(0.0)
        out.hit.append(int(str(name)) / 100)
        out.requests.append(len(ok))
        out.requests_s.append(each_s)
        out.unhit_s.append(each_s * float((ok["input_tokens_planned"] - hit).mean()))
        out.windows.append((float(mine["due_s"].min()), float(token_s[order[-1]])))
        ttft = ok["ttft"].to_numpy()
        out.queued.append(float(np.median(ttft)) > _QUEUED * float(ttft.min()))
    return out


def _at(one: _Round, values: list[float], places: list[float]) -> list[float]:
    return [values[one.hit.index(place)] for place in places]


def _middle(values: Floats) -> Floats:
    """Geometric mean over rounds (rounds, stages) -> (stages,)."""
    out: Floats = np.exp(np.log(np.maximum(values, 1e-12)).mean(axis=0))
    return out


def over_rounds(values: Floats, log: bool = True) -> Ratio:
    """Mean over rounds with its t interval; no bounds below `LEAST_ROUNDS`, or where all are equal (virtual time)."""
    values = np.log(np.maximum(values, 1e-12)) if log else values
    point, n = float(values.mean()), len(values)
    spread = float(values.std(ddof=1)) / math.sqrt(n) if n >= LEAST_ROUNDS else 0.0
    back = math.exp if log else float
    if not spread:
        return Ratio(point=back(point), low=None, high=None)
    t = t_quantile(0.975, n - 1)
    return Ratio(point=back(point), low=back(point - t * spread), high=back(point + t * spread))


def _with_interval(dip: bathtub.Dip, hits: Floats, unhit: Floats) -> bathtub.Dip:
    """The dip's depth in every round against that round's own trend."""
    i = int(np.argmin(np.abs(hits - dip.hit)))
    found = over_rounds(np.array([1 - row[i] / bathtub.trend(hits, row)[i] for row in unhit]), log=False)
    return msgspec.structs.replace(dip, low=found.low, high=found.high)


def certain(dip: bathtub.Dip) -> bool:
    """Whether a dip is more than the scatter of rounds (with one round nothing says otherwise)."""
    return dip.low is None or dip.low > 0


def _flat(depth: Ratio) -> bool:
    """Whether rounds scatter so much that there may be no valley."""
    return depth.high is not None and depth.high >= 1


def _valley_depth(hits: Floats, rate: Floats, valley: float, cached_price: float) -> Ratio:
    """Revenue at the valley / at the lowest hit, over rounds."""
    worth = 1 - hits + cached_price * hits
    i = int(np.argmin(np.abs(hits - valley)))
    return over_rounds((rate[:, i] * worth[i]) / (rate[:, 0] * worth[0]))


def _overlap(windows: list[tuple[float, float]]) -> float:
    """Share of all stages' time that lies in more than one of them."""
    ordered = sorted(windows)
    total = sum(end - begin for begin, end in ordered)
    shared = sum(max(0.0, before[1] - after[0]) for before, after in pairwise(ordered))
    return min(1.0, shared / total) if total > 0 else 0.0


def check_price(cached_price: float) -> None:
    """Raise `InputError` unless the price of a cached token is a share of the input price."""
    if not 0 <= cached_price <= 1:
        raise InputError(f"--cached-price {cached_price:g}: a share of the input price, 0 to 1")


def answer(folder: Path, chunk: int | None, cached_price: float, *, as_json: bool) -> int:
    """Print the sweeps of all arms, write `bathtub.json` and `bathtub.png`; raises `InputError`."""
    check_price(cached_price)
    data = Dataset(load(folder))
    found = [sweep(part, name, chunk, cached_price) for name, part in data.arms.items()]
    for one in found:
        one.invalid, one.waived = _broken(data, one.arm)
    text = msgspec.json.format(msgspec.json.encode(found), indent=2)
    try:
        (data.run.path / FILE).write_bytes(text + b"\n")
    except OSError as error:
        raise InputError(f"{data.run.path}: cannot be written to ({error.strerror})") from error
    plot(found, data.run.path)
    if as_json:
        click.echo(text.decode())
    else:
        for one in found:
            for line in _lines(one, cached_price):
                click.echo(line)
    spoilt = any(one.overlap > MOST_OVERLAP or one.invalid for one in found)
    return exitcodes.INVALID if spoilt else exitcodes.GOOD


def _broken(data: Dataset, arm: str) -> tuple[list[str], list[str]]:
    """Broken trust rules of an arm that matter to a sweep, and those of `_WAIVED`, which do not."""
    from pddbench.analyze import trust

    rules = {one.rule for one in trust.findings(data) if one.level == "invalid" and one.arm in (arm, None)}
    allowed = set(data.run.manifest.get("allow") or [])
    return sorted(rules - allowed - set(_WAIVED)), sorted(rules & set(_WAIVED))


def _lines(one: Sweep, cached_price: float) -> Iterator[str]:
    rounds = f"{one.rounds} rounds" if one.rounds > 1 else "one round, so without intervals"
    yield f"{one.arm}: {len(one.stages)} stages of {one.length:,}-token prompts, {rounds}"
    if one.overlap > MOST_OVERLAP:
        yield (
            f"  invalid: stages share {100 * one.overlap:.0f}% of their time, so their rates mix; spread them "
            "(arrival = 'trace' with a larger time_scale), or let `pddbench bathtub` make the sweep"
        )
        return
    if one.invalid:
        yield f"  invalid: {', '.join(one.invalid)} (see `pddbench report`): the figures say how busy the client was"
    if one.waived:
        why = "; ".join(f"{rule} ({_WAIVED[rule]})" for rule in one.waived)
        yield f"  broken, but waived in a sweep: {why}."
    if not one.saturated:
        yield "  not saturated: the rates are those offered, not those it can do; offer more (--requests)"
    for stage in one.stages:
        yield (
            f"  {100 * stage.hit:>3.0f}%  {_figure(stage.requests_s):>24} requests/s  "
            f"{_figure(stage.unhit_tokens_s, ',.0f'):>28} un-hit tokens/s"
        )
    for dip in one.dips:
        why = (
            f"a tail after {dip.tail_chunk} whole chunks"
            if dip.tail_chunk is not None
            else "not where a tail chunk lies"
        )
        if not certain(dip):
            why = "no more than rounds scatter"
        ends = "" if dip.low is None or dip.high is None else f" [{100 * dip.low:.1f}, {100 * dip.high:.1f}]"
        yield f"  dip at {100 * dip.hit:.0f}% hit, {100 * dip.depth:.1f}%{ends} deep: {why}"
    yield f"  {one.advice}"
    place = f"lowest at {100 * one.revenue.valley:.0f}% hit"
    if not one.revenue.is_bathtub:
        place = f"no valley; {place}"
    elif _flat(one.valley_depth):
        place += f", {_figure(one.valley_depth)} times that at no hit: no more than rounds scatter"
    else:
        place += f", {_figure(one.valley_depth)} times that at no hit"
        if one.revenue.break_even is not None:
            place += f"; as much as without any hit from {100 * one.revenue.break_even:.0f}% on"
    yield f"  revenue (cached tokens at {100 * cached_price:g}%): {place}"


def _figure(one: Ratio, form: str = ".3g") -> str:
    point = format(one.point or 0.0, form)
    return point if one.low is None or one.high is None else f"{point} [{one.low:{form}}, {one.high:{form}}]"


def plot(found: list[Sweep], folder: Path) -> list[Path]:
    """`bathtub.png`, `.svg`: efficiency with its dips, and revenue, over the hit rate."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from pddbench.report.plot import COLOURS, escape, save

    figure = Figure(figsize=(8, 7), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True)
    for i, one in enumerate(found):
        colour = COLOURS[i % len(COLOURS)]
        hit = [100 * stage.hit for stage in one.stages]
        rate = [stage.unhit_tokens_s for stage in one.stages]
        above.plot(hit, [each.point for each in rate], color=colour, label=escape(one.arm))
        if all(each.low is not None and each.high is not None for each in rate):
            ends = [[each.low for each in rate], [each.high for each in rate]]
            above.fill_between(hit, *ends, color=colour, alpha=0.12, linewidth=0)
        below.plot(hit, one.revenue.value, color=colour)
        for dip in one.dips:
            above.axvline(100 * dip.hit, color=colour, linewidth=1, linestyle=":")
        if one.revenue.is_bathtub:
            below.axvline(100 * one.revenue.valley, color=colour, linewidth=1, linestyle="--")
    above.set_ylabel("un-hit tokens/s (dotted: dips)")
    below.set_ylabel("revenue/s, input-token prices (dashed: valley)")
    below.set_xlabel("hit rate, %")
    above.legend(frameon=False)
    return save(figure, folder, "bathtub")
