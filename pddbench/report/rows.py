"""Which figures the table shows, in which order, under which names."""

from __future__ import annotations

QUANTILES = ("p50", "p90", "p99")

# (section, ((label, metric, statistics), …))
# what stands for a figure that only some arms have (served hits by the server's counters)
NO_FIGURE = {"unit": "share", "point": None, "low": None, "high": None, "rows": 0, "withheld": "no rows"}
SECTIONS: tuple[tuple[str, tuple[tuple[str, str, tuple[str, ...]], ...]], ...] = (
    (
        "what a user feels (all planned requests, failures are inf)",
        (
            ("TTFT", "ttft", QUANTILES),
            ("TTFT from due", "ttft_sched", QUANTILES),
            ("2nd-token gap", "ttst", QUANTILES),
            ("ITL", "itl", QUANTILES),
            ("largest gap", "max_gap", QUANTILES),
            ("E2E", "e2e", QUANTILES),
            ("session done", "session_completion", ("p50", "p90")),
        ),
    ),
    (
        "prefix hits, % of input tokens",
        (
            ("planned per request", "hit_planned", ("mean",)),
            ("planned by token", "hit_planned", ("token_weighted",)),
            ("possible per request", "hit_possible", ("mean",)),
            ("possible by token", "hit_possible", ("token_weighted",)),
            ("served per request", "hit_served", ("mean",)),
            ("served by token", "hit_served", ("token_weighted",)),
            ("served by token, its counters", "hit_served_counters", ("token_weighted",)),
        ),
    ),
    (
        "the hand-off",
        (
            ("RLD, requests", "rld", ("share",)),
            ("RLD, tokens", "rld_tokens", ("share",)),
            ("eager tokens", "eager_tokens", ("p50", "p90")),
            ("seam stall", "seam_stall", ("p50", "p90")),
            ("ITL on RLD", "itl_rld", ("p50",)),
            ("ITL on MD", "itl_md", ("p50",)),
            ("hand-off mean", "handoff_bytes", ("mean",)),
            ("KV over WAN", "kv_wan_bytes", ("sum",)),
            ("KV each", "kv_wan_bytes", ("p50",)),
            ("KV transfer", "kv_wan_s", ("p50", "p90")),
        ),
    ),
    (
        "what it gives",
        (
            ("SLO attainment", "slo_attainment", ("share",)),
            ("goodput", "goodput", ("rate",)),
            ("output rate", "output_rate", ("rate",)),
            ("cost", "cost_per_hour", ("value",)),
            ("goodput per cost at this load,", "goodput_per_cost", ("value",)),
            ("cost per million output tokens,", "cost_per_mtok_output", ("value",)),
            ("cost per million tokens, in and out,", "cost_per_mtok", ("value",)),
            ("cost per session,", "cost_per_session", ("value",)),
            ("break-even price per million un-hit input tokens,", "even_price_input", ("value",)),
            ("cached input tokens (at 10% of that),", "even_price_cached", ("value",)),
            ("output tokens (at 4 times that),", "even_price_output", ("value",)),
        ),
    ),
)

PAIRED = (
    ("TTFT", "ttft"),
    ("TTFT from due", "ttft_sched"),
    ("2nd-token gap", "ttst"),
    ("ITL", "itl"),
    ("largest gap", "max_gap"),
    ("E2E", "e2e"),
    ("session done", "session_completion"),
)

OK_ONLY = (("TTFT", "ttft"), ("TTFT from due", "ttft_sched"), ("E2E", "e2e"))


def name(stat: str) -> str:
    """How a statistic is written after a metric: P50; nothing for the only one there is."""
    return {"mean": "", "sum": "", "share": "", "rate": "", "value": "", "token_weighted": ""}.get(stat, stat.upper())
