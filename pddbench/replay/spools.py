"""The spools of one run read as one: each worker wrote its own, and every request is in one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pddbench.errors import WorldError
from pddbench.replay import frames
from pddbench.replay.kernel import KernelClock
from pddbench.replay.spool import RequestFrames, Spool, read_spool


class Spools:
    """What the workers of a run left. `workers` are their numbers, in the order of `paths`."""

    def __init__(self, paths: Sequence[Path], workers: Sequence[int], requests: int) -> None:
        import numpy as np

        self._parts: list[tuple[int, Spool]] = []
        self._owner = np.full(requests, -1, dtype=np.int32)
        try:
            for worker, path in zip(workers, paths, strict=True):
                if len(paths) > 1 and path.stat().st_size == 0:
                    continue  # killed before its first frame: the others say what the run was
                spool = read_spool(path)
                self._parts.append((worker, spool))
                self._owner[spool.seen(requests)] = len(self._parts) - 1
        except BaseException:
            self.close()
            raise
        if not self._parts:
            raise WorldError("its spools are empty: nothing of this run was saved")
        self._clocks = [
            KernelClock([(sample.t_ns, sample.offset_ns) for sample in spool.clock_offsets]) for _, spool in self._parts
        ]

    @property
    def t0_ns(self) -> int:
        """The common start, CLOCK_MONOTONIC."""
        started = [spool.t0_ns for _, spool in self._parts if spool.started]
        return started[0] if started else min(spool.t0_ns for _, spool in self._parts)

    @property
    def exact_timer(self) -> bool | None:
        """Whether every worker's starts were paced by a timerfd; null where one does not say."""
        said = [spool.exact_timer for _, spool in self._parts if spool.started]
        return None if not said or None in said else all(said)

    @property
    def reader(self) -> str | None:
        """Who read the answers, as for `runner.workers`; null where one does not say."""
        said = {spool.reader for _, spool in self._parts if spool.started}
        return "python" if len(said) > 1 and None not in said else said.pop() if len(said) == 1 else None

    @property
    def killed(self) -> bool:
        """Whether a worker's spool has no end: what it did in its last moments may not be there."""
        return any(spool.status == "killed" for _, spool in self._parts)

    @property
    def planned(self) -> int:
        """Requests of the whole run."""
        return self._parts[0][1].opened.requests

    @property
    def torn_bytes(self) -> int:
        """Behind the last whole frames."""
        return sum(spool.torn_bytes for _, spool in self._parts)

    @property
    def health(self) -> Iterator[tuple[int, frames.Health]]:
        """Health samples with their worker, worker by worker."""
        for worker, spool in self._parts:
            for sample in spool.health:
                yield worker, sample

    def request(self, index: int) -> tuple[RequestFrames, KernelClock, int | None]:
        """Everything of request `index`, the clock of whose kernel stamps it has, and its worker (None: nobody's)."""
        part = int(self._owner[index])
        if part < 0:
            return RequestFrames(), self._clocks[0], None
        worker, spool = self._parts[part]
        return spool.request(index), self._clocks[part], worker

    def count_sent(self) -> tuple[int, int]:
        """How many requests were sent, and how many of those have no end."""
        counts = [spool.count_sent() for _, spool in self._parts]
        return sum(sent for sent, _ in counts), sum(open_ for _, open_ in counts)

    def let_go(self) -> None:
        """See `Spool.let_go`."""
        for _, spool in self._parts:
            spool.let_go()

    def close(self) -> None:
        """Unmap the files."""
        for _, spool in self._parts:
            spool.close()
