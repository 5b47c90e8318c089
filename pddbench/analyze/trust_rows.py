"""Rules about the work itself: same bytes in all arms, fresh salts, pinned lengths, no warm cache, times in order."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.finding import Finding
from pddbench.analyze.quantiles import Bools
from pddbench.replay.exchange import OWN_FAILURE

PROMPT_DRIFT_SHARE = 0.01
UNKNOWN_BLOCK_TOKENS = 256  # slack where an endpoint's cache block is not known
_ORDER = ("due_ns", "sent_ns", "first_byte_ns", "first_chunk_ns", "first_token_ns", "second_token_ns", "last_token_ns",
          "end_ns")  # fmt: skip


def hits(data: Dataset) -> Iterator[Finding]:
    """The endpoint served more from its cache than this run can have put there: a warm cache or a wrong salt.

    The bound is `cached_tokens_ceiling` (all that was sent before this reply began), not `cached_tokens_possible`: a
    donor may be in the cache before its first token reached us, and a hit on it is no fault. On top: one block, and
    what the chat template added to the prompt.
    """
    for arm, part in data.arms.items():
        block = data.arm_facts(arm).get("block_tokens") or UNKNOWN_BLOCK_TOKENS
        rows = part.rows
        template = np.nan_to_num((rows["prompt_tokens"] - rows["input_tokens_sent"]).to_numpy())
        template = np.maximum(template, _template_tokens(data, arm))  # 0 apart where the prompt was shortened by it
        beyond = (rows["cached_tokens"] - rows["cached_tokens_ceiling"]).to_numpy() - template
        over = beyond > block
        if over.any():
            yield Finding(
                rule="hits",
                level="invalid",
                arm=arm,
                message=f"{int(over.sum())} of {len(rows)} requests were served up to {beyond[over].max():,.0f} cached "
                f"tokens more than this run can have put there (limit one block, {block})",
                advice="the cache was warm or the salt repeats: restart the endpoint, or let each repeat draw its salt",
                measured=float(beyond[over].max()),
                limit=float(block),
                unit="tokens",
            )


def _template_tokens(data: Dataset, arm: str) -> int:
    """What the preflight found the chat template to add: part of it stands before the prompt and is always shared."""
    preflight = data.arm_facts(arm).get("preflight") or {}
    return int(preflight.get("overhead_tokens") or 0)


def lengths(data: Dataset) -> Iterator[Finding]:
    """With pinned lengths (`output = "exact"`) a reply that is shorter or longer is other work than planned."""
    if data.run.manifest.get("output") != "exact":
        return
    for arm, part in data.arms.items():
        rows = part.rows[part.rows["ok"].to_numpy(dtype=bool)]
        told = rows["completion_tokens"].notna().to_numpy()
        off = told & (rows["completion_tokens"] != rows["output_tokens_planned"]).to_numpy()
        if off.any():
            share = float(off.sum() / told.sum())
            yield Finding(
                rule="lengths",
                level="invalid",
                arm=arm,
                message=f"{100 * share:.1f}% of ok replies have another length than the plan's",
                advice="the endpoint ignores the pinned length (ignore_eos, min_tokens): choose the right profile, or "
                'output = "natural"',
                measured=share,
                limit=0.0,
                unit="share",
            )


def prompt_lengths(data: Dataset) -> Iterator[Finding]:
    """The endpoint counted other prompt lengths than sent: words of several tokens, a template, truncation."""
    for arm, part in data.arms.items():
        rows = part.rows[part.rows["ok"].to_numpy(dtype=bool) & part.rows["prompt_tokens"].notna().to_numpy()]
        sent = float(rows["input_tokens_sent"].sum())
        drift = float((rows["prompt_tokens"] - rows["input_tokens_sent"]).abs().sum())
        if sent and drift > PROMPT_DRIFT_SHARE * sent:
            yield Finding(
                rule="prompt_lengths",
                level="invalid",
                arm=arm,
                message=f"the endpoint counted prompts {100 * drift / sent:.1f}% away from the planned lengths",
                advice="use token ids, or give the arm its tokenizer file; a shorter count may be a truncated prompt",
                measured=drift / sent,
                limit=PROMPT_DRIFT_SHARE,
                unit="share",
            )


def own_failures(data: Dataset) -> Iterator[Finding]:
    """Requests that failed by this machine's own limits (open files, ports, memory) say nothing of the endpoint."""
    requests = data.run.requests
    ours = requests["error"].str.contains(OWN_FAILURE, regex=False).to_numpy(dtype=bool, na_value=False)
    ours &= (requests["outcome"] == "connection").to_numpy(dtype=bool, na_value=False)
    for arm in data.arms:
        of_arm = (requests["arm"] == arm).to_numpy(dtype=bool, na_value=False)
        failed = int((ours & of_arm).sum())
        if failed:
            yield Finding(
                rule="own_failures",
                level="invalid",
                arm=arm,
                message=f"{failed} of {int(of_arm.sum())} requests failed because {OWN_FAILURE}, not by the endpoint",
                advice="raise the limit that their `error` names (open files: ulimit -n), or use fewer streams",
                measured=float(failed),
                limit=0.0,
                unit="requests",
            )


def salt(data: Dataset) -> Iterator[Finding]:
    """Without a salt of its own a repeat hits what the repeat before it left in the caches."""
    salts = data.run.manifest.get("salts") or {}
    repeats = sorted({int(repeat) for repeat in data.lines["repeat"].dropna().unique()})
    missing = [repeat for repeat in repeats if not salts.get(str(repeat))]
    given = [salts[str(repeat)] for repeat in repeats if salts.get(str(repeat))]
    if missing or len(set(given)) < len(given):
        what = f"repeat {missing[0]} has no salt" if missing else "two repeats have the same salt"
        yield Finding(
            rule="salt",
            level="invalid",
            message=f"{what}: later repeats may hit what earlier ones left in the caches",
            advice="let pddbench draw the salts, or run the repeats against fresh endpoints",
        )


def plan_bytes(data: Dataset) -> Iterator[Finding]:
    """Arms that got different plans under the same request id are not comparable."""
    plans = data.lines.groupby(["request_id", "repeat"])["plan_sha256"].nunique(dropna=False)
    differing = int((plans > 1).sum())
    if differing:
        yield Finding(
            rule="bytes",
            level="invalid",
            message=f"{differing} of {len(plans)} requests were planned differently in different arms",
            advice="the run folder mixes runs of different plans: run all arms in one experiment",
            measured=float(differing),
            limit=0.0,
            unit="requests",
        )


def clock(data: Dataset) -> Iterator[Finding]:
    """Times of one request that are out of order, or negative gaps: the clock or the recorder went wrong."""
    times = np.stack([data.run.requests[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in _ORDER], axis=1)
    latest = np.fmax.accumulate(times, axis=1)[:, :-1]
    with np.errstate(invalid="ignore"):
        bad: Bools = np.asarray((times[:, 1:] < latest).any(axis=1))
    negative = np.unique(data.gaps.row[data.gaps.gap_s < 0])
    bad[negative] = True
    if bad.any():
        yield Finding(
            rule="clock",
            level="invalid",
            message=f"{int(bad.sum())} of {len(bad)} requests have times out of order",
            advice="the monotonic clock or the recorder is broken on this machine: do not use these latencies",
            measured=float(bad.sum()),
            limit=0.0,
            unit="requests",
        )
