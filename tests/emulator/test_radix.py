"""Prefix caches by runs of blocks against one that knows every single block."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from pddbench.deploy.emulator.blocks import block_at, cut_path, path_after
from pddbench.deploy.emulator.radix import Directory, RadixCache, Store


class BlockByBlock:
    """Leaf blocks used longest ago go first, one by one; `blocks`: (owner, position) -> time of last use."""

    def __init__(self, capacity, ttl_s):
        self.capacity, self.ttl_s = capacity, ttl_s
        self.used, self.before = {}, {}

    def leaves(self):
        inner = {self.before[block] for block in self.used}
        return [block for block in self.used if block not in inner]

    def use(self, path, now):
        """Expire, match, and put in as much as there is room for; returns the match."""
        if self.ttl_s is not None:
            while old := [block for block in self.leaves() if self.used[block] < now - self.ttl_s]:
                del self.used[old[0]]
        blocks = [(owner, at) for owner, start, stop in path for at in range(start, stop)]
        hit = next((i for i, block in enumerate(blocks) if block not in self.used), len(blocks))
        for i, block in enumerate(blocks):
            self.before[block] = blocks[i - 1] if i else None
            if i < hit:
                self.used[block] = now
        for block in blocks[hit:]:
            if self.capacity is not None and len(self.used) >= self.capacity:
                mine = set(blocks)
                free = [leaf for leaf in self.leaves() if leaf not in mine]
                if not free:
                    break
                del self.used[min(free, key=lambda leaf: (self.used[leaf], leaf))]
            self.used[block] = now
        return hit


def prompts(rng, count):
    """Paths of prompts, each of which leaves an earlier one somewhere and goes on with blocks of its own."""
    paths, stops = [], {}
    for owner in range(count):
        head = []
        if paths and rng.random() < 0.85:
            donor = rng.choice(paths)
            head = cut_path(donor, rng.randint(1, donor[-1][2]))
        at = head[-1][2] if head else 0
        paths.append([*head, (owner, at, at + rng.randint(1, 6))])
        stops[owner] = paths[-1][-1][2]
    return paths


@given(st.integers(0, 10**9), st.sampled_from([None, 6, 15, 40]), st.sampled_from([None, 3.0, 12.0]))
@settings(max_examples=300, deadline=None)
def test_runs_are_evicted_as_single_blocks_would_be(seed, capacity, ttl_s):
    """Breaks when a bound is not kept, or something else than what was used longest ago goes."""
    rng = random.Random(seed)
    paths = prompts(rng, 12)
    cache, truth = RadixCache(capacity, ttl_s), BlockByBlock(capacity, ttl_s)
    now = 0.0
    for _ in range(40):
        now += rng.random() * 2
        path = rng.choice(paths)
        hit = cache.match(path, now)
        cache.insert(path, now)
        assert hit == truth.use(path, now)
        assert cache.blocks == len(truth.used)
        assert capacity is None or cache.blocks <= capacity


@given(st.integers(0, 10**9), st.sampled_from([None, 8, 20]), st.booleans())
@settings(max_examples=200, deadline=None)
def test_the_other_side_has_what_the_directory_says(seed, capacity, count_in_flight):
    """Breaks when the sender builds on a block that the receiver has not got, or has evicted."""
    rng = random.Random(seed)
    store = Store()
    directory = Directory(RadixCache(capacity, None, store.cut), count_in_flight)
    paths, flying, now, number = prompts(rng, 10), {}, 0.0, 0
    for _ in range(60):
        now += 1.0
        kind = rng.random()
        if kind < 0.5 or not flying:
            number += 1
            path = rng.choice(paths)
            have = directory.match(path, now)
            needs, new = directory.start(number, path, have, now)
            assert count_in_flight or not needs
            assert all(start >= have for _, start, _ in new) or not count_in_flight
            flying[number] = (path, have, needs, new)
        else:
            ready = [n for n, item in flying.items() if not item[2] & set(flying)]
            chosen = rng.choice(ready)
            path, have, _, new = flying[chosen]
            if kind < 0.65 and directory.cancel(chosen):
                del flying[chosen]
                continue
            below = block_at(path, have)
            assert below is None or store.has(*below)
            store.put(new if count_in_flight else path_after(path, have))
            directory.arrived(chosen)
            del flying[chosen]
        assert capacity is None or directory.cache.blocks <= capacity
    assert directory.in_flight == len(flying)
