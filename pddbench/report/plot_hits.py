"""Served against planned hits, request by request: on the diagonal an endpoint's cache did what the trace promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.quantiles import Floats
from pddbench.report import plot

_LEAST_SHARE = 1e-4  # of a prompt that is not hit; smaller shares are drawn here
_MARKS = ("o", "^", "s", "D", "v", "P", "X")


def plot_hits(data: Dataset, out_dir: Path) -> list[Path]:
    """Write `hits.png` and `hits.svg`; nothing where no endpoint reports cached tokens. Returns the paths."""
    shares = {name: _unhit(part.rows) for name, part in data.arms.items()}
    if not any(len(planned) for planned, _ in shares.values()):
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5.4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([_LEAST_SHARE, 1], [_LEAST_SHARE, 1], color="0.7", linewidth=1, zorder=1)
    for i, (name, (planned, served)) in enumerate(shares.items()):
        _draw(axes, i, name, planned, served)
    axes.set(xscale="log", yscale="log", xlim=(_LEAST_SHARE, 1.2), ylim=(_LEAST_SHARE, 1.2), aspect="equal")
    axes.set_xlabel("planned share of the prompt that is not hit")
    axes.set_ylabel("served share of the prompt that is not hit")
    axes.set_title(plot.escape(plot.title(data)), fontsize=10)
    axes.set_axisbelow(True)
    axes.grid(True, color="0.92", linewidth=0.8)
    axes.legend(loc="upper left", frameon=False, fontsize=8)
    return plot.save(figure, out_dir, "hits")


def _unhit(rows: Any) -> tuple[Floats, Floats]:
    """Planned and served shares of each prompt that is not hit, for requests whose served hit is known."""
    columns = ["input_tokens_planned", "cached_tokens_planned", "cached_tokens"]
    size, planned, served = rows[columns].dropna().to_numpy(dtype=np.float64).T
    return np.clip(1 - planned / size, _LEAST_SHARE, 1), np.clip(1 - served / size, _LEAST_SHARE, 1)


def _draw(axes: Any, number: int, name: str, planned: Floats, served: Floats) -> None:
    """One arm, with how many requests lie on, above and below the diagonal in its label."""
    less, more = int((served > planned).sum()), int((served < planned).sum())
    label = f"{plot.escape(name)}: {len(planned) - less - more} as planned, {less} hit less, {more} more"
    colour = plot.COLOURS[number % len(plot.COLOURS)]
    mark = _MARKS[number % len(_MARKS)]
    planned, served = _apart(planned, served)
    axes.scatter(planned, served, s=14, marker=mark, facecolors="none", edgecolors=colour, linewidths=0.8, label=label)


def _apart(planned: Floats, served: Floats) -> tuple[Floats, Floats]:
    """One of all points that would be drawn on the same dot (a 400th of a decade): the picture is the same."""
    dots = np.rint(np.log10(np.column_stack([planned, served])) * 400)
    _, first = np.unique(dots, axis=0, return_index=True)
    return planned[first], served[first]
