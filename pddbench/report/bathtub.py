"""What `pddbench bathtub` prints: a hit sweep's efficiency, its dips, the revenue over the hit rate, advice."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import msgspec
import numpy as np

from pddbench import exitcodes
from pddbench.analyze import bathtub
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.samples import ArmData
from pddbench.errors import InputError
from pddbench.runfolder.load import load

_STAGE = re.compile(r"h(\d\d)-")
LEAST_STAGES = 8
MOST_OVERLAP = 0.1
_QUEUED = 1.5  # a stage whose median TTFT is that much above its smallest had a queue


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of the sweep: its hit, requests that ended well, and un-hit tokens and requests a second, between
    the first tokens of its first and last one."""

    hit: float
    requests: int
    requests_s: float
    unhit_tokens_s: float


class Sweep(msgspec.Struct, kw_only=True):
    """An arm's sweep. `length`: median prompt, tokens. `saturated`: there was a queue, so that rates are capacities.

    `overlap`: share of the stages' time in which another stage ran as well: their rates mix.
    """

    arm: str
    length: int
    chunk: int | None
    stages: list[Stage]
    saturated: bool
    overlap: float
    dips: list[bathtub.Dip]
    revenue: bathtub.Revenue
    advice: str


def sweep(part: ArmData, arm: str, chunk: int | None, cached_price: float) -> Sweep:
    """The sweep of one arm from its rows; `InputError` when its sessions are not those of a hit sweep."""
    rows = part.rows
    stage = rows["session_id"].astype(str).str.extract(_STAGE, expand=False)
    if stage.isna().any() or stage.nunique() < LEAST_STAGES:
        raise InputError(
            f"arm {arm}: not a hit sweep of at least {LEAST_STAGES} stages (sessions hNN-…): make one with "
            "`pddbench trace synth --preset hit-sweep`"
        )
    stages, waits, windows = [], [], []
    for name, mine in rows.groupby(stage.to_numpy(), sort=True):
        ok = mine[mine["ok"].to_numpy(dtype=bool)]
        token_s = (ok["sent_s"] + ok["ttft"]).to_numpy()
        order = np.argsort(token_s, kind="stable")
        span = float(token_s[order[-1]] - token_s[order[0]]) if len(order) > 1 else 0.0
        if not span > 0:
            continue
        # from first token to first token: what went on before the stage (an earlier one's queue) is not in it
        hit = ok["cached_tokens"].fillna(ok["cached_tokens_possible"]).fillna(0.0)
        unhit = float((ok["input_tokens_planned"] - hit).to_numpy()[order[1:]].sum())
        each_s = (len(ok) - 1) / span
        stages.append(Stage(hit=int(name) / 100, requests=len(ok), requests_s=each_s, unhit_tokens_s=unhit / span))
        windows.append((float(mine["due_s"].min()), float(token_s[order[-1]])))
        ttft = ok["ttft"].to_numpy()
        waits.append(float(np.median(ttft)) > _QUEUED * float(ttft.min()))
    length = int(np.median(rows["input_tokens_planned"]))
    hits = np.array([one.hit for one in stages])
    found = bathtub.dips(hits, np.array([one.unhit_tokens_s for one in stages]), length, chunk)
    rate = np.array([one.requests_s for one in stages])
    return Sweep(
        arm=arm,
        length=length,
        chunk=chunk,
        stages=stages,
        saturated=float(np.mean(waits)) > 0.5,
        overlap=_overlap(windows),
        dips=found,
        revenue=bathtub.measured_revenue(hits, rate, length, cached_price),
        advice=bathtub.advice(found, length, chunk),
    )


def _overlap(windows: list[tuple[float, float]]) -> float:
    """Share of all stages' time that lies in more than one of them."""
    ordered = sorted(windows)
    total = sum(end - begin for begin, end in ordered)
    shared = sum(max(0.0, before[1] - after[0]) for before, after in pairwise(ordered))
    return min(1.0, shared / total) if total > 0 else 0.0


def answer(folder: Path, chunk: int | None, cached_price: float, *, as_json: bool) -> int:
    """Print the sweeps of all arms and write `bathtub.png`; raises `InputError`."""
    if not 0 <= cached_price <= 1:
        raise InputError(f"--cached-price {cached_price:g}: a share of the input price, 0 to 1")
    data = Dataset(load(folder))
    found = [sweep(part, name, chunk, cached_price) for name, part in data.arms.items()]
    plot(found, data.run.path)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        for one in found:
            for line in _lines(one, cached_price):
                click.echo(line)
    return exitcodes.INVALID if any(one.overlap > MOST_OVERLAP for one in found) else exitcodes.GOOD


def _lines(one: Sweep, cached_price: float) -> Iterator[str]:
    yield f"{one.arm}: {len(one.stages)} stages of {one.length:,}-token prompts"
    if one.overlap > MOST_OVERLAP:
        yield (
            f"  invalid: stages share {100 * one.overlap:.0f}% of their time, so their rates mix; spread them "
            "(arrival = 'trace' with a larger time_scale)"
        )
        return
    if not one.saturated:
        yield "  not saturated: the rates are those offered, not those it can do; offer more (--session-rate)"
    for stage in one.stages:
        rates = f"{stage.requests_s:>9.4g} requests/s  {stage.unhit_tokens_s:>10,.0f} un-hit tokens/s"
        yield f"  {100 * stage.hit:>3.0f}%  {rates}"
    for dip in one.dips:
        why = (
            f"a tail after {dip.tail_chunk} whole chunks"
            if dip.tail_chunk is not None
            else "not where a tail chunk lies"
        )
        yield f"  dip at {100 * dip.hit:.0f}% hit, {100 * dip.depth:.1f}% deep: {why}"
    yield f"  {one.advice}"
    place = f"lowest at {100 * one.revenue.valley:.0f}% hit"
    if not one.revenue.is_bathtub:
        place = f"no valley; {place}"
    elif one.revenue.break_even is not None:
        place += f", as much as without any hit from {100 * one.revenue.break_even:.0f}% on"
    yield f"  revenue (cached tokens at {100 * cached_price:g}%): {place}"


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
        above.plot(hit, [stage.unhit_tokens_s for stage in one.stages], color=colour, label=escape(one.arm))
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
