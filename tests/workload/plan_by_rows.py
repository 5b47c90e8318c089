"""The plan made row by row, with an object a request: slow and plain; what the plan made in columns must equal."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import msgspec

from pddbench.errors import InputError
from pddbench.trace.contexts import Segment
from pddbench.trace.hits import Basis, donor_indices, planned_hits, possible_hits
from pddbench.trace.model import Row, Trace
from pddbench.workload.arrival import session_starts_s
from pddbench.workload.experiment import Workload
from pddbench.workload.paths import Paths
from pddbench.workload.plan import NS, Plan, PlannedRequest
from pddbench.workload.requests import Requests

LONGEST_S = 4e9


def make_plan(trace: Trace, work: Workload) -> Plan:
    """The plan of `work` on `trace`: who is sent when, after whom, sharing which tokens. Raises `InputError`."""
    counts: Counter[str] = Counter()
    notes: list[str] = []
    rows = _limited(trace.rows, work.limit_requests, notes)
    _check_rows(rows)
    donors = donor_indices(rows)
    if work.history == "live":
        rows, donors = _own_replies(rows, donors, counts, notes)
    hits = planned_hits(rows, "prompt+output" if work.history == "live" else "prompt", donors)
    starts = _start_times_ns(rows, work, notes)
    index_of = {row.request_id: i for i, row in enumerate(rows)}
    ids = [row.request_id for row in rows]
    paths = Paths(donors, [row.prefix_tokens for row in rows])
    requests = Requests()
    for i, row in enumerate(rows):
        output = max(1, row.output_tokens)
        counts["clamped_outputs"] += output != row.output_tokens
        requests.append(
            PlannedRequest(
                index=i,
                request_id=row.request_id,
                session_id=row.session_id,
                turn=row.turn,
                kind=row.kind,
                phase="measure",
                parents=tuple(index_of[parent] for parent in row.parents),
                start_ns=starts[i],
                gap_ns=_gap_ns(row, work, counts),
                prefix_of=donors[i],
                prefix_tokens=row.prefix_tokens,
                input_tokens=row.input_tokens,
                output_tokens=output,
                cached_tokens_planned=min(int(hits[i]), row.input_tokens - 1),
                plan_sha256=request_sha256(paths.of(i, row.input_tokens), ids, output),
            )
        )
    measured = len(requests)
    if work.cache == "steady":
        requests = Requests(_steady(requests, work.warmup_sessions))
    if work.cache == "primed":
        requests = Requests(_primed(requests, "prompt+output" if work.history == "live" else "prompt"))
        counts["primes"] = len(requests) - measured
    for request in _warmups(requests, work):
        requests.append(request)
    counts["warmups"] = len(requests) - measured - counts["primes"]
    found = {name: n for name, n in counts.items() if n}
    return Plan(requests.sealed(), work.timing, requests.sha256(), found, notes, None, work.history)


def _own_replies(
    rows: list[Row], donors: list[int], counts: Counter[str], notes: list[str]
) -> tuple[list[Row], list[int]]:
    """Live history: no prompt holds a reply of a request that it does not wait for; what that changes is said."""
    kept, kept_donors = only_own_replies(rows, donors)
    lost = [before.prefix_tokens - after.prefix_tokens for before, after in zip(rows, kept, strict=True)]
    live = sum(
        donor >= 0 and row.prefix_tokens > kept[donor].input_tokens
        for row, donor in zip(kept, kept_donors, strict=True)
    )
    counts["prompts_with_replies"] = live
    counts["cut_shared_replies"] = sum(tokens > 0 for tokens in lost)
    notes.append(
        "live history: the endpoint's own replies go into later prompts, so arms do not get the same bytes, and a "
        "reply of another length than planned changes the prompts after it (column input_tokens_sent)"
    )
    if not live:
        notes.append(
            "no prompt of this trace goes on from a reply (its format may not tell where replies are), so live history "
            "changes nothing but that sessions end at a failure"
        )
    if counts["cut_shared_replies"]:
        notes.append(
            f"{counts['cut_shared_replies']} prompts shared the reply of a request that they do not wait for: "
            f"{sum(lost)} tokens of them are fresh instead"
        )
    return kept, kept_donors


def _limited(rows: list[Row], limit: int | None, notes: list[str]) -> list[Row]:
    """The first `limit` rows, said aloud: a workload is never cut silently."""
    if limit is None or limit >= len(rows):
        return rows
    kept = rows[:limit]
    whole = Counter(row.session_id for row in rows)
    cut_off = sum(whole[session] != n for session, n in Counter(row.session_id for row in kept).items())
    notes.append(f"only the first {limit} of {len(rows)} requests of the trace; {cut_off} sessions cut short")
    return kept


def _check_rows(rows: list[Row]) -> None:
    if not rows:
        raise InputError("the trace has no requests: nothing to replay")
    for row in rows:
        if row.input_tokens < 1:
            raise InputError(f"request {row.request_id!r} has no input tokens: a prompt needs at least one")


def _start_times_ns(rows: list[Row], work: Workload, notes: list[str]) -> list[int | None]:
    """Scheduled starts from t0: of roots, or of every row with `timing = "trace"`; None where parents decide."""
    needs = [not row.parents or work.timing == "trace" for row in rows]
    first: dict[str, float] = {}
    for row, need in zip(rows, needs, strict=True):
        if need and row.start_s is None:
            raise InputError(
                f"request {row.request_id!r} has no recorded start_s, which "
                + ("a root needs" if not row.parents else "timing = 'trace' needs; use timing = 'think'")
            )
        if row.start_s is not None:
            first[row.session_id] = min(first.get(row.session_id, row.start_s), row.start_s)
    order = sorted(first, key=lambda session: first[session])
    zero = first[order[0]] if order else 0.0
    if zero > 0 and work.arrival == "trace":
        notes.append(f"the recorded starts begin at {zero:g} s; the replay begins at once")
    starts = dict(zip(order, session_starts_s(work, [first[s] - zero for s in order]), strict=True))

    def start_ns(row: Row) -> int:
        assert row.start_s is not None
        inside = (row.start_s - first[row.session_id]) * work.time_scale
        return _ns(starts[row.session_id] + inside, f"the start of request {row.request_id!r}")

    return [start_ns(row) if need else None for row, need in zip(rows, needs, strict=True)]


def _gap_ns(row: Row, work: Workload, counts: Counter[str]) -> int:
    """Wall gap after the last parent: min(gap, idle cap) x time scale; unknown and negative ones are 0, counted."""
    if not row.parents or work.timing != "think":
        return 0
    if row.gap_s is None:
        counts["unknown_gaps"] += 1
        return 0
    if row.gap_s < 0:
        counts["negative_gaps"] += 1
        return 0
    gap_s = row.gap_s
    if work.idle_cap_s is not None and gap_s > work.idle_cap_s:
        counts["capped_gaps"] += 1
        gap_s = work.idle_cap_s
    return _ns(gap_s * work.time_scale, f"the wait before request {row.request_id!r}")


def _ns(seconds: float, what: str) -> int:
    """Seconds as nanoseconds. Raises `InputError` beyond what a timer can be set to."""
    if not seconds <= LONGEST_S:
        raise InputError(
            f"{what} comes to {seconds:g} s, more than any timer can be set to ({LONGEST_S:g} s): "
            "use a smaller time_scale, or a larger session_rate"
        )
    return round(seconds * NS)


def request_sha256(prompt: Sequence[Segment], ids: Sequence[str], output_tokens: int) -> str:
    """Identity of what is asked, before any salt: where each token comes from, and how many are wanted."""
    parts = [f"{ids[seg.owner]}[{seg.start}:{seg.end}]" for seg in prompt]
    return hashlib.sha256("\n".join([*parts, str(output_tokens)]).encode()).hexdigest()


def _steady(requests: Sequence[PlannedRequest], sessions: int) -> list[PlannedRequest]:
    """The first `sessions` sessions, by their start, are not measured: they bring the caches into their state."""
    order: dict[str, int] = {}
    for request in sorted(requests, key=lambda r: (r.start_ns is None, r.start_ns or 0)):
        order.setdefault(request.session_id, len(order))
    if sessions >= len(order):
        raise InputError(f"workload.warmup_sessions = {sessions} leaves none of the {len(order)} sessions to measure")
    return [
        msgspec.structs.replace(request, phase="warmup") if order[request.session_id] < sessions else request
        for request in requests
    ]


def _primed(requests: Sequence[PlannedRequest], basis: Basis) -> list[PlannedRequest]:
    """What sessions share with one another, sent once before the start: the longest shared part of each such donor.

    The planned hits follow: everything primed is there from the first request on.
    """
    shared: dict[int, int] = {}
    for request in requests:
        donor = request.prefix_of
        if donor >= 0 and requests[donor].session_id != request.session_id:
            shared[donor] = max(shared.get(donor, 0), request.prefix_tokens)
    primes = [
        msgspec.structs.replace(
            requests[donor],
            index=len(requests) + n,
            request_id=f"prime-{n}",
            session_id=f"prime-{n}",
            turn=0,
            kind="prime",
            phase="warmup",
            parents=(),
            start_ns=0,
            gap_ns=0,
            prefix_of=donor,
            prefix_tokens=tokens,
            input_tokens=tokens,
            output_tokens=1,
            cached_tokens_planned=0,
            plan_sha256=hashlib.sha256(f"prime\n{requests[donor].plan_sha256}\n{tokens}".encode()).hexdigest(),
        )
        for n, (donor, tokens) in enumerate(shared.items())
    ]
    everything = [*requests, *primes]
    turn_ns = [*range(len(requests)), *range(-len(primes), 0)]  # primes are asked for, and answered, first
    hits = possible_hits(everything, [request.prefix_of for request in everything], turn_ns, turn_ns, basis)
    return [
        msgspec.structs.replace(request, cached_tokens_planned=min(int(hit), request.input_tokens - 1))
        for request, hit in zip(everything, hits, strict=True)
    ]


def _warmups(requests: Sequence[PlannedRequest], work: Workload) -> list[PlannedRequest]:
    """`work.warmups` requests of the lengths of the first ones, in tokens of their own: they warm code, not caches."""
    out = []
    for n in range(work.warmups):
        like = requests[n % len(requests)]
        index, name = len(requests) + n, f"warmup-{n}"
        digest = request_sha256([Segment(0, 0, like.input_tokens)], [name], like.output_tokens)
        out.append(
            msgspec.structs.replace(
                like,
                index=index,
                request_id=name,
                session_id=name,
                turn=0,
                kind="warmup",
                phase="warmup",
                parents=(),
                start_ns=0,
                gap_ns=0,
                prefix_of=-1,
                prefix_tokens=0,
                cached_tokens_planned=0,
                plan_sha256=digest,
            )
        )
    return out


def only_own_replies(rows: Sequence[Row], donors: Sequence[int]) -> tuple[list[Row], list[int]]:
    """Rows whose prompts hold replies of their own ancestors only, and the index of each row's donor (-1: none).

    A prompt can hold the live reply of a request only if it is sent after it. Where a trace shares a reply across
    branches or sessions, the prefix is cut before that reply, and the rest of the prompt is fresh.
    """
    after = _Ancestors(rows)
    out: list[Row] = []
    kept: list[int] = []
    owner_before: list[int] = []  # by row: the owner of the segment that its own segment continues
    for i, row in enumerate(rows):
        donor, prefix = donors[i], row.prefix_tokens
        if donor >= 0 and not after.is_after(i, donor):
            owner, end = donor, prefix
            while owner >= 0:
                start = out[owner].prefix_tokens
                if end > max(start, out[owner].input_tokens) and not after.is_after(i, owner):
                    prefix = out[owner].input_tokens
                owner, end = owner_before[owner], min(end, start)
            if prefix < row.prefix_tokens:
                donor = donor if prefix else -1
                row = msgspec.structs.replace(row, prefix_of=row.prefix_of if prefix else None, prefix_tokens=prefix)
        out.append(row)
        kept.append(donor)
        owner = donor
        while owner >= 0 and prefix <= out[owner].prefix_tokens:
            owner = owner_before[owner]
        owner_before.append(owner)
    return out, kept


class _Ancestors:
    """Which requests have ended before a request is sent: parents, and theirs. A bit a request of the session."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._session = [row.session_id for row in rows]
        index_of: dict[str, int] = {}
        size: Counter[str] = Counter()
        self._bit: list[int] = []
        self._before: list[int] = []
        for i, row in enumerate(rows):
            index_of[row.request_id] = i
            self._bit.append(1 << size[row.session_id])
            size[row.session_id] += 1
            before = 0
            for parent in row.parents:
                at = index_of[parent]
                before |= self._bit[at] | self._before[at]
            self._before.append(before)

    def is_after(self, i: int, other: int) -> bool:
        """Whether request i is sent only after `other` has ended."""
        return self._session[i] == self._session[other] and bool(self._before[i] & self._bit[other])
