"""The verdict on a link: bounds that can be missed, and are."""

import random

import pytest

from pddbench.wan.inside.emulator import wire_bytes
from pddbench.wan.shape import Gilbert
from pddbench.wan.verify import Verification, loss_finding, loss_interval, rtt_finding


def test_rtt_bounds():
    """A run with 0 ms instead of 30 printed plausible numbers elsewhere."""
    assert rtt_finding([30.4] * 20, 30.0, 0.0).ok
    assert rtt_finding([31.4] * 20, 30.0, 0.0).ok
    assert not rtt_finding([31.6] * 20, 30.0, 0.0).ok, "above 5%"
    assert not rtt_finding([0.05] * 20, 30.0, 0.0).ok
    assert not rtt_finding([0.05] * 20, 2.0, 0.0).ok, "also where 1 ms of slack is much"


@pytest.mark.parametrize("share", [0.001, 0.01, 0.2])
def test_loss_interval_is_a_99_percent_one(share):
    """Too wide a bound passes any link, too narrow a one refuses good links."""
    draw = random.Random(1)
    low, high = loss_interval(3000, share)
    inside = sum(low <= sum(draw.random() < share for _ in range(3000)) <= high for _ in range(300))
    assert inside / 300 > 0.96
    assert low <= 3000 * share <= high < 3000 * (2.5 * share + 0.003)


def test_bursty_losses_get_a_wider_interval():
    """A good Gilbert-Elliott link would be refused half of the time."""
    g, draw, hits = Gilbert(1.0, 19.0), random.Random(2), 0
    low, high = loss_interval(4000, g.loss_share, g.variance_factor)
    for _ in range(200):
        bad, lost = False, 0
        for _ in range(4000):
            if draw.random() < (g.to_good_pct if bad else g.to_bad_pct) / 100:
                bad = not bad
            lost += bad
        hits += low <= lost <= high
    assert hits / 200 > 0.96
    assert (low, high) != loss_interval(4000, g.loss_share)


def test_no_packet_or_no_loss_is_not_a_pass():
    """A counter that never moves must not verify a loss."""
    assert not loss_finding("a_to_b", 0, 0, 0.01, 1.0).ok
    assert not loss_finding("a_to_b", 0, 5000, 0.01, 1.0).ok
    assert loss_finding("a_to_b", 50, 5000, 0.01, 1.0).ok


def test_one_bad_finding_spoils_the_verification():
    """The manifest must not say ok for a link of which one figure is wrong."""
    good, bad = rtt_finding([30.0] * 20, 30.0, 0.0), rtt_finding([3.0] * 20, 30.0, 0.0)
    assert Verification("tun", [good], 1.0).facts()["ok"]
    facts = Verification("tun", [good, bad], 1.0).facts()
    assert not facts["ok"] and [finding["ok"] for finding in facts["findings"]] == [True, False]


def test_wire_bytes_of_super_packets():
    """The rate of the line would be exceeded by the headers of the frames that a super-packet stands for."""
    tcp = bytes(20) + bytes(12) + bytes([8 << 4]) + bytes(19)  # IP header, TCP header of 32 bytes
    plain = bytes(10) + tcp + bytes(100)
    assert wire_bytes(plain) == len(tcp) + 100 + 14
    header = bytes([1, 1]) + (52).to_bytes(2, "little") + (1448).to_bytes(2, "little") + (20).to_bytes(2, "little")
    big = header + bytes(2) + tcp + bytes(1448 * 3 + 10)
    assert wire_bytes(big) == 4 * (52 + 14) + 1448 * 3 + 10
