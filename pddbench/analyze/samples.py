"""An arm's rows as samples: for every `METRIC.STAT` a point, an interval and its values under resampled sessions.

Two kinds suffice: quantiles of values with their sessions, and ratios of sums over sessions (means, shares, rates,
costs). Arms that are compared share the session codes, so one matrix of weights resamples them jointly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pddbench.analyze import intervals, metrics, registry
from pddbench.analyze.gaps import Gaps, seam_gap, seam_stall, token_gaps
from pddbench.analyze.intervals import Figure, number
from pddbench.analyze.money import CACHED_PRICE, NO_PRICE, OUTPUT_PRICE, PRICE_WEIGHTS
from pddbench.analyze.quantiles import (
    Bools,
    Codes,
    Floats,
    Ints,
    SessionQuantiles,
    Weights,
    session_weights,
    sorted_quantile,
    weighted_sums,
)
from pddbench.analyze.window import CUT

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 1000
SEED = 1
UNKNOWN_LIMIT = 0.01  # share of values that should be known and are not, above which a figure is withheld


class Values:
    """Values with their session codes; `blank` says why nothing may be said of them."""

    def __init__(self, values: Floats, code: Codes, sessions: int, blank: str | None = None) -> None:
        known = ~np.isnan(values)
        if not known.all():
            values, code = values[known], code[known]
        self.values, self.code, self.sessions, self.blank = values, code, sessions, blank

    @cached_property
    def index(self) -> SessionQuantiles:
        """The values sorted and indexed for resampling."""
        return SessionQuantiles(self.values, self.code, self.sessions)

    @cached_property
    def ascending(self) -> Floats:
        """The values sorted. Without their codes that is far cheaper than `index`, which only resampling needs."""
        return np.sort(self.values)

    def figure(self, q: float, unit: str) -> Figure:
        """Quantile `q` with its interval by session."""
        if self.blank:
            return Figure(unit=unit, rows=len(self.values), withheld=self.blank)
        return intervals.quantile_figure(self.ascending, self.code, self.sessions, q, unit, self.values)

    def point(self, q: float) -> float:
        """Quantile `q`; NaN without values."""
        return sorted_quantile(self.ascending, q)


@dataclass(frozen=True)
class Ratio:
    """Sum of `above` over sum of `below`, both (sessions,) arrays; `rows` stand behind it."""

    above: Floats
    below: Floats
    rows: int
    blank: str | None = None

    @property
    def seen(self) -> int:
        """Sessions that have a part in it."""
        return int(((self.above != 0) | (self.below != 0)).sum())

    def point(self) -> float:
        """The ratio; NaN when there is nothing below."""
        return float(_divide(self.above.sum(), self.below.sum()))

    def draws(self, weights: Weights) -> Floats:
        """(draws,) ratios under (draws, sessions) weights."""
        infinite = np.isinf(self.above)
        sums = weighted_sums(
            weights, np.column_stack([np.where(infinite, 0.0, self.above), self.below, infinite.astype(np.float64)])
        )
        return _divide(np.where(sums[:, 2] > 0, np.inf, sums[:, 0]), sums[:, 1])

    def figure(self, unit: str, weights: Weights) -> Figure:
        """The ratio with the percentile interval of its draws."""
        figure = Figure(unit=unit, rows=self.rows, sessions=self.seen, withheld=self.blank)
        if self.blank or self.rows == 0:
            figure.withheld = self.blank or "no rows"
        elif self.seen < 2:
            figure.withheld = intervals.ONE_SESSION
        else:
            point = self.point()
            low, high = intervals.draws_interval(self.draws(weights), point)
            if low == high and math.isfinite(point):  # sessions that are all alike say nothing of how sure it is
                low, high = math.nan, math.nan
            figure.point, figure.low, figure.high = number(point), number(low), number(high)
        return figure


def _divide(top: Floats, bottom: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio: Floats = np.divide(top, bottom)
    return ratio


class ArmData:
    """The measured rows of one arm (`rows`: lines of `request_metrics`) with all its samples, made when asked for.

    `sessions` are the ids that the codes stand for. `cut_window_s`: length of the window of due times that was measured
    (over all repeats); None: whole sessions were.
    """

    def __init__(
        self,
        rows: pd.DataFrame,
        gaps: Gaps | None,
        sessions: Sequence[str],
        cost_per_hour: float | None = None,
        weights: Weights | None = None,
        cut_window_s: float | None = None,
    ) -> None:
        self.rows = rows
        self.gaps = gaps
        self.sessions = sessions
        self.cost_per_hour = cost_per_hour
        self._weights = weights
        self.cut_window_s = cut_window_s
        self._values: dict[str, Values] = {}
        self._draws: dict[tuple[str, str], Floats] = {}

    @cached_property
    def code(self) -> Ints:
        """Session code of each row."""
        import pandas as pd

        found: Ints = pd.Index(self.sessions).get_indexer(pd.Index(self.rows["session_id"])).astype(np.int64)
        return found

    @cached_property
    def weights(self) -> Weights:
        """The (draws, sessions) bootstrap weights shared by all arms of a comparison."""
        return session_weights(len(self.sessions), DRAWS, SEED) if self._weights is None else self._weights

    def subset(self, mask: Bools) -> ArmData:
        """The same arm on some of its rows."""
        return ArmData(self.rows[mask], self.gaps, self.sessions, self.cost_per_hour, self.weights, self.cut_window_s)

    @cached_property
    def window_s(self) -> float:
        """Length of the measured window, summed over repeats."""
        return metrics.window_s(self.rows) if self.cut_window_s is None else self.cut_window_s

    def figure(self, name: str, stat: str) -> Figure:
        """`name.stat` as a figure."""
        metric = registry.METRICS[name]
        if stat in registry.QUANTILES:
            return self.values(name).figure(registry.QUANTILES[stat], metric.unit)
        if name in ("ok", "slo_attainment"):
            flag = self.rows["ok" if name == "ok" else "good"].to_numpy(dtype=bool)
            return intervals.share_figure(flag, self.code, len(self.sessions))
        if name == "cost_per_hour":
            return _price(self.cost_per_hour, metric.unit)
        return self.ratio(name, stat).figure(metric.unit, self.weights)

    def draws(self, name: str, stat: str, weights: Weights | None = None) -> Floats:
        """(draws,) values of `name.stat` under session weights; those that arms share unless told."""
        if weights is not None:
            return self._draw(name, stat, weights)
        if (name, stat) not in self._draws:
            self._draws[name, stat] = self._draw(name, stat, self.weights)
        return self._draws[name, stat]

    def _draw(self, name: str, stat: str, weights: Weights) -> Floats:
        if stat in registry.QUANTILES:
            return self.values(name).index.at(registry.QUANTILES[stat], weights)
        if name == "cost_per_hour":
            return np.full(len(weights), math.nan if self.cost_per_hour is None else self.cost_per_hour)
        return self.ratio(name, stat).draws(weights)

    def point(self, name: str, stat: str) -> float:
        """`name.stat` as a plain number, without regard to refusal."""
        if stat in registry.QUANTILES:
            return self.values(name).point(registry.QUANTILES[stat])
        if name == "cost_per_hour":
            return math.nan if self.cost_per_hour is None else self.cost_per_hour
        return self.ratio(name, stat).point()

    # ------------------------------------------------------------------ values

    def values(self, name: str) -> Values:
        """The values behind the quantiles of a metric."""
        if name not in self._values:
            source = registry.METRICS[name].source
            make = {"gap": self._gap_values, "session": self._session_values}.get(source, self._row_values)
            self._values[name] = make(name)
        return self._values[name]

    def _row_values(self, name: str) -> Values:
        column = self._column(name)
        blank = self._unknown(column) if name in ("ttst", "second_sched", "max_gap", "tpot") else None
        blank = self._unfinished() if name == "kv_wan_s" else blank
        return Values(column, self.code, len(self.sessions), blank)

    def _column(self, name: str) -> Floats:
        """A per-request metric, NaN where it does not apply."""
        rows = self.rows
        if name == "seam_stall":
            return self._stall
        if name == "eager_tokens":
            eager = (rows["pipeline"] == "P-RLD-MD").to_numpy(dtype=bool, na_value=False)
            column = np.where(eager, rows["tokens_rld"], np.nan)
        elif name == "handoff_bytes":
            column = np.where(np.isnan(rows["handoff_token"]), np.nan, rows["handoff_bytes"])
        elif name in ("kv_wan_bytes", "kv_wan_s"):
            column = np.where(rows["kv_wan_bytes"] > 0, rows[name], np.nan)
        else:
            column = rows[name].to_numpy()
        return np.asarray(column, dtype=np.float64)

    def _unknown(self, column: Floats) -> str | None:
        """Why a metric is withheld whose value is missing in too many replies that should have one."""
        due = (self.rows["ok"] & ~self.rows["single"]).to_numpy(dtype=bool)
        missing = float(np.isnan(column[due]).mean()) if due.any() else 0.0
        return f"not seen in {100 * missing:.0f}% of replies (tokens bundled)" if missing > UNKNOWN_LIMIT else None

    def _unfinished(self) -> str | None:
        """Why transfer times are withheld: the slowest outlived the replies that would have told them."""
        crossed = self.rows["kv_wan_bytes"].to_numpy(dtype=np.float64, na_value=0.0) > 0
        missing = float(np.isnan(self.rows["kv_wan_s"].to_numpy()[crossed]).mean()) if crossed.any() else 0.0
        return f"{100 * missing:.0f}% outlived their replies" if missing > UNKNOWN_LIMIT else None

    @cached_property
    def _seam(self) -> Ints:
        """Flat index of the seam's gap for each row of the run; -1 for rows that are not this arm's."""
        assert self.gaps is not None
        handoff = np.full(len(self.gaps.start), np.nan)
        handoff[self.rows.index.to_numpy()] = self.rows["handoff_token"].to_numpy()
        return seam_gap(self.gaps, handoff)

    @property
    def _stall(self) -> Floats:
        if self.gaps is None:
            return np.full(len(self.rows), np.nan)
        stall: Floats = seam_stall(self.gaps, self._seam)[self.rows.index.to_numpy()]
        return stall

    def _gap_values(self, name: str) -> Values:
        """Gaps pooled over this arm's requests, each with the session it came from; what had arrived of failed ones
        too."""  # fmt: skip
        if self.gaps is None:
            return Values(np.empty(0), np.empty(0, dtype=np.int64), len(self.sessions))
        code = np.full(len(self.gaps.start), -1, dtype=np.int64)
        code[self.rows.index.to_numpy()] = self.code
        if name != "icl" and name != "itl":
            if not (self._seam >= 0).any():
                return Values(np.empty(0), np.empty(0, dtype=np.int64), len(self.sessions))
            code[self._seam < 0] = -1  # nothing is unknown of replies that were never handed over
        by_gap = code.astype(np.int32)[self.gaps.row]
        if name == "itl" and self._one_token_each:
            return self.values("icl")
        mask = by_gap >= 0
        if name == "icl":
            whole = bool(mask.all())
            gap_s, by_gap = (self.gaps.gap_s, by_gap) if whole else (self.gaps.gap_s[mask], by_gap[mask])
            return Values(gap_s, by_gap, len(self.sessions))
        unknown = float((~(self.gaps.tokens[mask] >= 1)).mean()) if mask.any() else 0.0
        blank = f"tokens per chunk not known for {100 * unknown:.0f}% of the gaps" if unknown > UNKNOWN_LIMIT else None
        gap, row = token_gaps(self.gaps, mask & self._part(name))
        return Values(gap, code[row], len(self.sessions), blank)

    @property
    def _one_token_each(self) -> bool:
        """Every chunk of the run after the first is one token: gaps of chunks and of tokens are the same."""
        return self.gaps is not None and self.gaps.single

    def _part(self, name: str) -> Bools:
        """Which gaps a token-gap metric looks at."""
        assert self.gaps is not None
        everything = np.ones(len(self.gaps.gap_s), dtype=bool)
        if name == "itl":
            return everything
        seam = self._seam[self.gaps.row]
        at = np.arange(len(everything))
        return (seam >= 0) & ((at < seam) if name == "itl_rld" else (at > seam))

    def _session_values(self, name: str) -> Values:
        import pandas as pd

        done = metrics.completion_by_session(self.rows)
        code = pd.Index(self.sessions).get_indexer(pd.Index(done["session_id"])).astype(np.int64)
        blank = None if self.cut_window_s is None else CUT
        return Values(done["completion_s"].to_numpy(), code, len(self.sessions), blank)

    # ------------------------------------------------------------------ ratios

    def ratio(self, name: str, stat: str) -> Ratio:
        """The ratio behind a mean, share, rate, sum or cost."""
        if stat in ("mean", "sum") and name not in registry.HITS:
            return self._moment(self.values(name), stat)
        rows = self.rows
        if name in registry.HITS:
            return self._hit(registry.HITS[name], stat)
        if name in ("ok", "slo_attainment"):
            return self._of(rows["ok" if name == "ok" else "good"], np.ones(len(rows)))
        if name == "rld":
            return self._of(rows["pipeline"].isin(["P-RLD-MD", "P-RLD"]), rows["pipeline"].notna())
        if name == "rld_tokens":
            return self._of(rows["tokens_rld"], rows[["tokens_p", "tokens_rld", "tokens_md"]].sum(axis=1))
        return self._rate(name)

    def _moment(self, values: Values, stat: str) -> Ratio:
        above = np.bincount(values.code, weights=values.values, minlength=values.sessions).astype(np.float64)
        if stat == "sum":
            return Ratio(above, self._constant(1.0), len(values.values), values.blank)
        below = np.bincount(values.code, minlength=values.sessions).astype(np.float64)
        return Ratio(above, below, len(values.values), values.blank)

    def _hit(self, column: str, stat: str) -> Ratio:
        prompt = "input_tokens_planned" if column == "cached_tokens_planned" else "input_tokens_sent"
        hit, size = self.rows[column].to_numpy(), self.rows[prompt].to_numpy()
        known = ~np.isnan(hit) & (size > 0)
        if stat == "mean":
            return self._of(np.where(known, hit / np.where(known, size, 1.0), 0.0), known)
        return self._of(np.where(known, hit, 0.0), np.where(known, size, 0.0))

    def _rate(self, name: str) -> Ratio:
        """Counts over the window or over what the window cost. The window itself is not resampled."""
        rows, hours = self.rows, self.window_s / 3600
        tokens = np.where(rows["ok"], rows["completion_tokens"].fillna(0.0), 0.0)
        prompt = np.where(rows["ok"], rows["prompt_tokens"].fillna(rows["input_tokens_planned"]), 0.0)
        counts = {
            "goodput": rows["good"], "goodput_per_cost": rows["good"], "request_rate": rows["ok"],
            "output_rate": tokens, "cost_per_mtok_output": tokens / 1e6, "cost_per_mtok": (tokens + prompt) / 1e6,
        }  # fmt: skip
        if name in PRICE_WEIGHTS:
            hit = np.where(rows["ok"], rows["cached_tokens"].fillna(rows["cached_tokens_possible"]).fillna(0.0), 0.0)
            sold = np.maximum(prompt - hit, 0.0) + CACHED_PRICE * hit + OUTPUT_PRICE * tokens
            counts[name] = sold / 1e6 / PRICE_WEIGHTS[name]
        if name == "cost_per_session":
            count = self._sessions_ok()
        else:
            count = self._by_session(np.asarray(counts[name], dtype=np.float64))
        if name in PRICE_WEIGHTS or name in ("output_rate", "cost_per_mtok_output", "cost_per_mtok"):
            silent = float(rows.loc[rows["ok"], "completion_tokens"].isna().mean()) if rows["ok"].any() else 0.0
            if silent > UNKNOWN_LIMIT:
                return Ratio(count, count, len(rows), f"no usage in {100 * silent:.0f}% of ok replies")
        if name in ("goodput", "request_rate", "output_rate"):
            return Ratio(count, self._constant(self.window_s), len(rows))
        if self.cost_per_hour is None:
            return Ratio(count, count, len(rows), NO_PRICE)
        spent = self._constant(self.cost_per_hour * hours)
        return Ratio(count, spent, len(rows)) if name == "goodput_per_cost" else Ratio(spent, count, len(rows))

    def _sessions_ok(self) -> Floats:
        """Sessions (of each repeat) whose requests all were ok, by session code."""
        import pandas as pd

        done = metrics.completion_by_session(self.rows)
        code = pd.Index(self.sessions).get_indexer(pd.Index(done["session_id"]))
        good = np.isfinite(done["completion_s"].to_numpy())
        return np.bincount(code, weights=good, minlength=len(self.sessions)).astype(np.float64)

    def _of(self, above: pd.Series | Floats | Bools, below: pd.Series | Floats | Bools) -> Ratio:
        top, bottom = (np.nan_to_num(np.asarray(part, dtype=np.float64)) for part in (above, below))
        return Ratio(self._by_session(top), self._by_session(bottom), int((bottom > 0).sum()))

    def _by_session(self, column: Floats) -> Floats:
        return np.bincount(self.code, weights=column, minlength=len(self.sessions)).astype(np.float64)

    def _constant(self, value: float) -> Floats:
        """A figure that resampling must not change, spread evenly over the sessions (weights sum to their number)."""
        return np.full(len(self.sessions), value / len(self.sessions))


def _price(cost: float | None, unit: str) -> Figure:
    return Figure(unit=unit, point=cost, withheld=NO_PRICE if cost is None else None)
