"""What a run's exchanges gather goes to the spool: a part of them every 10 ms, each at its end."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from pddbench.errors import WorldError
from pddbench.replay import frames
from pddbench.replay.exchange import Exchange, Transport
from pddbench.replay.pace import Pacer
from pddbench.replay.spool import SpoolWriter
from pddbench.replay.stream import RawRead

FLUSH_NS = 10_000_000
FLUSH_PARTS = 50  # a part of the streams every 10 ms: each of them twice a second
PUSH_TICKS = 5  # to the spool's thread every 50 ms: a wake-up of it takes the loop's core for a moment


class Recorder:
    """Writes a run's frames. `keep`: reads are kept for `take_kept` as well, which parses them while the run is on.

    `fail` is told once the spool cannot be written; `each_round` is called when all streams had their turn.
    """

    def __init__(
        self, spool: SpoolWriter, transport: Transport, *, keep: bool, fail: Callable[[WorldError], None],
        each_round: Callable[[], None],
    ) -> None:  # fmt: skip
        self._spool, self._transport, self._keep = spool, transport, keep
        self._fail, self._each_round = fail, each_round
        self._open: deque[Exchange] = deque()
        self._early: dict[int, tuple[Exchange, frames.Handed]] = {}  # prepared, and may still be taken back
        self._kept: dict[int, list[RawRead]] = {}
        self._ticks = 0

    def start(self, pacer: Pacer) -> None:
        """From now on, until the pacer is closed."""

        def tick() -> None:
            self._flush_some()
            pacer.call_at(time.monotonic_ns() + FLUSH_NS, tick)

        pacer.call_at(time.monotonic_ns() + FLUSH_NS, tick)

    def add(self, exchange: Exchange, handed: frames.Handed) -> None:
        """An exchange has begun, or will at its due time; `handed` is written once that has passed."""
        self._open.append(exchange)
        if exchange.due_ns > exchange.handed_ns:
            self._early[exchange.index] = exchange, handed
        else:
            self.write(handed)

    @property
    def early(self) -> int:
        """How many have been prepared and are not due yet."""
        return len(self._early)

    def forget(self, exchange: Exchange) -> None:
        """It was taken back before it was due."""
        self._early.pop(exchange.index, None)
        self._open.remove(exchange)

    def write(self, frame: frames.Frame) -> None:
        """A frame, with the next push."""
        try:
            self._spool.write(frame)
        except WorldError as error:
            self._fail(error)

    def flush(self, exchange: Exchange) -> None:
        """All that an exchange has gathered."""
        if exchange.index in self._early:
            self.write(self._early.pop(exchange.index)[1])
        if self._keep:
            if exchange.source is not None:
                exchange.source.collect()
            self._kept.setdefault(exchange.index, []).extend(exchange.all_reads())
        try:
            self._spool.flush_exchange(exchange)
        except WorldError as error:
            self._fail(error)

    def take_kept(self, index: int) -> list[RawRead]:
        """The reads of an exchange that has ended; they are not kept any longer."""
        return self._kept.pop(index, [])

    def _flush_some(self) -> None:
        """A part of the streams; the parts take turns so that no flush is long."""
        for _ in range(-(-len(self._open) // FLUSH_PARTS)):
            exchange = self._open.popleft()
            if exchange.ending is None:
                if self._keep or exchange.changed or exchange.reads or exchange.packed:
                    self.flush(exchange)
                self._open.append(exchange)
        self._gather()
        self._ticks += 1
        if self._ticks % PUSH_TICKS == 0:
            self._spool.push()
        if self._ticks % FLUSH_PARTS == 0:
            self._each_round()

    def _gather(self) -> None:
        """Reads that the transport's own reader holds, frames already; what tells of their requests goes before."""
        gathered = b"" if self._keep else self._transport.gather(FLUSH_PARTS)
        now_ns = time.monotonic_ns()
        for index in [index for index, (exchange, _) in self._early.items() if exchange.due_ns <= now_ns]:
            exchange, handed = self._early.pop(index)
            self.write(handed)
            if exchange.changed:  # when it was sent: should we be killed, that is known too
                self.flush(exchange)
        if gathered:
            try:
                self._spool.append(gathered)
            except WorldError as error:
                self._fail(error)
