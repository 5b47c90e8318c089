"""A plan split over several workers: sessions whole, so that nobody has to wait for another worker's request."""

from __future__ import annotations

from collections.abc import Sequence

from pddbench.errors import InputError
from pddbench.workload.plan import BEFORE_START, Plan
from pddbench.workload.requests import as_columns


def split_sessions(plan: Plan, workers: int) -> list[Sequence[int]]:
    """The requests of each worker, ascending. By start, each session goes to who has the fewest output tokens so far.

    What is sent before the start (warm-ups, primes) is split apart from the rest in the same way.
    """
    import numpy as np

    requests = as_columns(plan.requests)
    session = 2 * requests.ints("session") + requests.is_one_of("kind", BEFORE_START)
    n = int(session.max(initial=-1)) + 1
    starts = np.full(n, np.iinfo(np.int64).max)
    given = requests.ints("start_ns")
    np.minimum.at(starts, session[given >= 0], given[given >= 0])
    tokens = np.bincount(session, weights=requests.ints("output_tokens"), minlength=n).astype(np.int64).tolist()
    owner, loads = [0] * n, ([0] * workers, [0] * workers)
    for one in np.argsort(starts, kind="stable").tolist():
        load = loads[one % 2]
        owner[one] = least = load.index(min(load))
        load[least] += tokens[one]
    owners = np.array(owner, dtype=np.int32)[session]
    return [np.flatnonzero(owners == worker).data for worker in range(workers)]


def usable_workers(plan: Plan, asked: int) -> int:
    """As many workers as there are measured sessions, at most those asked for."""
    if asked == 1:
        return 1
    requests = as_columns(plan.requests)
    measured = ~requests.is_one_of("kind", BEFORE_START)
    return min(asked, len(set(requests.ints("session")[measured].tolist())))


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
