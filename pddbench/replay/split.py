"""A plan split over several workers: sessions whole, so that nobody has to wait for another worker's request."""

from __future__ import annotations

from pddbench.errors import InputError
from pddbench.workload.plan import BEFORE_START, Plan


def split_sessions(plan: Plan, workers: int) -> list[list[int]]:
    """The requests of each worker, ascending. By start, each session goes to who has the fewest output tokens so far.

    What is sent before the start (warm-ups, primes) is split apart from the rest in the same way.
    """
    starts: dict[tuple[bool, str], int] = {}
    tokens: dict[tuple[bool, str], int] = {}
    for request in plan.requests:
        session = request.kind in BEFORE_START, request.session_id
        start_ns = request.start_ns if request.start_ns is not None else starts.get(session, 0)
        starts[session] = min(starts.get(session, start_ns), start_ns)
        tokens[session] = tokens.get(session, 0) + request.output_tokens
    owner: dict[tuple[bool, str], int] = {}
    loads = {True: [0] * workers, False: [0] * workers}
    for session in sorted(starts, key=starts.__getitem__):
        load = loads[session[0]]
        owner[session] = least = load.index(min(load))
        load[least] += tokens[session]
    parts: list[list[int]] = [[] for _ in range(workers)]
    for request in plan.requests:
        parts[owner[request.kind in BEFORE_START, request.session_id]].append(request.index)
    return parts


def usable_workers(plan: Plan, asked: int) -> int:
    """As many workers as there are measured sessions, at most those asked for."""
    if asked == 1:
        return 1
    return min(asked, len({request.session_id for request in plan.requests if request.kind not in BEFORE_START}))


def share_of_rate(rate: float | None, workers: int) -> float | None:
    """A worker's part of a limit on starts a second: equal parts, so that the sum never exceeds the limit."""
    return None if rate is None else rate / workers


def share_of_places(places: int | None, workers: int, worker: int) -> int | None:
    """A worker's part of a limit on requests in flight: whole places, the first workers have those left over.

    Raises `InputError` when there are fewer places than workers.
    """
    if places is None:
        return None
    if places < workers:
        raise InputError(
            f"max_concurrency = {places} cannot be split over {workers} workers, each needs a place: "
            f"use at most {places} workers, or more places"
        )
    return places // workers + (worker < places % workers)
