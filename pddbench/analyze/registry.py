"""Names of all metrics and what can be asked of each: the one list behind the table, `check` and METRICS.md."""

from __future__ import annotations

from typing import NamedTuple

QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}
_LATENCY = (*QUANTILES, "mean")
_AMOUNT = (*QUANTILES, "mean", "sum")


class Metric(NamedTuple):
    """A metric: its unit, its statistics, and where it comes from (`row`: a column of `request_metrics`)."""

    name: str
    unit: str
    stats: tuple[str, ...]
    source: str  # row | gap | session | ratio
    meaning: str


_ALL = (
    Metric("ttft", "s", _LATENCY, "row", "first token - sent"),
    Metric("ttft_sched", "s", _LATENCY, "row", "first token - due"),
    Metric("ttst", "s", _LATENCY, "row", "second token - first token"),
    Metric("second_sched", "s", _LATENCY, "row", "second token - due"),
    Metric("tpot", "s", _LATENCY, "row", "(last token - first token) / (tokens - 1)"),
    Metric("max_gap", "s", _LATENCY, "row", "largest gap between token-bearing chunks"),
    Metric("e2e", "s", _LATENCY, "row", "last token - sent"),
    Metric("e2e_sched", "s", _LATENCY, "row", "last token - due"),
    Metric("session_lag", "s", _LATENCY, "row", "due - scheduled"),
    Metric("send_lag", "s", _LATENCY, "row", "sent - due - throttle wait"),
    Metric("icl", "s", _LATENCY, "gap", "gap between token-bearing chunks, pooled"),
    Metric("itl", "s", _LATENCY, "gap", "gap per token, pooled, where tokens per chunk are known"),
    Metric("itl_rld", "s", _LATENCY, "gap", "itl of tokens that RLD produced"),
    Metric("itl_md", "s", _LATENCY, "gap", "itl of tokens that MD produced after a hand-off, the seam left out"),
    Metric("session_completion", "s", _LATENCY, "session", "last end of a session - its root's schedule"),
    Metric("seam_stall", "s", _LATENCY, "row", "gap at the hand-off beyond the usual gap on either side"),
    Metric("eager_tokens", "tokens", _AMOUNT, "row", "tokens that RLD streamed, requests of P-RLD-MD"),
    Metric("handoff_bytes", "bytes", _AMOUNT, "row", "bytes of the hand-off, requests that were handed over"),
    Metric("kv_wan_bytes", "bytes", _AMOUNT, "row", "KV bytes over the WAN, requests that moved any"),
    Metric("kv_wan_s", "s", _LATENCY, "row", "time of the KV transfer over the WAN"),
    Metric("ok", "share", ("share",), "ratio", "requests with outcome ok / planned"),
    Metric("slo_attainment", "share", ("share",), "ratio", "requests meeting all objectives / planned"),
    Metric("rld", "share", ("share",), "ratio", "requests of P-RLD-MD or P-RLD / requests with a known pipeline"),
    Metric("rld_tokens", "share", ("share",), "ratio", "tokens that RLD produced / tokens of known producer"),
    Metric("hit_planned", "share", ("mean", "token_weighted"), "ratio", "planned hit / input tokens"),
    Metric("hit_possible", "share", ("mean", "token_weighted"), "ratio", "possible hit / input tokens"),
    Metric("hit_served", "share", ("mean", "token_weighted"), "ratio", "served hit / input tokens"),
    Metric("goodput", "1/s", ("rate",), "ratio", "requests meeting all objectives a second"),
    Metric("request_rate", "1/s", ("rate",), "ratio", "ok requests a second"),
    Metric("output_rate", "tokens/s", ("rate",), "ratio", "output tokens of ok requests a second"),
    Metric("cost_per_hour", "cost/h", ("value",), "ratio", "sum of count x price over all roles, + line"),
    Metric("goodput_per_cost", "1/cost", ("value",), "ratio", "requests meeting all objectives per unit of currency"),
    Metric("cost_per_mtok_output", "cost/Mtok", ("value",), "ratio", "cost per million output tokens"),
    Metric("cost_per_session", "cost/session", ("value",), "ratio", "cost per session whose requests all were ok"),
    Metric("even_price_input", "cost/Mtok", ("value",), "ratio", "break-even price of un-hit input tokens"),
    Metric("even_price_cached", "cost/Mtok", ("value",), "ratio", "break-even price of cached input tokens"),
    Metric("even_price_output", "cost/Mtok", ("value",), "ratio", "break-even price of output tokens"),
    Metric("cost_per_mtok", "cost/Mtok", ("value",), "ratio", "cost per million tokens, input and output"),
)

METRICS = {metric.name: metric for metric in _ALL}
HIT_COUNTERS = Metric(
    "hit_served_counters", "share", ("token_weighted",), "counters", "served hit / prompt tokens, as the server counts"
)
"""Asked of a run's server counters, not of its rows: in the summary only where replies report no hits."""

CHECKABLE = METRICS | {HIT_COUNTERS.name: HIT_COUNTERS}
HITS = {"hit_planned": "cached_tokens_planned", "hit_possible": "cached_tokens_possible", "hit_served": "cached_tokens"}
SHOWN_QUANTILES = ("p50", "p90", "p99")
PAIRED = ("ttft", "ttft_sched", "ttst", "itl", "max_gap", "e2e", "e2e_sched", "session_completion")


def keys() -> list[str]:
    """All `METRIC.STAT` names."""
    return [f"{metric.name}.{stat}" for metric in _ALL for stat in metric.stats]
