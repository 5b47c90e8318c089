"""Gaps between token times on their way to Parquet, a group of requests at once."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pddbench.runfolder.events import RequestEvents, events_table

TIMES = st.lists(st.integers(0, 10**12).map(lambda t: 10**15 + t), max_size=6).map(sorted)


@given(st.lists(TIMES, max_size=8), st.sampled_from([1.0, 0.5, 4.0]))
def test_gaps_are_those_of_each_request(times, speed):
    """Without it the gap between two requests' tokens could count as one of a stream, or move to a neighbour."""
    rows = [RequestEvents(f"r{i}", one, [1] * len(one)) for i, one in enumerate(times)]
    table = events_table(rows, "a", 1, speed)
    expected = [[round((b - a) * (speed / 1000)) for a, b in pairwise(one)] for one in times]
    assert table.column("gaps_us").to_pylist() == expected
    assert table.column("request_id").to_pylist() == [row.request_id for row in rows]
