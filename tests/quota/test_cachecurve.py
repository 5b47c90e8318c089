"""Curves of finite caches, against caches of every size that are really kept."""

from test_oracle import random_rows, written_out

from pddbench.trace.cachecurve import cache_curves
from pddbench.trace.hits import planned_hits
from pddbench.trace.model import Row

SIZES = [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 10_000]


def lru_hits(rows: list[Row], capacity: int, basis: str) -> list[int]:
    """A cache of `capacity` tokens; of one request's tokens the last of its prompt are the first to go."""
    cache: dict[tuple[object, ...], None] = {}  # prefix: its last token is cached; the oldest first
    hits = []
    for row, (prompt, context) in zip(rows, written_out(rows), strict=True):
        prefixes = [tuple(prompt[: n + 1]) for n in range(len(prompt))]
        hits.append(next((n for n, prefix in enumerate(prefixes) if prefix not in cache), len(prompt)))
        kept = prompt if basis == "prompt" else context
        for n in range(len(kept), 0, -1):
            cache.pop(tuple(kept[:n]), None)
            cache[tuple(kept[:n])] = None
        for prefix in list(cache)[: max(0, len(cache) - capacity)]:
            del cache[prefix]
        assert row.input_tokens == len(prompt)
    return hits


def ttl_hits(rows: list[Row], ttl_s: float) -> list[int]:
    """A cache without limit that forgets a token `ttl_s` after its last use."""
    used: dict[tuple[object, ...], float] = {}
    hits = []
    for row, (prompt, _) in zip(rows, written_out(rows), strict=True):
        prefixes = [tuple(prompt[: n + 1]) for n in range(len(prompt))]
        fresh = [n for n, p in enumerate(prefixes) if p not in used or row.start_s - used[p] > ttl_s]
        hits.append(fresh[0] if fresh else len(prompt))
        used.update(dict.fromkeys(prefixes, row.start_s))
    return hits


def test_every_capacity_is_what_a_cache_of_that_size_hits():
    """A curve that is off misleads whoever sizes a cache by it."""
    for seed in range(6):
        rows = random_rows(seed, 30, 24)
        for basis in ("prompt", "prompt+output"):
            curve = cache_curves(rows, SIZES, basis=basis).capacity
            total = sum(row.input_tokens for row in rows)
            for size, found, mean in zip(SIZES, curve.token_weighted_hit, curve.mean_hit, strict=True):
                hits = lru_hits(rows, size, basis)
                assert abs(found - sum(hits) / total) < 1e-6
                assert abs(mean - sum(h / r.input_tokens for h, r in zip(hits, rows, strict=True)) / len(rows)) < 1e-6


def test_every_time_to_live_is_what_a_cache_that_forgets_hits():
    """A provider's cache has a time to live; its curve must not be a guess."""
    ages = [0.1, 0.7, 1.5, 2.5, 4.0, 8.0, 100.0]
    for seed in range(8):
        rows = random_rows(seed, 40, 24)
        curve = cache_curves(rows, ttls_s=ages).time_to_live
        total = sum(row.input_tokens for row in rows)
        for age, found in zip(ages, curve.token_weighted_hit, strict=True):
            assert abs(found - sum(ttl_hits(rows, age)) / total) < 1e-6


def test_a_cache_of_all_distinct_tokens_is_the_infinite_one():
    """Both ends of the curve are known: if they do not meet the plan, nothing between them does."""
    rows = random_rows(3, 60, 60)
    first = cache_curves(rows)
    curves = cache_curves(rows, [0, first.distinct_tokens])
    total = sum(row.input_tokens for row in rows)
    assert curves.capacity.token_weighted_hit == [0.0, round(int(planned_hits(rows).sum()) / total, 6)]


def test_rows_without_starts_have_no_time_to_live():
    """A made-up age would be a made-up curve."""
    rows = [Row("a", "a", 0, 10, 1, (), 0.0), Row("b", "a", 1, 12, 1, ("a",), None, 1.0, "a", 10)]
    curves = cache_curves(rows)
    assert curves.time_to_live is None and curves.order == "trace"
