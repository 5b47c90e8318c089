"""Swim-lanes: what P, the link, RLD and MD did for one request, and for all requests of a window of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pddbench.errors import InputError
from pddbench.text import printable

if TYPE_CHECKING:
    import pandas as pd

MOST_REQUESTS = 60
_COLOURS = {"wait": "#bbbbbb", "P": "#0072B2", "link": "#E69F00", "RLD": "#009E73", "seam": "#D55E00", "MD": "#CC79A7"}
_WORDS = {
    "wait": "waits for P",
    "P": "prefill",
    "link": "KV on its way",
    "RLD": "decodes beside P",
    "seam": "ids recomputed",
    "MD": "decodes in cluster B",
}


class Bar(NamedTuple):
    """A stretch of time of one role for one request; seconds since t0."""

    lane: str
    start_s: float
    end_s: float


def load_roles(folder: Path, arm: str | None, repeat: int) -> pd.DataFrame:
    """The `roles` table of one run of an arm (the only arm, if there is one). Raises `InputError`."""
    import pandas as pd

    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: give the folder of a run")
    files = sorted((folder / "roles").glob("*.parquet"))
    arms = sorted({file.name.rsplit(".", 2)[0] for file in files})
    if not files:
        raise InputError(f"{folder} has no roles table: swim-lanes are drawn from runs of emulated arms")
    if arm is None:
        if len(arms) > 1:
            raise InputError(f"{folder} has several arms: choose one with --arm {' | '.join(arms)}")
        arm = arms[0]
    path = folder / "roles" / f"{arm}.{repeat}.parquet"
    if not path.is_file():
        raise InputError(f"{folder} has no run {repeat} of arm {arm!r} in its roles table: arms are {', '.join(arms)}")
    return pd.read_parquet(path)


def bars(events: Sequence[tuple[str, float]]) -> list[Bar]:
    """The bars of one request from its (event, seconds) in order of time. What has no end is left out."""
    out: list[Bar] = []
    begun: dict[str, float] = {}
    opens = {"queued": "wait", "prefill": "P", "kv_start": "link", "kv_at_rld": "RLD", "extend": "seam", "resume": "MD"}
    ends = {
        "prefill": ["wait"],
        "prefilled": ["P"],
        "kv_at_md": ["link"],
        "cancelled": ["link"],
        "hand_over": ["RLD"],
        "lost": ["RLD", "MD"],
        "resume": ["seam"],
        "done": ["RLD", "MD"],
        "failed": list(_COLOURS),
    }
    for event, t_s in events:
        for lane in ends.get(event, ()):
            if lane in begun:
                out.append(Bar(lane, begun.pop(lane), t_s))
        if event in opens:
            begun.setdefault(opens[event], t_s)
    return out


def plot_request(roles: pd.DataFrame, request_id: str, out: Path) -> Path:
    """One request: a lane a role. Raises `InputError` when it is not in the table."""
    rows = roles[roles["request_id"] == request_id].sort_values("t_ns", kind="stable")
    if rows.empty:
        first = ", ".join(map(printable, roles["request_id"].drop_duplicates().head(3)))
        raise InputError(f"request {request_id!r} is not in the roles table: give one of its ids, as {first}")
    lanes = ("P", "link", "RLD", "MD")
    figure, axes = _figure(len(lanes))
    for bar in bars(list(zip(rows["event"], rows["t_ns"] / 1e9, strict=True))):
        row = lanes.index({"wait": "P", "seam": "MD"}.get(bar.lane, bar.lane))
        axes.barh(row, bar.end_s - bar.start_s, left=bar.start_s, height=0.6, color=_COLOURS[bar.lane])
    marks = rows[rows["event"].isin(["round", "hand_over"])]
    axes.plot(marks["t_ns"] / 1e9, [2] * len(marks), "k|", markersize=14, label="ids sent")
    axes.set_yticks(range(len(lanes)), lanes)
    axes.set_title(f"{printable(request_id)} ({printable(rows['arm'].iloc[0])})", fontsize=10)
    return _save(figure, out)


def plot_window(roles: pd.DataFrame, start_s: float, end_s: float, out: Path) -> Path:
    """All requests under way between two times, a row each. Raises `InputError` for none or too many."""
    t_s = roles["t_ns"] / 1e9
    spans = t_s.groupby(roles["request_id"], sort=False).agg(["min", "max"])
    inside = spans[(spans["max"] >= start_s) & (spans["min"] <= end_s)].sort_values("min", kind="stable")
    if inside.empty:
        raise InputError(f"nothing happened between {start_s:g} and {end_s:g} s: the run ends at {t_s.max():g} s")
    if len(inside) > MOST_REQUESTS:
        raise InputError(f"{len(inside)} requests between {start_s:g} and {end_s:g} s: at most {MOST_REQUESTS} fit")
    figure, axes = _figure(len(inside))
    for row, request_id in enumerate(inside.index):
        mine = roles[roles["request_id"] == request_id].sort_values("t_ns", kind="stable")
        for bar in bars(list(zip(mine["event"], mine["t_ns"] / 1e9, strict=True))):
            thin = 0.25 if bar.lane == "link" else 0.7
            at = row + 0.35 if bar.lane == "link" else row
            axes.barh(at, bar.end_s - bar.start_s, left=bar.start_s, height=thin, color=_COLOURS[bar.lane])
    axes.set_yticks(range(len(inside)), [printable(name, 24) for name in inside.index], fontsize=7)
    axes.set_xlim(start_s, end_s)
    axes.set_title(f"{printable(roles['arm'].iloc[0])}, {start_s:g} to {end_s:g} s", fontsize=10)
    return _save(figure, out)


def _figure(rows: int) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.6 + 0.28 * max(rows, 4)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.invert_yaxis()
    axes.set_xlabel("seconds since the start of the run")
    return figure, axes


def _save(figure: Any, out: Path) -> Path:
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, label=_WORDS[lane]) for lane, colour in _COLOURS.items()]
    figure.legend(handles=handles, ncols=len(handles), fontsize=7, loc="outside lower center", frameon=False)
    try:
        figure.savefig(out)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {out}: {error}; choose another --out") from None
    return out
