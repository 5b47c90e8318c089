"""Prefix caches by path: bounded, least recently used first, with a time to live; and what a sender knows of one.

A cache holds, of each owner's run of blocks, a leading part; all that the run stands on is there too. What may be
evicted is the end of a run that no other run stands on. A run is as old as its last use or that of anything on it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from pddbench.deploy.emulator.blocks import Path, Piece, block_at


class _Run:
    """What is present of an owner's blocks: [start, stop). `on_it` counts runs by where they branch off."""

    __slots__ = ("on_it", "owner", "parent", "pins", "stamp", "start", "stop")

    def __init__(self, owner: int, start: int, parent: _Run | None) -> None:
        self.owner, self.start, self.stop, self.parent = owner, start, start, parent
        self.on_it: dict[int, int] = {}
        self.stamp, self.pins = 0.0, 0

    def stand(self, at: int) -> None:
        """Something stands on the blocks before `at`."""
        self.on_it[at] = self.on_it.get(at, 0) + 1

    def leave(self, at: int) -> None:
        """It does no more."""
        self.on_it[at] -= 1
        if not self.on_it[at]:
            del self.on_it[at]

    def floor(self) -> int:
        """Blocks that others stand on: eviction must stop there."""
        return max(self.on_it) if self.on_it else self.start


class RadixCache:
    """A prefix cache of `capacity` blocks (None: no bound), where unused blocks live for `ttl_s` (None: for ever).

    `on_evict(owner, stop)` tells that an owner's blocks from `stop` on are gone (0: all that it had).
    """

    def __init__(
        self,
        capacity: int | None = None,
        ttl_s: float | None = None,
        on_evict: Callable[[int, int], None] | None = None,
    ) -> None:
        self.capacity, self.ttl_s, self._on_evict = capacity, ttl_s, on_evict
        self._bounded = capacity is not None or ttl_s is not None
        self._runs: dict[int, _Run] = {}
        self._oldest: list[tuple[float, int, _Run]] = []
        self._entries = 0
        self.blocks = self.evicted_blocks = 0

    def match(self, path: Path, now_s: float) -> int:
        """How many leading blocks are present; they count as used now.

        Where the path leaves a run on its way, what is behind that point was not used; what is before it is protected
        by what will be put in after it.
        """
        self._expire(now_s)
        for owner, start, stop in reversed(path):
            run = self._runs.get(owner)
            if run is not None and run.stop > start:
                if stop >= run.stop or owner == path[-1][0]:
                    self._touch(run, now_s)
                return min(run.stop, stop)
        return 0

    def peek(self, path: Path) -> int:
        """As `match`, without using anything."""
        for owner, start, stop in reversed(path):
            run = self._runs.get(owner)
            if run is not None and run.stop > start:
                return min(run.stop, stop)
        return 0

    def insert(self, path: Path, now_s: float) -> Path:
        """Put a prompt's blocks in, as many as there is room for; returns the pieces that are new."""
        self._expire(now_s)
        have = self.peek(path)
        new: Path = []
        parent: _Run | None = None
        for owner, start, stop in path:
            run = self._runs.get(owner)
            if run is None or run.stop < stop:
                run = self._extend(run, parent, (owner, start, stop), new, now_s)
                if run is None or run.stop < stop:
                    break
            parent = run
        deepest = self._runs.get(path[-1][0]) if path else None
        if deepest is not None and not new and have:
            self._touch(deepest, now_s)
        return new

    def _extend(self, run: _Run | None, parent: _Run | None, piece: Piece, new: Path, now_s: float) -> _Run | None:
        """Lengthen a run (or begin it) to hold `piece`, as far as there is room."""
        owner, start, stop = piece
        at = start if run is None else run.stop
        held = run if run is not None else parent
        if held is not None:
            held.stand(at)  # making room must not take what this stands on
        room = self._room(stop - at)
        if held is not None:
            held.leave(at)
            self._push(held)
        if room <= 0:
            return run
        if run is None:
            run = self._runs[owner] = _Run(owner, start, parent)
            if parent is not None:
                parent.stand(start)
        run.stop = at + room
        self.blocks += room
        new.append((owner, at, run.stop))
        self._touch(run, now_s)
        return run

    def pin(self, owner: int) -> None:
        """Keep a run (and what it stands on) from eviction until `unpin`."""
        run = self._runs.get(owner)
        if run is not None:
            run.pins += 1

    def unpin(self, owner: int) -> None:
        """Let go of a run again."""
        run = self._runs.get(owner)
        if run is not None:
            run.pins -= 1
            self._push(run)

    def cut(self, owner: int, stop: int) -> None:
        """Take an owner's blocks from `stop` on out."""
        run = self._runs.get(owner)
        if run is not None and run.stop > stop:
            self._trim(run, stop)

    def relied_on(self, pieces: Path) -> bool:
        """Whether anything but the pieces themselves, which follow one another, stands on them."""
        for (owner, start, stop), following in zip(pieces, [*pieces[1:], None], strict=False):
            run = self._runs.get(owner)
            if run is None:
                continue
            own = None if following is None else following[1]
            if run.stop > stop or any(n > (at == own) for at, n in run.on_it.items() if at > start):
                return True
        return False

    def _touch(self, run: _Run, now_s: float) -> None:
        run.stamp = now_s
        self._push(run)

    def _push(self, run: _Run) -> None:
        if self._bounded:
            self._entries += 1
            heapq.heappush(self._oldest, (run.stamp, self._entries, run))

    def _room(self, wanted: int) -> int:
        """How many of the wanted blocks fit, after evicting what must go."""
        if self.capacity is None:
            return wanted
        while self.blocks + wanted > self.capacity:
            run = self._next_victim(math.inf)
            if run is None:
                break
            self._evict(run, max(run.floor(), run.stop - (self.blocks + wanted - self.capacity)))
        return min(wanted, self.capacity - self.blocks)

    def _expire(self, now_s: float) -> None:
        if self.ttl_s is not None:
            while (run := self._next_victim(now_s - self.ttl_s)) is not None:
                self._evict(run, run.floor())

    def _next_victim(self, before_s: float) -> _Run | None:
        """The run whose end was used longest ago, if that was before a time."""
        heap = self._oldest
        while heap and heap[0][0] < before_s:
            stamp, _, run = heap[0]
            if run.stamp == stamp and run.stop > run.floor() and not run.pins and self._runs.get(run.owner) is run:
                return run
            heapq.heappop(heap)
        return None

    def _evict(self, run: _Run, stop: int) -> None:
        self.evicted_blocks += run.stop - stop
        if self._on_evict is not None:
            self._on_evict(run.owner, stop if stop > run.start else 0)
        self._trim(run, stop)

    def _trim(self, run: _Run, stop: int) -> None:
        """Cut a run's end off; a run without blocks is no more, and what it stood on is as old as it was."""
        self.blocks -= run.stop - stop
        run.stop = stop
        if stop > run.start:
            return
        del self._runs[run.owner]
        parent = run.parent
        if parent is not None:
            parent.leave(run.start)
            parent.stamp = max(parent.stamp, run.stamp)
            self._push(parent)


class Directory:
    """What the sender knows of another side's cache, and decides for it: blocks there, blocks on their way, evictions.

    KV under way counts as present, with a dependency on its arrival; sent again it would fill the line
    (`count_in_flight=False` does that on purpose). What is under way, or stands under what is, is not evicted.
    """

    def __init__(self, cache: RadixCache, count_in_flight: bool = True) -> None:
        self.cache, self._count_in_flight = cache, count_in_flight
        self._flying: dict[int, list[tuple[int, int, int]]] = {}  # owner -> (start, stop, transfer)
        self._carried: dict[int, tuple[Path, int]] = {}  # transfer -> its pieces, the owner it stands on
        self._dependents: dict[int, set[int]] = {}

    @property
    def in_flight(self) -> int:
        """Transfers under way."""
        return len(self._carried)

    def match(self, path: Path, now_s: float) -> int:
        """Leading blocks that are there or (counted as such) on their way."""
        have = self.cache.match(path, now_s)
        return have if self._count_in_flight else self._arrived_part(path, have)

    def peek(self, path: Path) -> int:
        """As `match`, without using anything."""
        have = self.cache.peek(path)
        return have if self._count_in_flight else self._arrived_part(path, have)

    def _arrived_part(self, path: Path, have: int) -> int:
        for owner, start, stop in path:
            for a, b, _ in self._flying.get(owner, ()):
                if max(a, start) < min(b, stop, have):
                    return max(a, start)
        return have

    def carriers(self, path: Path, have: int) -> set[int]:
        """The transfers under way that carry any of the first `have` blocks of a path."""
        flying, out = self._flying, set()
        if flying:
            for owner, start, stop in path:
                if owner in flying and start < have:
                    out |= {n for a, b, n in flying[owner] if max(a, start) < min(b, stop, have)}
        return out

    def start(self, transfer: int, path: Path, have: int, now_s: float) -> tuple[set[int], Path]:
        """A transfer starts that carries the blocks after the first `have`.

        Returns the transfers it depends on, and the pieces that it adds (fewer than it carries when the cache is full).
        """
        needs = self.carriers(path, have)
        below = block_at(path, have)
        base = -1 if below is None else below[0]
        self.cache.pin(base)
        new = self.cache.insert(path, now_s)
        for owner, start, stop in new:
            self.cache.pin(owner)
            self._flying.setdefault(owner, []).append((start, stop, transfer))
        self._carried[transfer] = (new, base)
        for other in needs:
            self._dependents.setdefault(other, set()).add(transfer)
        return needs, new

    def arrived(self, transfer: int) -> None:
        """All that a transfer carries is there."""
        self._land(transfer)
        self._dependents.pop(transfer, None)

    def cancel(self, transfer: int) -> bool:
        """Forget a transfer, unless others rely on it (False: it must go on)."""
        pieces, _ = self._carried.get(transfer, ([], -1))
        if self._dependents.get(transfer) or self.cache.relied_on(pieces):
            return False
        self._land(transfer)
        for owner, start, _ in reversed(pieces):
            self.cache.cut(owner, start)
        self._dependents.pop(transfer, None)
        for others in self._dependents.values():
            others.discard(transfer)
        return True

    def _land(self, transfer: int) -> None:
        pieces, base = self._carried.pop(transfer, ([], -1))
        for owner, _, _ in pieces:
            left = [item for item in self._flying[owner] if item[2] != transfer]
            if left:
                self._flying[owner] = left
            else:
                del self._flying[owner]
            self.cache.unpin(owner)
        self.cache.unpin(base)


class Store:
    """The other side of a `Directory`: which blocks have really arrived. Blocks arrive and go by pieces."""

    def __init__(self) -> None:
        self._stop: dict[int, int] = {}

    def has(self, owner: int, position: int) -> bool:
        """Whether a block is here."""
        return self._stop.get(owner, 0) > position

    def put(self, path: Path) -> None:
        """Blocks arrived."""
        for owner, _, stop in path:
            if stop > self._stop.get(owner, 0):
                self._stop[owner] = stop

    def cut(self, owner: int, stop: int) -> None:
        """An owner's blocks from `stop` on are to go."""
        if self._stop.get(owner, 0) > stop:
            if stop:
                self._stop[owner] = stop
            else:
                del self._stop[owner]
