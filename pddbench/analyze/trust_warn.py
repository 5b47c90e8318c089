"""What does not void a run but must be said beside its figures, each with advice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from pddbench.analyze import counters, stationarity
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.finding import Finding
from pddbench.analyze.intervals import as_float
from pddbench.analyze.quantiles import Floats
from pddbench.analyze.samples import ArmData
from pddbench.analyze.trust_link import OVER_THE_LINK
from pddbench.text import printable
from pddbench.wan.steps import not_reached

COVERAGE_SESSIONS = 100
P99_SESSIONS = 300
BUNDLED_SHARE = 0.01
HITS_DIFFER_SHARE = 0.01


def _warn(rule: str, message: str, advice: str, **more: Any) -> Finding:
    return Finding(rule=rule, level="warning", message=message, advice=advice, **more)


def interrupted(data: Dataset) -> Iterator[Finding]:
    """The run was stopped before its plan was through."""
    if data.run.manifest.get("partial") or data.run.manifest.get("signal"):
        never = [name for name, part in data.arms.items() if part.rows.empty]
        yield _warn(
            "partial",
            "the run was stopped early: requests not sent count as failed"
            + (f"; never begun: {', '.join(never)}" if never else ""),
            "run it to its end",
        )


def never_began(data: Dataset) -> Iterator[Finding]:
    """A run that was killed between two arms says nowhere that it was stopped: its plan has more than its rows."""
    there = {(str(arm), int(repeat)) for arm, repeat in data.lines.groupby(["arm", "repeat"]).groups}
    missing = [f"{arm}.{repeat}" for arm, repeat in data.run.manifest.get("order") or [] if (arm, repeat) not in there]
    if missing and there and not data.run.manifest.get("partial"):
        yield _warn(
            "partial",
            f"the run was ended before {printable(', '.join(missing), 80)} began",
            "run it to its end",
        )


def single_arm(data: Dataset) -> Iterator[Finding]:
    """One arm alone is compared with nothing."""
    if len(data.arms) == 1:
        yield _warn(
            "single_arm",
            "one arm only: nothing to compare it with",
            "add an arm, or `pddbench compare` with another run",
        )


def events_not_reached(data: Dataset) -> Iterator[Finding]:
    """The run was over before the link was to change: nothing in it is about that event."""
    manifest = data.run.manifest
    texts = [str(text) for text in (manifest.get("wan") or {}).get("events") or []]
    missed: dict[str, list[str]] = {}
    for run in manifest.get("runs") or []:
        facts = data.arm_facts(str(run.get("arm")))
        over_the_link = (facts.get("emulated") or facts.get("deployment")) in OVER_THE_LINK
        if over_the_link and run.get("status") != "killed":  # of a killed run nobody knows what its link did
            reached = {float(change["wanted_s"]) for change in run.get("link_changes") or []}
            for text in not_reached(texts, reached):
                missed.setdefault(text, []).append(f"{run.get('arm')}.{run.get('repeat')}")
    if missed:
        said = "; ".join(
            f"{printable(text, 80)!r} in {printable(', '.join(runs), 80)}" for text, runs in missed.items()
        )
        yield _warn(
            "wan_events",
            f"[wan] events not reached before the run was over: {said}",
            "put the events earlier, or run longer",
        )


def order(data: Dataset) -> Iterator[Finding]:
    """Drift of the machine falls on the arms unequally unless their mean place in the order is the same."""
    if data.run.manifest.get("simulated"):
        return  # virtual time does not drift
    places: dict[str, list[int]] = {}
    for place, (arm, _) in enumerate(data.run.manifest.get("order") or []):
        places.setdefault(arm, []).append(place)
    means = {round(sum(where) / len(where), 6) for where in places.values()}
    if len(places) > 1 and len(means) > 1:
        yield _warn(
            "order",
            "order not balanced: some arms ran earlier than others",
            "use an even number of repeats",
        )


def coverage(data: Dataset) -> Iterator[Finding]:
    """Intervals by session need sessions."""
    count = min((part.rows["session_id"].nunique() for part in data.arms.values()), default=0)
    measured = {"measured": float(count), "unit": "sessions"}
    if count < COVERAGE_SESSIONS:
        yield _warn(
            "coverage",
            f"{count} sessions < {COVERAGE_SESSIONS}: intervals may cover less than 95%",
            "run more sessions",
            limit=float(COVERAGE_SESSIONS),
            **measured,
        )
    elif count < P99_SESSIONS:
        yield _warn(
            "coverage_p99",
            f"{count} sessions < {P99_SESSIONS}: the upper bound of a P99 may be too low",
            "run more sessions before you promise a P99",
            limit=float(P99_SESSIONS),
            **measured,
        )


def trend(data: Dataset) -> Iterator[Finding]:
    """A run that drifts has no one latency; what explains it (un-hit tokens, turn) is taken out first."""
    for arm, part in data.arms.items():
        found = stationarity.trend_of(part.rows, part.code)
        if found.fires and found.drift is not None and found.p is not None:
            yield _warn(
                "trend",
                f"TTFT from due drifts by {100 * found.drift:+.0f}% over the run beyond what un-hit tokens "
                f"and turn explain (p {found.p:.2g})",
                "run longer, cut the warm-up (pddbench report --warmup auto), or lower the load",
                arm=arm,
                measured=found.drift,
                limit=stationarity.TREND_DRIFT,
                unit="share",
            )


def _counted(part: ArmData) -> tuple[Floats, Floats]:
    """Chunks and tokens of the `ok` replies for which both are known."""
    rows = part.rows[part.rows["ok"].to_numpy(dtype=bool)][["chunks", "completion_tokens"]].dropna()
    return rows["chunks"].to_numpy(), rows["completion_tokens"].to_numpy()


def bundled(data: Dataset) -> Iterator[Finding]:
    """Chunks with several tokens hide gaps between them."""
    for arm, part in data.arms.items():
        chunks, tokens = _counted(part)
        share = float((chunks < tokens).mean()) if len(chunks) else 0.0
        if share > BUNDLED_SHARE:
            yield _warn(
                "bundled",
                f"chunks carry several tokens in {100 * share:.0f}% of replies: gaps inside a chunk are not seen",
                "read icl and max_gap, not itl; switch off speculative decoding or token batching for exact gaps",
                arm=arm,
                measured=share,
                limit=BUNDLED_SHARE,
                unit="share",
            )


def more_chunks_than_tokens(data: Dataset) -> Iterator[Finding]:
    """No token comes in two chunks: the count is too small, and TPOT, output rate and costs with it."""
    for arm, part in data.arms.items():
        chunks, tokens = _counted(part)
        share = float((chunks > tokens).mean()) if len(chunks) else 0.0
        if share > BUNDLED_SHARE:
            yield _warn(
                "usage_short",
                f"{100 * share:.0f}% of replies have more chunks of output than usage counts tokens: TPOT, output "
                "rate and cost stand on that count",
                "find out what the endpoint counts; read icl and request_rate until then",
                arm=arm,
                measured=share,
                limit=BUNDLED_SHARE,
                unit="share",
            )


def hits_differ(data: Dataset) -> Iterator[Finding]:
    """As it ran, some donors came too late or failed: the planned hit was not to be had. A dead arm has no hits."""
    for arm, part in data.arms.items():
        failed = int((~part.rows["ok"].to_numpy(dtype=bool)).sum())
        if failed == len(part.rows):
            continue
        planned, possible = part.rows["cached_tokens_planned"], part.rows["cached_tokens_possible"]
        block = data.arm_facts(arm).get("block_tokens") or 1
        known = possible.notna()
        share = float((np.abs(planned - possible)[known] > block).mean()) if known.any() else 0.0
        if share > HITS_DIFFER_SHARE:
            yield _warn(
                "hits_possible",
                f"possible hits differ from the planned ones in {100 * share:.1f}% of requests",
                "compare arms by possible hits: " + _why_not_possible(failed),
                arm=arm,
                measured=share,
                limit=HITS_DIFFER_SHARE,
                unit="share",
            )


def _why_not_possible(failed: int) -> str:
    """What keeps a planned hit from being possible."""
    running = "were still running when others needed what they had in common"
    if not failed:
        return f"earlier requests {running}"
    return f"{failed} requests failed and left nothing to share, or earlier ones {running}"


def hits_unreported(data: Dataset) -> Iterator[Finding]:
    """Without `cached_tokens` nothing checks that the cache did what the plan says."""
    for arm, part in data.arms.items():
        rows = part.rows[part.rows["ok"].to_numpy(dtype=bool)]
        if len(rows) and rows["cached_tokens"].isna().all():
            yield _warn(
                "hits_unreported",
                "the endpoint does not report cached tokens: served hits are unknown and cannot be checked",
                "vLLM: --enable-prompt-tokens-details; SGLang: --enable-cache-report",
                arm=arm,
            )


def lengths_unreported(data: Dataset) -> Iterator[Finding]:
    """Without usage the length of a reply is not known."""
    for arm, part in data.arms.items():
        rows = part.rows[part.rows["ok"].to_numpy(dtype=bool)]
        share = float(rows["completion_tokens"].isna().mean()) if len(rows) else 0.0
        if share > 0:
            yield _warn(
                "lengths_unreported",
                f"no usage in {100 * share:.1f}% of ok replies: their lengths are unknown and cannot be checked",
                "let the endpoint send usage (stream_options.include_usage)",
                arm=arm,
                measured=share,
                limit=0.0,
                unit="share",
            )


def _started_here(data: Dataset, arm: str) -> tuple[str, str | None]:
    """Engine and kind of an arm that was started here; no kind for any other."""
    facts = data.arm_facts(arm)
    return str(facts.get("engine") or "emulator"), facts.get("deployment") or facts.get("emulated")


def faster_than_baseline(data: Dataset) -> Iterator[Finding]:
    """pdd prefills like the baseline, on the same chips: a smaller TTFT says that the arms are not treated alike."""
    for arm in data.arms:
        engine, kind = _started_here(data, arm)
        base = [other for other in data.arms if _started_here(data, other) == (engine, "baseline")]
        if kind != "pdd" or not base:
            continue
        pair = data.pair(base[0], arm)
        for stat in ("p50", "p90", "p99"):
            change = pair.difference("ttft", stat)
            if change.withheld is None and as_float(change.high) < 0:
                yield _warn(
                    "ttft_below_baseline",
                    f"TTFT {stat.upper()} is below {base[0]}'s by {-1e3 * as_float(change.point):.1f} ms, more than "
                    "its interval",
                    "look for unequal fabric, overheads or chip counts before you believe it",
                    arm=arm,
                    measured=as_float(change.point),
                    limit=0.0,
                    unit="s",
                )
                break


def block_sizes_differ(data: Dataset) -> Iterator[Finding]:
    """Planned hits are whole blocks: with another block than the server's they are not what it can serve."""
    for arm in data.arms:
        facts = data.arm_facts(arm)
        said, used = (facts.get("preflight") or {}).get("block_tokens_said"), facts.get("block_tokens")
        if said and used and said != used:
            yield _warn(
                "block_tokens",
                f"the endpoint says that its prefix-cache block is {said} tokens, the arm says {used}: planned hits "
                "are not what it can serve",
                "leave block_tokens out, or give the endpoint's",
                arm=arm,
                measured=float(said),
                limit=float(used),
                unit="tokens",
            )


def counters_disagree(data: Dataset) -> Iterator[Finding]:
    """The server's own counters and its replies tell different hits: one of them is wrong."""
    for one in counters.differences(data):
        yield _warn(
            "hits_counters",
            f"repeat {one.repeat}: {one.source} grew by {one.counted:,.0f} tokens, the replies report "
            f"{one.reported:,.0f}: {100 * one.off:+.1f}% of the prompt tokens",
            "find out which is wrong: others may use the server, preempted requests may count twice, a router may "
            "drop cached_tokens (docs/engines.md)",
            arm=one.arm,
            measured=abs(one.off),
            limit=counters.DIFFER_SHARE,
            unit="share",
        )


def live_history(data: Dataset) -> Iterator[Finding]:
    """Each arm's own replies are in its prompts: arms do not get the same bytes, nor always the planned lengths."""
    if data.run.manifest.get("history") != "live":
        return
    for arm, part in data.arms.items():
        rows = part.rows[part.rows["input_tokens_sent"].notna()]
        planned, sent = float(rows["input_tokens_planned"].sum()), float(rows["input_tokens_sent"].sum())
        other = int((rows["input_tokens_planned"] != rows["input_tokens_sent"]).sum())
        yield _warn(
            "live_history",
            f"the arm's own replies are in its prompts: it was sent {sent:,.0f} input tokens where {planned:,.0f} were "
            f"planned, {other} of {len(rows)} prompts have another length",
            "compare arms with recorded history",
            arm=arm,
            measured=sent / planned - 1 if planned else None,
            unit="share",
        )


def window_not_filled(data: Dataset) -> Iterator[Finding]:
    """The trace was over before the measured window: the end of it had less load than the rest."""
    if data.window is None or data.run.manifest.get("partial"):
        return
    for arm in data.arms:
        if not data.window_length_s(arm)[1]:
            yield _warn(
                "window",
                f"nothing was left to send before the measured window ended ({data.window['until_s']:g} s): its end "
                "had less load, and rates count to the last end in it",
                "give a longer trace, or a shorter duration_s",
                arm=arm,
            )


WARNINGS: tuple[Callable[[Dataset], Iterator[Finding]], ...] = (
    interrupted,
    never_began,
    single_arm,
    events_not_reached,
    order,
    coverage,
    trend,
    bundled,
    more_chunks_than_tokens,
    hits_differ,
    hits_unreported,
    lengths_unreported,
    faster_than_baseline,
    counters_disagree,
    live_history,
    window_not_filled,
    block_sizes_differ,
)
