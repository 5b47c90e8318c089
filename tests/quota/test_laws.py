"""Laws of lengths, and the arithmetic of buckets."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddbench.errors import InputError
from pddbench.trace.quota.histogram import largest_remainder, positions_for_mean, slice_counts, tilted
from pddbench.trace.quota.lengths import Draw, mean_of, quantiles, sample
from pddbench.trace.quota.spec import Law
from pddbench.trace.quota.structure import low_turns

LAWS = [
    Law(mean=500, sigma=1.1, min=1, max=16_000),
    Law(mean=500, sigma=0.0),
    Law(kind="exponential", mean=30, max=300),
    Law(kind="uniform", min=3, max=9),
    Law(kind="fixed", mean=7),
    Law(kind="quantiles", points=((0, 1), (0.5, 10), (1, 50))),
    Law(kind="quantiles", mean=20, points=((0, 1), (0.5, 10), (1, 50))),
]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: f"{law.kind}-{law.mean}")
def test_a_draw_has_the_mean_of_its_law_and_its_limits(law):
    """Lengths off by a few per cent in the mean would be the whole tolerance of the plan."""
    values = sample(law, 4_000, Draw(1))
    assert abs(values.mean() / mean_of(law) - 1) < 0.005
    assert law.mean is None or abs(mean_of(law) / law.mean - 1) < 0.001
    assert values.min() >= law.min and values.max() <= law.max
    ordered = quantiles(law, np.linspace(0.01, 0.99, 50))
    assert (np.diff(ordered) >= 0).all()


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(lambda s: sum(s) > 0.01), st.integers(0, 5_000))
def test_largest_remainder_is_whole_and_near(shares, total):
    """Counts to the request are the promise."""
    counts = largest_remainder(shares, total)
    assert sum(counts) == total
    assert all(abs(n - s / sum(shares) * total) < 1 + 1e-6 for n, s in zip(counts, shares, strict=True))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.integers(1, 9))
def test_the_parts_sum_to_the_whole(counts, parts):
    """A long trace is made in parts; a request lost between them would be missed by no part's own check."""
    slices = [slice_counts(counts, part, parts) for part in range(parts)]
    assert [sum(column) for column in zip(*slices, strict=True)] == counts


@settings(max_examples=50, deadline=None)
@given(st.floats(0.02, 0.98))
def test_a_tilted_law_has_its_mean(mean):
    """The first bucket makes up for all the others by its mean."""
    ranks = (np.arange(2_000) + 0.5) / 2_000
    assert abs(tilted(ranks, mean).mean() - mean) < 0.002


def test_the_first_bucket_gives_way_before_the_others():
    """The buckets that make the tail should keep their shape as long as they can."""
    edges = (0.0, 0.9, 0.95, 1.0)
    easy = positions_for_mean(0.8, [50, 25, 25], edges)
    hard = positions_for_mean(0.95, [10, 45, 45], edges)
    assert easy.others == 0.5 and 0.02 < easy.first < 0.98
    assert hard.others > 0.5 and hard.first == 0.98
    with pytest.raises(InputError, match="it lies at most at"):
        positions_for_mean(0.97, [0, 100, 0], edges)


@given(st.integers(1, 400), st.floats(0, 1), st.floats(0, 0.9), st.integers(0, 99))
def test_low_turns_are_as_many_as_planned(n, share, lag1, seed):
    """One low hit too many is one high hit too few."""
    n_low = round(share * n)
    assert low_turns(n, n_low, lag1, Draw(seed)).sum() == n_low


def test_low_turns_have_the_correlation_that_is_asked_for():
    """Clustering is a parameter, not an accident."""
    for lag1 in (0.0, 0.3, 0.6):
        low = low_turns(40_000, 6_000, lag1, Draw(3)).astype(float)
        assert abs(np.corrcoef(low[:-1], low[1:])[0, 1] - lag1) < 0.02


def test_more_low_hits_than_turns_are_refused():
    """Otherwise an index error would tell the user nothing."""
    with pytest.raises(InputError, match="5 low hits are to fall on 3 turns"):
        low_turns(3, 5, 0.3, Draw(1))
