"""The link's figures, its law of transfer times, and the fluid model that must follow it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddbench.errors import InputError
from pddbench.wan.backends import choose, named
from pddbench.wan.clock import VirtualClock
from pddbench.wan.fluid import FluidLink
from pddbench.wan.link import PROFILES, Link, resolve_link, window_mbit, wire_link
from pddbench.wan.shape import wire_shape
from pddbench.wan.transfer import INITIAL_WINDOW_BYTES, loss_bytes_s, transfer_s
from pddbench.workload.experiment import Wan

NATIONAL = PROFILES["national"]
LINKS = st.builds(
    lambda one_way, rate, part: Link(one_way, rate, rate * part),
    st.sampled_from([0.0, 0.5, 1.0, 5.0, 15.0, 33.0, 150.0]),
    st.floats(1, 100_000),
    st.floats(0.01, 1),
)


def run_flows(link, flows, cancels=()):
    """Arrival times of (start, bytes) flows; `cancels`: (flow, time). Checks the line's rate at every event."""
    clock = VirtualClock()
    fluid = FluidLink(link, clock)
    arrived = {}

    def start(i, n):
        fluid.send(i, n, lambda: arrived.setdefault(i, clock.now()))

    for i, (at, n) in enumerate(flows):
        clock.call_at(at, start, i, n)
    for i, at in cancels:
        clock.call_at(at, fluid.cancel, i)
    clock.run()
    return arrived, fluid


def test_one_megabyte_at_30_ms_is_the_slow_start_formula():
    """Breaks when handshake, initial window or doubling are wrong: predictions and waits would both be off."""
    link = Link(15.0, 10_000, 10_000)
    sent, rounds = 0, 0
    while sent + INITIAL_WINDOW_BYTES * 2**rounds < 1_000_000:
        sent += INITIAL_WINDOW_BYTES * 2**rounds
        rounds += 1
    last = (1_000_000 - sent) / (INITIAL_WINDOW_BYTES * 2**rounds / 0.03)
    assert rounds == 6
    assert transfer_s(link, 1_000_000) == pytest.approx(0.03 + rounds * 0.03 + last + 0.015)
    arrived, _ = run_flows(link, [(0.0, 1_000_000)])
    assert arrived[0] == pytest.approx(transfer_s(link, 1_000_000), rel=1e-6)


def test_a_warm_flow_is_half_an_rtt_and_the_cap():
    """Breaks when `fresh=False` still pays for slow start."""
    assert transfer_s(NATIONAL, 125e6, fresh=False) == pytest.approx(0.015 + 1.0)


def test_305_megabytes_take_about_two_and_a_half_seconds():
    """Breaks when the national profile no longer gives the 1 Gbit/s a flow that C1 implies."""
    assert transfer_s(NATIONAL, 6554 * 46_500) == pytest.approx(2.5, rel=0.12)


@given(LINKS, st.integers(1, 3_000_000_000))
@settings(max_examples=300, deadline=None)
def test_a_single_flow_follows_the_law(link, n_bytes):
    """Breaks when the model and the law that predicts it part: the router would be wrong about its own link."""
    arrived, fluid = run_flows(link, [(0.0, n_bytes)])
    assert arrived[0] == pytest.approx(transfer_s(link, n_bytes), rel=0.01)
    assert fluid.delivered_bytes == pytest.approx(n_bytes, abs=1)


def test_two_flows_share_the_line():
    """Breaks when flows do not share: two at once must take about twice as long as one, at the same rate each."""
    link = Link(1.0, 1000, 1000)
    alone, _ = run_flows(link, [(0.0, 1e9)])
    both, _ = run_flows(link, [(0.0, 1e9), (0.0, 1e9)])
    assert both[0] == pytest.approx(both[1])
    assert both[0] == pytest.approx(2 * alone[0], rel=0.01)


def test_what_a_capped_flow_leaves_goes_to_the_others():
    """Breaks when the share is equal instead of max-min: small windows would waste the line."""
    link = Link(15.0, 1000, 1000)
    arrived, _ = run_flows(link, [(0.0, 1e9), (5.0, 100_000)])
    alone, _ = run_flows(link, [(0.0, 1e9)])
    assert arrived[0] - alone[0] == pytest.approx(100_000 * 8 / 1e9, abs=1e-3)


FLOWS = st.lists(st.tuples(st.floats(0, 5), st.integers(1, 50_000_000)), min_size=1, max_size=8)


@given(LINKS, FLOWS, st.lists(st.tuples(st.integers(0, 7), st.floats(0, 5)), max_size=3))
@settings(max_examples=200, deadline=None)
def test_bytes_are_kept_and_the_rate_never_exceeded(link, flows, cancels):
    """Breaks when flows lose bytes, arrive before physics lets them, or a cancelled one arrives or blocks others."""
    arrived, fluid = run_flows(link, flows, cancels)
    gone = {i for i, _ in cancels}
    assert set(arrived) >= set(range(len(flows))) - gone
    total = sum(n for _, n in flows)
    assert fluid.delivered_bytes <= total + len(flows)
    assert fluid.delivered_bytes >= sum(flows[i][1] for i in arrived) - len(flows)
    for i, at in arrived.items():
        # slack: a flow counts as done when less than half a byte (or a nanosecond of its rate) is left
        assert at - flows[i][0] >= transfer_s(link, flows[i][1]) - 1e-6 - 0.5 / (link.rate_bytes_s / len(flows))
    if arrived and not gone:
        span = max(arrived.values()) - link.rtt_s * 1.5 - min(at for at, _ in flows)
        assert total <= link.rate_bytes_s * (span + 1e-6) + len(flows)


@given(LINKS, FLOWS)
@settings(max_examples=50, deadline=None)
def test_rates_stay_within_the_line_and_the_cap(link, flows):
    """Breaks when an event leaves rates that together exceed the line, or one that exceeds its flow's cap."""
    clock = VirtualClock()
    fluid = FluidLink(link, clock)
    seen = []
    share, begin = fluid._share, fluid._begin

    def look():
        rates = [flow.rate for flow in fluid._growing.values()] + [fluid._open_rate] * len(fluid._open)
        seen.append(rates + [fluid._cap] * len(fluid._free))

    def spy_share():
        share()
        look()

    def spy_begin(*args):
        begin(*args)
        look()

    fluid._share, fluid._begin = spy_share, spy_begin
    for i, (at, n) in enumerate(flows):
        clock.call_at(at, fluid.send, i, n, lambda: None)
    clock.run()
    assert any(seen)
    for rates in seen:
        assert sum(rates) <= link.rate_bytes_s * (1 + 1e-9)
        assert max(rates, default=0) <= link.flow_bytes_s * (1 + 1e-9)


def test_a_cancelled_flow_does_not_arrive_and_frees_its_share():
    """Breaks when a client that left still loads the line."""
    link = Link(1.0, 1000, 1000)
    arrived, _ = run_flows(link, [(0.0, 1e9), (0.0, 1e9)], [(1, 0.5)])
    alone, _ = run_flows(link, [(0.0, 1e9)])
    assert 1 not in arrived
    assert arrived[0] == pytest.approx(alone[0] + 0.25, rel=0.01)


@given(LINKS, st.integers(1, 100_000_000), st.floats(0, 1.2))
@settings(max_examples=100, deadline=None)
def test_the_rest_of_a_transfer_is_predicted_by_the_same_law(link, n_bytes, part):
    """Breaks when the router, asking how long KV under way still needs, gets another law's answer."""
    clock = VirtualClock()
    fluid = FluidLink(link, clock)
    total_s = transfer_s(link, n_bytes)
    fluid.send(1, n_bytes, lambda: None)
    clock.run(total_s * part)
    left_s = max(0.0, total_s * (1 - part))
    assert fluid.remaining_s(1) == pytest.approx(left_s, abs=0.01 * total_s + link.rtt_s)
    assert (fluid.remaining_s(1) > 0) == (left_s > 1e-6) or left_s < 0.001 * total_s + 1e-6


def test_profiles_and_what_replaces_them():
    """Breaks when a figure given beside a profile is ignored, or a changed profile keeps its plain name."""
    assert [PROFILES[name].one_way_ms for name in ("metro", "regional", "national", "continental")] == [1, 5, 15, 33]
    assert resolve_link(Wan()) == NATIONAL
    changed = resolve_link(Wan(profile="metro", one_way_ms=2))
    assert (changed.one_way_ms, changed.profile) == (2, "metro, changed")
    own = resolve_link(Wan(one_way_ms=30))
    assert (own.profile, own.flow_rate_mbit) == ("custom", window_mbit(30))
    assert resolve_link(Wan(rate_mbit=100)).flow_rate_mbit == 100


@pytest.mark.parametrize(
    ("wan", "says"),
    [
        (Wan(profile="nationl"), "did you mean 'national'"),
        (Wan(one_way_ms=-1), "one_way_ms = -1 is out of range"),
        (Wan(rate_mbit=0), "rate_mbit = 0"),
        (Wan(one_way_ms=float("nan")), "one_way_ms = nan"),
        (Wan(loss_pct=1), "netem or tun"),
        (Wan(jitter_ms=1), "netem or tun"),
    ],
)
def test_links_that_cannot_be_used(wan, says):
    """Breaks when a wrong figure, or one the model cannot do, runs with plausible numbers."""
    with pytest.raises(InputError, match=says):
        resolve_link(wan)


def test_which_backend_counts(monkeypatch):
    """Breaks when the command does not go before the file, or the file before the environment."""
    monkeypatch.setenv("PDDBENCH_WAN", "model")
    assert (named("tun", "netem"), named(None, "netem"), named(None)) == ("tun", "netem", "model")
    monkeypatch.delenv("PDDBENCH_WAN")
    assert named(None) == "auto"
    assert choose("model").backend == "model"
    for name in ("x", "Tun"):
        with pytest.raises(InputError, match="unknown WAN backend"):
            choose(name)


def test_the_wire_of_a_scaled_deployment():
    """Breaks when bytes, rate and times are not scaled alike: KV would take another time than the link's."""
    wire = wire_link(NATIONAL, 100.0, 3.0)
    assert (wire.one_way_ms, wire.rate_mbit, wire.flow_rate_mbit) == (5.0, 300.0, 30.0)
    assert (1e9 / 100) / wire.flow_bytes_s * 3.0 == pytest.approx(1e9 / NATIONAL.flow_bytes_s)
    assert wire_shape(NATIONAL, 1.0, 1.0).limit_packets == 18_750
    assert wire_shape(NATIONAL, 100.0, 3.0).limit_packets == 375, "not a second of queue on a slow line"
    with pytest.raises(InputError, match="lower kv_scale"):
        wire_link(NATIONAL, 1e5, 1.0)


def test_loss_bounds_a_flow():
    """Breaks when routers predict a lossy line's transfers by its rate, 30 times too fast."""
    lossy = Link(15.0, 500.0, 500.0, loss_pct=0.1)
    assert loss_bytes_s(lossy) * 8 / 1e6 == pytest.approx(15.0, rel=0.01)
    assert transfer_s(lossy, 2e9) == pytest.approx(2e9 / loss_bytes_s(lossy), rel=0.05)
    short = transfer_s(lossy, 20e6)
    assert 5 * transfer_s(Link(15.0, 500.0, 500.0), 20e6) < short < 20e6 / loss_bytes_s(lossy), "slow start helps it"
