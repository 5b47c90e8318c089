"""The unit of time that readers assume."""

import json

import pytest

from pddbench.trace.read import read_trace
from pddbench.trace.units import time_unit


@pytest.mark.parametrize(
    ("starts_s", "expected"),
    [
        ([0.0, 1.0], "t read as s: 2 requests in 1 s"),
        ([5.0, 5.0, 5.0], "t read as s: 3 requests in 0 s"),
        ([0.0, 4.0, 2.0], "t read as s: 3 requests in 4 s, 0.5 a second"),
        ([0.0, 1e-4, 2e-4], "warning: t read as s: 3 requests in 0.0002 s, 1e+04 a second, which is implausibly fast"),
        ([0.0, 1e4, 2e4], "warning: t read as s: 3 requests in 20000 s, 0.0001 a second, which is implausibly slow"),
    ],
)
def test_rate_is_told_and_doubted(starts_s, expected):
    """A thousand times too slow or too fast must not pass without a word."""
    assert time_unit(starts_s, "t", "s") == expected


def test_bailian_in_milliseconds_is_doubted(tmp_path):
    """The commonest mistake when somebody converts a trace to this format."""
    row = {"parent_chat_id": -1, "input_length": 16, "output_length": 1, "hash_ids": [1]}
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps({"chat_id": i, "timestamp": i * 9e6, **row}) + "\n" for i in range(5)))
    first = read_trace(path).header.assumptions[0]
    assert first.startswith("warning") and "if they are milliseconds, divide them by 1000" in first
