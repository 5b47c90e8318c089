"""A link that fails under the real mini-PDD: what was under way waits, and nothing is lost, doubled or changed."""

import pytest

from tests.engines.engine_kit import require, run_mini

pytestmark = pytest.mark.slow

DOWN_S, UP_S = 0.8, 1.5  # up for longer than a sender that waits for an answer doubles its patience
TIMES = 20  # more than a run has time for: how long it takes is the machine's
LONG_TOKENS = 700
EXPERIMENT = f"""
name = "mini"
[workload]
trace = "small.trace.jsonl"
max_concurrency = 1
[emulator]
threshold_s = 0
[wan]
one_way_ms = 5
rate_mbit = 200
events = ["flap 0.3 {DOWN_S} {UP_S} {TIMES}"]
[[arm]]
name = "naive"
engine = "llamacpp"
deployment = "naive"
[[arm]]
name = "pdd"
engine = "llamacpp"
deployment = "pdd"
"""


@pytest.fixture(scope="module")
def flapped(tmp_path_factory):
    """Two arms over a link of packets that fails again and again while long answers stream."""
    require("xllamacpp")
    return run_mini(tmp_path_factory.mktemp("flap"), EXPERIMENT, 2, LONG_TOKENS)


def test_answers_stay_whole(flapped):
    """Without it a token that was under way when the link failed could be lost, doubled or made anew."""
    run, _ = flapped
    requests = run.requests
    assert (requests["outcome"] == "ok").all()
    naive, pdd = (requests[requests["arm"] == arm].set_index("request_id") for arm in ("naive", "pdd"))
    assert naive["output_sha256"].equals(pdd["output_sha256"])
    assert (requests["completion_tokens"] == requests["output_tokens_planned"]).all()
    for arm in ("naive", "pdd"):
        server = run.server
        checked = server[(server["arm"] == arm) & (server["process"] == "exactness")].set_index("metric")["value"]
        assert checked["replies"] == 5 and checked["differing"] == 0  # the preflight too


def test_the_failures_happened_and_were_felt(flapped):
    """Without it an event that never reached the link would pass for a deployment that bears it."""
    run, said = flapped
    for entry in run.manifest["runs"]:
        changes = entry["link_changes"]
        assert len(changes) >= 2
        assert [change["rate_share"] for change in changes] == [k % 2 for k in range(len(changes))]
        assert all(change["in_force_s"] >= change["wanted_s"] for change in changes)
        assert len(changes) + len(entry["link"]["changes_not_reached"]) == 2 * TIMES
    assert "flap" in said
    naive = run.requests[run.requests["arm"] == "naive"]  # all it has comes over the link; RLD may do without
    waited_ns = max(naive["max_gap_ns"].max(), (naive["first_token_ns"] - naive["due_ns"]).max())
    assert waited_ns > 0.9 * DOWN_S * 1e9
