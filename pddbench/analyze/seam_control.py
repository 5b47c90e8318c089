"""What blind detection can do on *this* run: thresholds and detectability from a control arm without seams.

The control's streams are cut in three. Seams planted into the first third teach the joint detector, and say which
detector to use; the second third, untouched, sets the threshold at a false rate of 1.3%; seams planted into the
last third say from which stall on seams are found. Nothing is tuned to a world that was made up.
Sources: split conformal calibration (Vovk 2005); Clopper-Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pddbench.analyze.binomial import beta_quantile
from pddbench.analyze.quantiles import Bools, Floats, Ints
from pddbench.analyze.seams import Candidates, Stream, candidates, plant

DETECTORS = ("excess", "rate", "both")
FALSE_RATE = 0.013  # of streams without a seam; at 30% of streams with one it leaves room for precision 0.95
GOAL = 0.95
SHARE = 0.3  # of streams that have a seam, at which precision is stated
NEAR = 2  # chunks by which a found seam may miss the place
LEAST_STREAMS = 240  # a third of them must place a threshold at 1.3%: 77
_FLOOR = 0.5  # of the smallest reliable stall: a smaller excess is never called a seam, however quiet the control was
_RATE_SD = 0.2  # of the log of (rate after / before), in half of the seams that teach the joint detector
_CONFIDENCE = 0.9  # one-sided, of recall and precision: fresh streams must keep what is stated
_STALLS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0)  # median gaps
_PLACES = 3  # seams planted into each stream, one at a time
_MOST_STREAMS = 600  # an even sample of the control; more would sharpen nothing that is printed

Known = tuple[Stream, Candidates]  # a stream and its candidates as it is, computed once


@dataclass(frozen=True)
class Model:
    """A logistic regression on features and their products: weights, means, deviations."""

    weights: Floats
    mean: Floats
    deviation: Floats

    def score(self, features: Floats) -> Floats:
        """Log odds (k,) of `features` (k, 5)."""
        terms = (_products(features) - self.mean) / self.deviation
        scores: Floats = np.column_stack([np.ones(len(terms)), terms]) @ self.weights
        return scores


@dataclass(frozen=True)
class Skill:
    """How a planted stall was found on held-out control streams: point values, and whether both are surely >= 0.95."""

    stall_gaps: float
    recall: float
    precision: float
    enough: bool


@dataclass(frozen=True)
class Calibration:
    """Detector, threshold and skill; `detectable_gaps` (median gaps) is None when nothing is detectable, with `why`."""

    detector: str
    threshold: float
    streams: int
    unit_s: float
    detectable_gaps: float | None
    why: str | None
    skills: list[Skill] = field(default_factory=list)
    model: Model | None = None

    @property
    def detectable_s(self) -> float | None:
        """The smallest stall found reliably, in seconds at the control's median gap."""
        return None if self.detectable_gaps is None else self.detectable_gaps * self.unit_s

    def find(self, stream: Stream) -> tuple[int, float] | None:
        """Gap index and excess in seconds of the seam of a stream; None when there is none to be told."""
        found = candidates(stream)
        if found is None:
            return None
        score, gap, excess_s = best(found, self.detector, self.model)
        enough = excess_s >= _FLOOR * (self.detectable_gaps or 0.0) * found.unit_s
        return (gap, excess_s) if score > self.threshold and enough else None


def best(found: Candidates, detector: str, model: Model | None) -> tuple[float, int, float]:
    """Score, gap index and excess of a stream's likeliest seam."""
    if detector == "rate":
        near = np.flatnonzero(np.abs(found.gap - found.change_gap) <= NEAR)
        excess = float(found.excess_s[near[0]]) if len(near) else 0.0
        return found.change, found.change_gap, excess
    scores = found.excess_s / found.unit_s if detector == "excess" or model is None else model.score(found.features)
    i = int(np.argmax(scores))
    return float(scores[i]), int(found.gap[i]), float(found.excess_s[i])


def calibrate(streams: Sequence[Stream], seed: int = 1) -> Calibration:
    """Thresholds and detectability from streams known to have no seam."""
    rng = np.random.default_rng(seed)
    usable = usable_streams(streams)
    unit_s = float(np.median([found.unit_s for _, found in usable])) if usable else math.nan
    if len(usable) < LEAST_STREAMS:
        few = f"the control has {len(usable)} streams long enough, {LEAST_STREAMS} are needed"
        return Calibration("excess", math.inf, len(usable), unit_s, None, few)
    order = rng.permutation(len(usable))[:_MOST_STREAMS]
    taught, quiet, held = ([usable[i] for i in part] for part in np.array_split(order, 3))
    model = _teach(taught, rng)
    thresholds = {name: _threshold(quiet, name, model) for name in DETECTORS}
    detector = _choose(taught, thresholds, model)
    skills = _skills(held, detector, thresholds[detector], model, rng)
    detectable = min((skill.stall_gaps for skill in skills if skill.enough), default=None)
    why: str | None = None
    if detectable is None:
        why = f"no stall of up to {_STALLS[-1]:g} median gaps is found with precision and recall of {GOAL:g}"
    return Calibration(detector, thresholds[detector], len(usable), unit_s, detectable, why, skills, model)


def usable_streams(streams: Sequence[Stream]) -> list[Known]:
    """The streams that are long enough, each with its candidates."""
    both = ((stream, candidates(stream)) for stream in streams)
    return [(stream, found) for stream, found in both if found is not None]


def _threshold(quiet: Sequence[Known], detector: str, model: Model) -> float:
    """Split conformal: the score that at most 1.3% of streams without a seam exceed."""
    scores = np.sort([best(found, detector, model)[0] for _, found in quiet])
    rank = math.ceil((1 - FALSE_RATE) * (len(scores) + 1))
    return float(scores[rank - 1]) if rank <= len(scores) else math.inf


def _places(stream: Stream, rng: np.random.Generator) -> Ints:
    """Where seams are planted: in the first 5 to 60% of the stream, away from its ends."""
    n = len(stream.gaps_s)
    low, high = max(8, int(0.05 * n)), max(10, int(0.6 * n))
    places: Ints = np.minimum(rng.integers(low, high, _PLACES), n - 6)
    return places


def _planted(
    known: Sequence[Known], stall_gaps: float, rng: np.random.Generator, rate_sd: float = 0.0
) -> Iterator[tuple[Candidates, int]]:
    """Each stream with a seam of `stall_gaps` median gaps at each of its places.

    The other side runs at the same rate, the hardest case, unless `rate_sd` (of the log of after / before) is given.
    """
    for stream, as_it_is in known:
        for place in _places(stream, rng):
            ratio = math.exp(rate_sd * rng.standard_normal())
            found = candidates(plant(stream, int(place), stall_gaps * as_it_is.unit_s, ratio))
            if found is not None:
                yield found, int(place)


def _found(
    planted: Sequence[tuple[Candidates, int]], detector: str, threshold: float, model: Model, floor_gaps: float = 0.0
) -> Bools:
    """(planted, 2): found at its place; found anywhere. An excess below `floor_gaps` is no seam."""
    out = np.zeros((len(planted), 2), dtype=bool)
    for i, (found, place) in enumerate(planted):
        score, gap, excess_s = best(found, detector, model)
        fired = score > threshold and excess_s >= floor_gaps * found.unit_s
        out[i] = fired and abs(gap - place) <= NEAR, fired
    return out


def _skills(
    held: Sequence[Known], detector: str, threshold: float, model: Model, rng: np.random.Generator
) -> list[Skill]:
    """From the largest stall down to the first that is not found reliably."""
    untouched = [(found, -9) for _, found in held]
    out: list[Skill] = []
    for stall in reversed(_STALLS):
        hit, fired = _found(list(_planted(held, stall, rng)), detector, threshold, model, _FLOOR * stall).T
        false = max(FALSE_RATE, float(_found(untouched, detector, threshold, model, _FLOOR * stall)[:, 1].mean()))
        recall = float(hit.mean())
        wrong = SHARE * float((fired & ~hit).mean()) + (1 - SHARE) * false
        precision = SHARE * recall / (SHARE * recall + wrong) if recall > 0 else 0.0
        surely = lower_bound(int(hit.sum()), len(hit)) >= GOAL
        out.append(Skill(stall, recall, precision, bool(surely and precision >= GOAL)))
        if not out[-1].enough:
            break
    return out[::-1]


def lower_bound(successes: int, trials: int) -> float:
    """One-sided 90% lower bound of a share (Clopper-Pearson)."""
    return 0.0 if successes == 0 else beta_quantile(1 - _CONFIDENCE, successes, trials - successes + 1)


def _choose(taught: Sequence[Known], thresholds: dict[str, float], model: Model) -> str:
    """The detector that finds most seams over all stalls, on streams that are not used for the statement."""
    rng = np.random.default_rng(len(taught))
    planted = [one for stall in _STALLS[::2] for one in _planted(taught[:40], stall, rng)]
    return max(DETECTORS, key=lambda name: float(_found(planted, name, thresholds[name], model)[:, 0].mean()))


def _teach(known: Sequence[Known], rng: np.random.Generator) -> Model:
    """A joint detector from seams planted into control streams, and from the same streams as they are."""
    rows = [found.features for _, found in known]
    labels = [np.zeros(len(found.gap)) for _, found in known]
    for one in known:
        stall = math.exp(rng.uniform(math.log(_STALLS[0]), math.log(_STALLS[-1])))
        for found, place in _planted([one], stall, rng, _RATE_SD * (rng.random() < 0.5)):
            rows.append(found.features)
            labels.append((np.abs(found.gap - place) <= NEAR).astype(np.float64))
    return _fit(_products(np.concatenate(rows)), np.concatenate(labels))


def _products(features: Floats) -> Floats:
    """Features with their products: a stall counts for more where the rate changes at the same place."""
    i, j = np.triu_indices(features.shape[1])
    return np.column_stack([features, features[:, i] * features[:, j]])


def _fit(terms: Floats, labels: Floats, ridge: float = 1.0, steps: int = 25) -> Model:
    """Ridge logistic regression by Newton's steps."""
    mean, deviation = terms.mean(axis=0), terms.std(axis=0) + 1e-9
    design = np.column_stack([np.ones(len(terms)), (terms - mean) / deviation])
    weights = np.zeros(design.shape[1])
    for _ in range(steps):
        p = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        curvature = (design * (p * (1 - p))[:, None]).T @ design + ridge * np.eye(len(weights))
        weights = weights + np.linalg.solve(curvature, design.T @ (labels - p) - ridge * weights)
    return Model(weights, mean, deviation)
