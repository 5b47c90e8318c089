"""`summary.json`: everything the table shows, as one value with a published JSON Schema (`report/summary.schema.json`).

Figures are keyed `METRIC.STAT`, the names that `pddbench check` takes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench import __version__, exitcodes
from pddbench.analyze import (
    better,
    breakdown,
    counters,
    hits,
    own_lag,
    registry,
    stationarity,
    trust,
    trust_engines,
    trust_timing,
    window,
)
from pddbench.analyze.dataset import Dataset
from pddbench.analyze.exactness import Exactness, exactness
from pddbench.analyze.finding import Finding
from pddbench.analyze.intervals import Figure, number
from pddbench.analyze.quantiles import sorted_quantile
from pddbench.analyze.seam_summary import SeamSummary, seam_summaries
from pddbench.analyze.window import Mix
from pddbench.text import printable
from pddbench.wan import words
from pddbench.wan.steps import not_reached

if TYPE_CHECKING:
    from pddbench.analyze.paired import Pair
    from pddbench.analyze.samples import ArmData
    from pddbench.runfolder.load import Run

SCHEMA_VERSION = 1
_ERRORS_SHOWN = 5
_BUCKET_KEYS = ("ttft_sched.p50", "ttft_sched.p90", "second_sched.p50", "second_sched.p90", "ttst.p50", "kv_wan_s.p50",
                "hit_served.mean", "slo_attainment.share")  # fmt: skip
_BUCKET_PAIRED = ("ttft_sched", "second_sched", "ttst")


class Bucket(msgspec.Struct, kw_only=True):
    """Requests whose planned hit share lies in `bucket` (percent)."""

    bucket: str
    requests: int
    figures: dict[str, Figure]


class ArmSummary(msgspec.Struct, kw_only=True):
    """One arm, phase measure. `figures` are error-adjusted (failures +inf); `ok_only` is null without failures.

    `stamps` counts requests by whose stamps their times are (kernel, merged, mixed, user; see METRICS.md).
    `mix` is what was sent before, in and after a measured window; empty without one.
    `single_process`, of an arm of real servers: `replies` that were asked for again of one server alone, and how many
    were `differing`.
    `observed` are the smallest (`low`), median (`point`) and largest (`high`) of the rows: no estimate, no interval.
    """

    requests: int
    sessions: int
    outcomes: dict[str, int]
    errors: dict[str, int]
    pipelines: dict[str, int]
    cost_per_hour: float | None
    speed: float
    kv_scale: float | None
    error_bar: dict[str, float | None]
    stamps: dict[str, int] = {}
    single_process: dict[str, int] = {}
    figures: dict[str, Figure]
    ok_only: dict[str, Figure] | None
    observed: dict[str, Figure]
    buckets: list[Bucket]
    mix: list[Mix] = []
    seams: SeamSummary | None = None
    warmup: stationarity.Warmup | None = None
    trend: stationarity.Trend | None = None
    breakdowns: dict[str, list[breakdown.Slice]] = {}


class PairBucket(msgspec.Struct, kw_only=True):
    """Paired differences in the lowest bucket that has requests; `kv_wan_s` is the arm's own transfer time there."""

    bucket: str
    requests: int
    differences: dict[str, Figure]
    by_request: dict[str, Figure]
    kv_wan_s: Figure


class PairSummary(msgspec.Struct, kw_only=True):
    """An arm minus `against`, on the requests both have."""

    against: str
    requests: int
    unmatched: int
    differing_plans: int
    outcomes: dict[str, int]
    differences: dict[str, Figure]
    by_request: dict[str, Figure]
    lowest_bucket: PairBucket | None
    exactness: Exactness | None = None
    better: dict[str, better.Better] = {}


class RunFacts(msgspec.Struct, kw_only=True):
    """What was measured."""

    name: str
    created_utc: str | None
    trace: str | None
    requests: int
    sessions: int
    repeats: int
    wan_backend: str | None
    wan_profile: str | None
    wan_asked: str | None = None
    wan_reason: str = ""
    wan_events: list[str] = []  # by which the link changed, seconds of each repeat
    role_changes: list[str] = []  # instances that emulated arms lost or got, and when; or that they were not reached
    wan_measured: dict[str, float] = {}  # rtt_ms, mbit: as asked (experiment time, before kv_scale)
    slo: dict[str, float]
    currency: str
    partial: bool
    emulator_endpoints: dict[str, float] = {}
    calibration: dict[str, Any] | None = None
    readers: list[str] = []  # who read the answers: native, python, aiohttp; empty where the manifest does not say
    simulated: bool = False
    window: dict[str, float] | None = None  # from_s, until_s: requests due then are measured
    history: str = "recorded"
    warmup_cut_s: float = 0.0


class Summary(msgspec.Struct, kw_only=True):
    """The answer of a run. `paired` maps an arm to its comparison with the first arm."""

    schema_version: int
    pddbench: str
    run: RunFacts
    verdict: str
    exit_code: int
    arms: dict[str, ArmSummary]
    paired: dict[str, PairSummary]
    findings: list[Finding]


def summarise(run: Run, allow: Collection[str] = ()) -> dict[str, Any]:
    """The summary of a run as plain JSON-able values; `allow` names rules that shall only warn."""
    return to_dict(build(Dataset(run), allow))


def to_dict(summary: Summary) -> dict[str, Any]:
    """Structs as dicts."""
    plain: dict[str, Any] = msgspec.to_builtins(summary)
    return plain


def json_schema() -> dict[str, Any]:
    """The JSON Schema of `summary.json`, from the types."""
    schema = msgspec.json.schema(Summary)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pddbench summary.json", **schema}


def build(data: Dataset, allow: Collection[str] = ()) -> Summary:
    """The summary of a run as structs."""
    manifest = data.run.manifest
    found = trust.findings(data, [*(manifest.get("allow") or []), *allow])
    arms = {name: _arm(data, name, part) for name, part in data.arms.items()}
    for name, seams in seam_summaries(data).items():
        arms[name].seams = seams
    first, *others = data.arms or [""]
    return Summary(
        schema_version=SCHEMA_VERSION,
        pddbench=__version__,
        run=_facts(data),
        verdict=_verdict(arms, found, bool(manifest.get("partial"))),
        exit_code=exitcodes.worst(_codes(arms, found)),
        arms=arms,
        paired={other: _paired(data, first, other) for other in others},
        findings=found,
    )


def _facts(data: Dataset) -> RunFacts:
    manifest = data.run.manifest
    wan, trace = manifest.get("wan") or {}, manifest.get("trace") or {}
    measured = [part.rows for part in data.arms.values()]
    return RunFacts(
        name=str(manifest.get("name", data.run.path.name)),
        created_utc=manifest.get("created_utc"),
        trace=trace.get("path"),
        requests=max((len(rows) for rows in measured), default=0),
        sessions=max((int(rows["session_id"].nunique()) for rows in measured), default=0),
        repeats=int(data.lines["repeat"].nunique()),
        wan_backend=wan.get("backend"),
        wan_profile=wan.get("profile"),
        wan_asked=wan.get("asked"),
        wan_reason=printable(str(wan.get("reason") or ""), 200),
        wan_events=_wan_events(wan, manifest.get("runs") or []),
        role_changes=_role_changes(manifest.get("runs") or []),
        wan_measured=words.measured(manifest.get("runs") or []),
        slo=data.slo,
        currency=str((manifest.get("cost") or {}).get("currency") or "cost"),
        partial=bool(manifest.get("partial")),
        emulator_endpoints=_emulator_endpoints(data),
        calibration=manifest.get("calibration"),
        readers=sorted({str(run["reader"]) for run in manifest.get("runs") or [] if run.get("reader")}),
        simulated=bool(manifest.get("simulated")),
        window=data.window,
        history=str(manifest.get("history") or "recorded"),
        warmup_cut_s=data.warmup_s,
    )


def _wan_events(wan: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The events that changed the link of some run; all, where a killed run cannot say which it had."""
    events = [str(event) for event in wan.get("events") or []]
    begun_s = {float(change["wanted_s"]) for run in runs for change in run.get("link_changes") or []}
    missed = [] if any(run.get("status") == "killed" for run in runs) else not_reached(events, begun_s)
    return [printable(event, 80) for event in events if event not in missed]


def _role_changes(runs: list[dict[str, Any]]) -> list[str]:
    """Each change once, in words: those of the experiment come again in every repeat."""
    said: dict[str, None] = {}
    for run in runs:
        for change in run.get("role_changes") or []:
            what = f"{run.get('arm')}: {change['role']} {change['count']:+d} at {change['at_s']:.1f} s"
            said[printable(what + ("" if change["reached"] else ", not reached"), 120)] = None
    return [*said]


def _emulator_endpoints(data: Dataset) -> dict[str, float]:
    """Endpoints that say they are pddbench's own emulator, with their speed: their times are sped-up wall times."""
    found = {name: (data.arm_facts(name).get("preflight") or {}).get("emulator") for name in data.arms}
    return {name: float(facts["speed"]) for name, facts in found.items() if facts}


def _arm(data: Dataset, name: str, part: ArmData) -> ArmSummary:
    rows, facts = part.rows, data.arm_facts(name)
    failed = rows[~rows["ok"].to_numpy(dtype=bool)]
    errors = data.run.requests["error"].iloc[failed.index].dropna().map(printable).value_counts()
    return ArmSummary(
        requests=len(rows),
        sessions=int(rows["session_id"].nunique()),
        outcomes=_counts(rows["outcome"]),
        errors={str(text): int(n) for text, n in errors.head(_ERRORS_SHOWN).items()},
        pipelines=_counts(rows["pipeline"].dropna()),
        cost_per_hour=part.cost_per_hour,
        speed=data.speed(name),
        kv_scale=facts.get("kv_scale"),
        error_bar=_error_bar(data, name),
        stamps=_counts(data.run.requests["stamps"].iloc[rows.index].dropna()),
        single_process=trust_engines.compared(data, name),
        figures=figures(part, registry.keys()) | counters.figures(data, name),
        ok_only=_ok_only(part) if len(failed) else None,
        observed={name: _observed(part, name) for name in registry.PAIRED},
        buckets=_buckets(part),
        mix=window.mix(data.of_arm(name)) if data.window is not None else [],
        warmup=stationarity.warmup(rows),
        trend=stationarity.trend_of(rows, part.code),
        breakdowns=breakdown.breakdowns(part),
    )


def _error_bar(data: Dataset, arm: str) -> dict[str, float | None]:
    """Our own lateness while the arm ran, P99: wall seconds, for the emulator experiment seconds; and the share of the
    time for which the client was ready and had no core."""  # fmt: skip
    values = {
        "send_lag_p99_s": own_lag.send_lag_p99_s(data, arm),
        "loop_lag_p99_s": own_lag.loop_lag_p99_s(data, arm),
        "kernel_gap_p99_s": own_lag.kernel_gap_p99_s(data, arm),
        "run_delay_share": own_lag.run_delay_share(data, arm),
        "emulator_late_p99_s": trust_timing.emulator_late_s(data, arm),
    }
    return {name: None if math.isnan(value) else value for name, value in values.items()}


def _counts(column: Any) -> dict[str, int]:
    return {printable(str(value)): int(n) for value, n in column.value_counts().items()}


def figures(part: ArmData, keys: Collection[str]) -> dict[str, Figure]:
    """`METRIC.STAT` figures of an arm."""
    return {key: part.figure(*key.split(".", 1)) for key in keys}


def _observed(part: ArmData, name: str) -> Figure:
    """What the rows hold, without a claim beyond them."""
    ascending = part.values(name).ascending
    unit = registry.METRICS[name].unit
    if part.values(name).blank or len(ascending) == 0:
        return Figure(unit=unit, withheld=part.values(name).blank or "no rows")
    low, median, high = (number(sorted_quantile(ascending, q)) for q in (0.0, 0.5, 1.0))
    return Figure(unit=unit, point=median, low=low, high=high, rows=len(ascending), note="rows only: no interval")


def _ok_only(part: ArmData) -> dict[str, Figure]:
    """The latencies of successes alone: shown apart, never as the headline."""
    names = [m.name for m in registry.METRICS.values() if m.unit == "s" and m.source == "row"]
    ok = part.subset(part.rows["ok"].to_numpy(dtype=bool))
    return figures(ok, [f"{name}.{stat}" for name in names for stat in registry.SHOWN_QUANTILES])


def _buckets(part: ArmData) -> list[Bucket]:
    bucket = hits.bucket_of(hits.planned_share(part.rows))
    out = []
    for i, name in enumerate(hits.bucket_names()):
        inside = bucket == i
        kept = figures(part.subset(inside), _BUCKET_KEYS) if inside.any() else {}
        out.append(Bucket(bucket=name, requests=int(inside.sum()), figures=kept))
    return out


def _paired(data: Dataset, first: str, other: str) -> PairSummary:
    """The comparison of two arms of this run."""
    pair = data.pair(first, other)
    out = pair_summary(pair, first)
    out.exactness = exactness(data, first, other, pair)
    return out


def pair_summary(pair: Pair, against: str) -> PairSummary:
    """All shown comparisons of a pair."""
    keys = [(name, stat) for name in registry.PAIRED for stat in registry.SHOWN_QUANTILES]
    row_names = [name for name in registry.PAIRED if registry.METRICS[name].source == "row"]
    return PairSummary(
        against=against,
        requests=len(pair.a.rows),
        unmatched=pair.unmatched,
        differing_plans=pair.differing,
        outcomes=pair.outcomes(),
        differences={f"{name}.{stat}": pair.difference(name, stat) for name, stat in keys},
        by_request=_by_request(pair, row_names),
        lowest_bucket=_lowest_bucket(pair),
        better={key: better.better(pair, key) for key in better.KEYS},
    )


def _by_request(pair: Pair, names: Collection[str]) -> dict[str, Figure]:
    stats = registry.SHOWN_QUANTILES
    return {f"{name}.{stat}": pair.by_request(name, registry.QUANTILES[stat]) for name in names for stat in stats}


def _lowest_bucket(pair: Pair) -> PairBucket | None:
    bucket = hits.bucket_of(hits.planned_share(pair.a.rows))
    if not (bucket >= 0).any():
        return None
    lowest = int(bucket[bucket >= 0].min())
    part = pair.subset(bucket == lowest)
    keys = [(name, stat) for name in _BUCKET_PAIRED for stat in ("p50", "p90")]
    return PairBucket(
        bucket=hits.bucket_names()[lowest],
        requests=len(part.a.rows),
        differences={f"{name}.{stat}": part.difference(name, stat) for name, stat in keys},
        by_request=_by_request(part, _BUCKET_PAIRED),
        kv_wan_s=part.b.figure("kv_wan_s", "p50"),
    )


def _codes(arms: dict[str, ArmSummary], found: list[Finding]) -> list[int]:
    codes = [exitcodes.WORLD_FAILED for _ in _dead(arms)]
    return codes + [exitcodes.INVALID for finding in found if finding.level == "invalid"]


def _dead(arms: dict[str, ArmSummary]) -> list[str]:
    """Arms that were sent requests of which none succeeded; one that a stopped run never reached is not among them."""
    return [
        name
        for name, arm in arms.items()
        if not arm.outcomes.get("ok") and arm.requests > arm.outcomes.get("not_sent", 0)
    ]


def _verdict(arms: dict[str, ArmSummary], found: list[Finding], partial: bool) -> str:
    """The last line of the table."""
    dead = _dead(arms)
    if dead:
        return "failed: no request succeeded in " + ", ".join(dead)
    invalid = list(dict.fromkeys(finding.rule for finding in found if finding.level == "invalid"))
    if invalid:
        return "invalid: " + ", ".join(invalid)
    warnings = len(found)
    return ("stopped early, valid so far" if partial else "valid") + (
        f", with {warnings} warning{'s' if warnings > 1 else ''}" if warnings else ""
    )
