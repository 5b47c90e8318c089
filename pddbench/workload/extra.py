"""What a plan holds besides the measured requests: sessions that bring a cache into its state, primes, warm-ups."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import msgspec

from pddbench.errors import InputError
from pddbench.workload.identity import request_sha256
from pddbench.workload.requests import NO_START, Requests

if TYPE_CHECKING:
    from pddbench.trace.hits import Basis


def leave_out_first(requests: Requests, sessions: int) -> None:
    """The first `sessions` sessions, by their start, are not measured: they bring the caches into their state."""
    import numpy as np

    session, start_ns = requests.ints("session"), requests.ints("start_ns")
    by_start = np.argsort(np.where(start_ns == NO_START, np.iinfo(np.int64).max, start_ns), kind="stable")
    some, place = np.unique(session[by_start], return_index=True)
    if sessions >= len(some):
        raise InputError(f"workload.warmup_sessions = {sessions} leaves none of the {len(some)} sessions to measure")
    first = some[np.argsort(place)[:sessions]]
    phase = requests.ints("phase")
    phase[np.isin(session, first)] = requests.word_code("warmup")
    requests.change("phase", phase)


def add_primes(requests: Requests, basis: Basis) -> None:
    """What sessions share with one another, sent once before the start: the longest shared part of each such donor.

    The planned hits follow: everything primed is there from the first request on.
    """
    import numpy as np

    from pddbench.trace.hits import Lengths, possible_hits

    session, donor, prefix = (requests.ints(name) for name in ("session", "prefix_of", "prefix_tokens"))
    across = np.flatnonzero((donor >= 0) & (session[donor] != session))
    shared: dict[int, int] = {}
    for one, tokens in zip(donor[across].tolist(), prefix[across].tolist(), strict=True):
        shared[one] = max(shared.get(one, 0), tokens)
    n = len(requests)
    for number, (one, tokens) in enumerate(shared.items()):
        like = requests[one]
        requests.append(
            msgspec.structs.replace(
                like,
                index=n + number,
                request_id=f"prime-{number}",
                session_id=f"prime-{number}",
                turn=0,
                kind="prime",
                phase="warmup",
                parents=(),
                start_ns=0,
                gap_ns=0,
                prefix_of=one,
                prefix_tokens=tokens,
                input_tokens=tokens,
                output_tokens=1,
                cached_tokens_planned=0,
                plan_sha256=hashlib.sha256(f"prime\n{like.plan_sha256}\n{tokens}".encode()).hexdigest(),
            )
        )
    turn_ns = np.concatenate([np.arange(n), np.arange(-len(shared), 0)])  # primes are asked for, and answered, first
    lengths = Lengths.of(requests.ints)
    hits = possible_hits(lengths, requests.ints("prefix_of"), turn_ns, turn_ns, basis)
    requests.change("cached_tokens_planned", np.minimum(hits, lengths.input_tokens - 1))


def add_warmups(requests: Requests, warmups: int) -> None:
    """So many requests of the lengths of the first ones, in tokens of their own: they warm code, not caches."""
    n = len(requests)
    for number in range(warmups):
        like, name = requests[number % n], f"warmup-{number}"
        requests.append(
            msgspec.structs.replace(
                like,
                index=n + number,
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
                plan_sha256=request_sha256([(name, 0, like.input_tokens)], like.output_tokens),
            )
        )
