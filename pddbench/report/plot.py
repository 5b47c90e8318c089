"""The TTFT plot: the whole percentile spectrum of all arms on a log-percentile axis, with the objective's line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.intervals import as_float
from pddbench.analyze.quantiles import Floats
from pddbench.text import printable

if TYPE_CHECKING:
    from pddbench.analyze.samples import ArmData
    from pddbench.runfolder.load import Run

_TICKS = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)
_BAND = np.unique(np.round(1 - np.logspace(-0.02, -3, 60), 5))
# Okabe and Ito: told apart by colour-blind readers too, and by line style in grey print
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES = ("-", "--", "-.", ":")


def plot_ttft(run: Run, out_dir: Path) -> list[Path]:
    """Write `ttft.png` and `ttft.svg` (TTFT from due by percentile, all arms) into `out_dir`; returns the paths."""
    return plot_dataset(Dataset(run), out_dir)


def plot_dataset(data: Dataset, out_dir: Path) -> list[Path]:
    """`plot_ttft` for a run that has been made ready already."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    most = max((len(part.rows) for part in data.arms.values()), default=1)
    for i, (name, part) in enumerate(data.arms.items()):
        _draw(axes, part, name, COLOURS[i % len(COLOURS)], _STYLES[i % len(_STYLES)])
    _objective(axes, data.slo)
    _dress(axes, data, most)
    return save(figure, out_dir, "ttft")


def spread_axis(q: Floats | float) -> Floats:
    """Where quantile q stands on the axis: decades of 1 - q are equally wide."""
    place: Floats = np.asarray(-np.log10(1 - np.asarray(q, dtype=np.float64)))
    return place


def _draw(axes: Any, part: ArmData, name: str, colour: str, style: str) -> None:
    """One arm: the observed spectrum as steps, a band where an interval exists; failures end the line."""
    ascending = part.values("ttft_sched").ascending
    n = len(ascending)
    if n == 0:
        return
    finite = ascending[np.isfinite(ascending)]
    q = np.arange(len(finite)) / n  # the i-th smallest holds from i/n on
    label = escape(name) + (f" ({n - len(finite)} of {n} failed)" if len(finite) < n else "")
    axes.step(spread_axis(q), finite, where="post", color=colour, linestyle=style, linewidth=1.6, label=label)
    low, high, at = _band(part)
    if len(at) > 1:
        axes.fill_between(spread_axis(at), low, high, color=colour, alpha=0.15, linewidth=0)


def _band(part: ArmData) -> tuple[Floats, Floats, Floats]:
    """Bounds at the quantiles where both exist and are finite."""
    kept = []
    for q in _BAND.tolist():
        figure = part.values("ttft_sched").figure(q, "s")
        low, high = as_float(figure.low), as_float(figure.high)
        if np.isfinite(low) and np.isfinite(high):
            kept.append((low, high, q))
    columns = np.array(kept, dtype=np.float64).reshape(-1, 3).T
    return columns[0], columns[1], columns[2]


def _objective(axes: Any, slo: dict[str, float]) -> None:
    for key in ("ttft_sched_ms", "ttft_ms"):
        if key in slo:
            axes.axhline(slo[key] / 1e3, color="0.35", linewidth=1, linestyle=(0, (1, 2)))
            axes.annotate(
                f"SLO {slo[key]:g} ms",
                (0, slo[key] / 1e3),
                xycoords=("axes fraction", "data"),
                xytext=(4, 3),
                textcoords="offset points",
                ha="left",
                fontsize=8,
                color="0.35",
            )
            return


def _dress(axes: Any, data: Dataset, most: int) -> None:
    """Axes, grid, title and legend."""
    ticks = [tick for tick in _TICKS if tick == 0 or 1 - tick >= 1 / max(most, 2)]
    axes.set_xticks([float(spread_axis(tick)) for tick in ticks], [f"{100 * tick:g}" for tick in ticks])
    axes.set_xlim(0, float(spread_axis(1 - 1 / max(most, 2))) + 0.05)
    if any((np.asarray(line.get_ydata(), dtype=np.float64) > 0).any() for line in axes.get_lines()):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(_seconds)
        axes.yaxis.set_minor_formatter(_seconds_sparse(axes))
    else:  # stopped before any answer came, or nothing but failures
        axes.annotate("no first token was received", (0.5, 0.5), xycoords="axes fraction", ha="center", color="0.35")
    axes.grid(True, which="major", color="0.88", linewidth=0.8)
    axes.set_xlabel("percentile of all planned requests (bands: 95% by session)")
    axes.set_ylabel("TTFT from due")
    axes.set_title(escape(title(data)), fontsize=10)
    axes.tick_params(which="both", labelsize=8)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", frameon=False, fontsize=9)


def title(data: Dataset) -> str:
    """The run's name, and that its WAN is no real one where that is so."""
    manifest = data.run.manifest
    name = printable(str(manifest.get("name", data.run.path.name)), 60)
    wan = (manifest.get("wan") or {}).get("backend")
    return name + (" (WAN: model, not packets)" if wan == "model" else "")


def _seconds(x: float, _: int | None = None) -> str:
    """A time on the axis, with its unit."""
    if x < 1e-3:
        return f"{1e6 * x:g} µs"
    return f"{1e3 * x:g} ms" if x < 1 else f"{x:g} s"


def _seconds_sparse(axes: Any) -> Any:
    """Labels for the minor ticks 2 and 5 when the axis spans little, none otherwise."""
    low, high = axes.get_ylim()
    wide = high / low > 200

    def label(x: float, _: int | None = None) -> str:
        lead = round(x / 10 ** np.floor(np.log10(x)))
        return "" if wide or lead not in (2, 5) else _seconds(x)

    return label


def escape(text: str) -> str:
    """Text that matplotlib shall not read as mathematics."""
    return printable(text, 80).replace("\\", "\\\\").replace("$", r"\$")


def save(figure: Any, out_dir: Path, name: str) -> list[Path]:
    """Write a figure as `name`.png and `name`.svg; returns the paths."""
    paths = [out_dir / f"{name}.png", out_dir / f"{name}.svg"]
    for path, metadata in zip(paths, _metadata(), strict=True):
        figure.savefig(path, metadata=metadata)
    return paths


def _metadata() -> Iterable[dict[str, None]]:
    """No time stamps: the same run gives the same files."""
    return {}, {"Date": None}
