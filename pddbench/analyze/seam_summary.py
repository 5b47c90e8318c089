"""Seams of each arm: as the endpoint reports them, else blind from the gaps where the run has a control without any."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from pddbench.analyze.intervals import Figure, quantile_figure, share_figure
from pddbench.analyze.quantiles import Floats, Ints
from pddbench.analyze.seam_control import Calibration, Skill, calibrate
from pddbench.analyze.seams import LEAST_GROUPS, Stream, candidates

if TYPE_CHECKING:
    from pddbench.analyze.dataset import Dataset
    from pddbench.analyze.gaps import Gaps
    from pddbench.analyze.samples import ArmData

MOST_STREAMS = 2000  # an even sample of an arm's replies
NO_CONTROL = "no arm of this run is known to be free of seams: mark one with seam_free = true"


class SeamSkill(msgspec.Struct, kw_only=True):
    """Recall and precision (at 30% of streams with a seam) of planted stalls of `stall_s`, held-out control streams."""

    stall_s: float
    recall: float
    precision: float


class SeamSummary(msgspec.Struct, kw_only=True):
    """Where an arm's seams come from and what may be said of them.

    `source`: `reported` (the `pdd` extension; the source of record), `blind` (from the gaps), `free` (the arm has
    none), `unknown` (nothing may be said; `why` tells). `detectable_s` is the smallest stall that blind detection
    finds with precision and recall of at least 0.95; null: not detectable. `found` is the share of replies in which a
    seam was found, `stall` (p50, p90) how long it was, of those found.
    """

    source: str
    control: str | None = None
    detector: str | None = None
    control_streams: int = 0
    streams: int = 0
    detectable_s: float | None = None
    detectable_gaps: float | None = None
    why: str | None = None
    skills: list[SeamSkill] = []
    found: Figure | None = None
    stall: dict[str, Figure] = {}


def seam_summaries(data: Dataset) -> dict[str, SeamSummary]:
    """One a arm. Blind detection runs only where an arm does not report its seams."""
    free = [name for name in data.arms if seam_free(data, name)]
    silent = [name for name in data.arms if name not in free and not _reports(data.arms[name])]
    calibration = calibrate(streams_of(data.gaps, data.arms[free[0]])[0]) if free and silent else None
    out: dict[str, SeamSummary] = {}
    for name, part in data.arms.items():
        if name in free:
            out[name] = SeamSummary(source="free")
        elif name not in silent:
            out[name] = SeamSummary(source="reported")
        elif calibration is None:
            out[name] = SeamSummary(source="unknown", why=NO_CONTROL)
        else:
            out[name] = blind(data.gaps, part, calibration, free[0])
    return out


def seam_free(data: Dataset, arm: str) -> bool:
    """Whether an arm has no seams: it says so, is an emulated one without a relay, or reports pipelines without any."""
    facts = data.arm_facts(arm)
    if facts.get("seam_free") is not None:
        return bool(facts["seam_free"])
    if facts.get("emulated") in ("baseline", "naive"):
        return True
    told = data.arms[arm].rows["pipeline"].dropna()
    return len(told) > 0 and bool(told.isin(["P-D", "P-MD"]).all())


def _reports(part: ArmData) -> bool:
    return bool(part.rows["pipeline"].notna().any() or part.rows["handoff_token"].notna().any())


def streams_of(gaps: Gaps, part: ArmData) -> tuple[list[Stream], Ints]:
    """Replies of an arm that are long enough, an even sample of at most 2,000, and their places in `part.rows`."""
    row = part.rows.index.to_numpy()
    long = np.flatnonzero(gaps.count[row] >= LEAST_GROUPS)
    if len(long) > MOST_STREAMS:
        long = long[np.linspace(0, len(long) - 1, MOST_STREAMS).astype(np.int64)]
    streams = []
    for at in row[long]:
        piece = slice(int(gaps.start[at]), int(gaps.start[at] + gaps.count[at]))
        tokens = gaps.tokens[piece]
        streams.append(Stream(gaps.gap_s[piece], np.where(tokens >= 1, tokens, 1.0)))
    return streams, long


def blind(gaps: Gaps, part: ArmData, calibration: Calibration, control: str) -> SeamSummary:
    """Blind detection on one arm with what the control allows."""
    out = SeamSummary(
        source="unknown",
        control=control,
        detector=calibration.detector,
        control_streams=calibration.streams,
        detectable_s=calibration.detectable_s,
        detectable_gaps=calibration.detectable_gaps,
        why=calibration.why,
        skills=[_skill(skill, calibration.unit_s) for skill in calibration.skills],
    )
    if calibration.detectable_s is None:
        return out
    streams, at = streams_of(gaps, part)
    usable = np.array([candidates(stream) is not None for stream in streams], dtype=bool)
    found = [calibration.find(stream) for stream in streams]
    stall: Floats = np.array([np.nan if one is None else one[1] for one in found], dtype=np.float64)
    code, sessions = part.code[at], len(part.sessions)
    seen = ~np.isnan(stall)
    out.source, out.streams = "blind", int(usable.sum())
    out.found = share_figure(seen[usable], code[usable], sessions)
    order = np.argsort(stall[seen], kind="stable")
    for stat, q in (("p50", 0.5), ("p90", 0.9)):
        out.stall[stat] = quantile_figure(stall[seen][order], code[seen][order], sessions, q, "s")
    return out


def _skill(skill: Skill, unit_s: float) -> SeamSkill:
    return SeamSkill(stall_s=skill.stall_gaps * unit_s, recall=skill.recall, precision=skill.precision)
