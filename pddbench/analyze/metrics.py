"""Per-request metrics from the rows of a run: seconds as floats, +inf for what failed, NaN where it does not apply.

`request_metrics` keeps one line a row, so that every later figure (percentile, share, pair, bucket) is a selection of
its lines. METRICS.md is the contract of what each column means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from pddbench.analyze.quantiles import Bools, Floats

SLO_KEYS = ("ttft_ms", "ttft_sched_ms", "ttst_ms", "max_gap_ms", "tpot_ms", "e2e_ms", "e2e_sched_ms")

_KEPT = ("request_id", "session_id", "turn", "kind", "arm", "repeat", "phase", "outcome", "pipeline", "plan_sha256")
_COUNTS = ("input_tokens_planned", "prompt_tokens", "output_tokens_planned", "completion_tokens", "chunks",
           "cached_tokens_planned", "cached_tokens_possible", "cached_tokens_ceiling", "cached_tokens",
           "tokens_p", "tokens_rld", "tokens_md", "handoff_token", "handoff_rounds", "handoff_bytes", "kv_wan_bytes",
           "kv_wan_wire_bytes", "max_gap_token")  # fmt: skip
_SPANS = {
    "ttft": ("first_token_ns", "sent_ns"),
    "ttft_sched": ("first_token_ns", "due_ns"),
    "e2e": ("last_token_ns", "sent_ns"),
    "e2e_sched": ("last_token_ns", "due_ns"),
}


def seconds(column: pd.Series) -> Floats:
    """A nullable column of nanoseconds as float seconds, null as NaN."""
    values: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan) / 1e9
    return values


def floats(column: pd.Series) -> Floats:
    """A nullable column of numbers as floats, null as NaN."""
    values: Floats = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return values


def request_metrics(requests: pd.DataFrame, slo: dict[str, Any] | None = None) -> pd.DataFrame:
    """One line a row of `requests` (same order): identity, `ok`, token counts as floats, every per-request metric.

    Latencies are error-adjusted: +inf when the outcome is not `ok`. `good` says whether all objectives of `slo`
    (milliseconds, keys of `SLO_KEYS`) are met.
    """
    out = requests[list(_KEPT)].reset_index(drop=True)
    for name in _COUNTS:
        out[name] = floats(requests[name])
    # what was served was possible: a cache can have a donor's KV before its first token has crossed a WAN to the client
    served = np.minimum(out["cached_tokens"], out["cached_tokens_ceiling"].fillna(np.inf))
    out["cached_tokens_possible"] = np.fmax(out["cached_tokens_possible"], served)
    out["input_tokens_sent"] = _input_tokens_sent(requests)
    ok: Bools = (requests["outcome"] == "ok").to_numpy(dtype=bool, na_value=False)
    out["ok"] = ok
    for name in ("scheduled", "due", "sent", "end"):
        out[f"{name}_s"] = seconds(requests[f"{name}_ns"])
    for name, (late, early) in _SPANS.items():
        # an `ok` reply in which no token ever came has an infinite latency too: leaving it out would flatter the arm
        out[name] = _or_inf(seconds(requests[late]) - seconds(requests[early]), ok)
    single = _single(out, ok)
    _later_tokens(out, requests, ok, single)
    out["session_lag"] = out["due_s"] - out["scheduled_s"]
    # neither the brake nor the network's handshake is our own lateness
    waits_s = sum(np.nan_to_num(seconds(requests[name])) for name in ("throttle_wait_ns", "connect_wait_ns"))
    out["send_lag"] = out["sent_s"] - out["due_s"] - waits_s
    out["kv_wan_s"] = seconds(requests["kv_wan_ns"])
    out["good"] = meets(out, slo or {}, ok, single)
    return out


def _input_tokens_sent(requests: pd.DataFrame) -> Floats:
    """Prompt lengths as sent; where they were not noted (run folders of an older version) they are as planned."""
    planned = np.where(requests["sent_ns"].notna(), floats(requests["input_tokens_planned"]), np.nan)
    if "input_tokens_sent" not in requests:
        return planned
    sent = floats(requests["input_tokens_sent"])
    return np.where(np.isnan(sent), planned, sent)


def _or_inf(value: Floats, ok: Bools) -> Floats:
    return np.where(ok & np.isfinite(value), value, np.inf)


def _single(out: pd.DataFrame, ok: Bools) -> Bools:
    """Replies of one token: nobody waits for a second. Failed ones by plan; without usage, one chunk as planned."""
    planned = out["output_tokens_planned"].to_numpy()
    counted = out["completion_tokens"].to_numpy()
    guessed = np.where(out["chunks"].to_numpy() == 1, planned, np.nan)
    result: Bools = np.where(ok, np.where(np.isnan(counted), guessed, counted), planned) == 1
    return result


def _later_tokens(out: pd.DataFrame, requests: pd.DataFrame, ok: Bools, single: Bools) -> None:
    """Second-token gap, largest gap and time per output token: +inf if failed, NaN for one token or when unknown."""
    first, second = seconds(requests["first_token_ns"]), seconds(requests["second_token_ns"])
    last, tokens = seconds(requests["last_token_ns"]), out["completion_tokens"].to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(tokens >= 2, (last - first) / (tokens - 1), np.nan)
    values = {"ttst": second - first, "second_sched": second - seconds(requests["due_ns"]),
              "max_gap": seconds(requests["max_gap_ns"]), "tpot": tpot}  # fmt: skip
    for name, value in values.items():
        out[name] = np.where(single, np.nan, np.where(ok, value, np.inf))
    out["single"] = single


def meets(out: pd.DataFrame, slo: dict[str, Any], ok: Bools, single: Bools) -> Bools:
    """Whether each request met all objectives given: `ok`, and every metric known and within its limit.

    A reply of exactly one token has no second token and no gap: its objectives on those hold. Any other missing value
    does not meet its objective.
    """
    good: Bools = ok.copy()
    for key, limit_ms in slo.items():
        if limit_ms is None:
            continue
        name = key.removesuffix("_ms")
        within: Bools = out[name].to_numpy() <= limit_ms / 1e3  # NaN compares false
        if name in ("ttst", "max_gap", "tpot"):
            within = within | (single & ok)
        good &= within
    return good


def completion_by_session(measured: pd.DataFrame) -> pd.DataFrame:
    """Columns arm, repeat, session_id, completion_s: from the root's schedule to the session's last end; +inf if any
    of its requests failed."""  # fmt: skip
    grouped = measured.groupby(["arm", "repeat", "session_id"], sort=False)
    out = grouped.agg(start=("scheduled_s", "min"), end=("end_s", "max"), ok=("ok", "all")).reset_index()
    span = (out["end"] - out["start"]).to_numpy()
    out["completion_s"] = _or_inf(span, out["ok"].to_numpy())
    return out[["arm", "repeat", "session_id", "completion_s"]]


def window_s(measured: pd.DataFrame) -> float:
    """Length of the measured window in experiment seconds, summed over repeats: first due to last end of phase measure.

    Drain is inside the window: users of the last sessions wait through it too. NaN when nothing ended.
    """
    total = 0.0
    for _, rows in measured.groupby("repeat", sort=False):
        total += float(rows["end_s"].max() - rows["due_s"].min())
    return total if len(measured) else float("nan")
