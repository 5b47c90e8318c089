"""A backend that does not do what it was asked: each kind is caught by the verification of the link."""

import msgspec
import pytest

from pddbench.wan import tun
from pddbench.wan.openlink import open_shapes
from pddbench.wan.shape import Shape

pytestmark = [pytest.mark.usefixtures("tun_works"), pytest.mark.slow]

USUAL = Shape(15.0, 100.0)
LOSSY = Shape(2.0, 200.0, loss_pct=2.0)


def sabotage(monkeypatch, change=lambda shape: shape, swap=False):
    """The emulator is given other figures than the backend was asked for."""
    honest = tun.set_line

    def line(direction, shape):
        return honest(1 - direction if swap else direction, change(shape))

    monkeypatch.setattr(tun, "set_line", line)


def wrong(a_to_b, b_to_a, load):
    """The findings that are not as asked, by name; what is measured twice is the last."""
    with open_shapes(a_to_b, b_to_a, "tun") as link:
        found = link.verify(load=load)
    return {finding.name: finding for finding in found.findings if not finding.ok}


def test_a_delay_that_is_not_applied(monkeypatch):
    """0 ms instead of 30 would be a run over a loopback that is reported as a WAN."""
    sabotage(monkeypatch, lambda shape: msgspec.structs.replace(shape, delay_ms=0.0))
    found = wrong(USUAL, USUAL, load=False)
    assert found["rtt median"].found < found["rtt median"].low and "delay a_to_b" in found


def test_a_loss_that_is_not_applied(monkeypatch):
    """TCP without loss is ten times as fast as with one of 1%."""
    sabotage(monkeypatch, lambda shape: msgspec.structs.replace(shape, loss_pct=0.0))
    assert wrong(LOSSY, LOSSY, load=True)["loss a_to_b"].found == 0


def test_half_of_the_rate(monkeypatch):
    """A megabit taken for a mebibyte, bits for bytes: every transfer would take another time."""
    sabotage(monkeypatch, lambda shape: msgspec.structs.replace(shape, rate_mbit=shape.rate_mbit / 2))
    found = wrong(USUAL, USUAL, load=True)["throughput"]
    assert found.found < 0.55 * found.wanted


def test_twice_the_rate(monkeypatch):
    """The line would be wider than the one of the report, and hide what it is about."""
    sabotage(monkeypatch, lambda shape: msgspec.structs.replace(shape, rate_mbit=shape.rate_mbit * 4))
    found = wrong(Shape(2.0, 10.0), Shape(2.0, 10.0), load=True)["throughput"]
    assert found.found > found.high


@pytest.mark.parametrize("there, back, load, name", [
    (Shape(5.0, 100.0), Shape(25.0, 100.0), False, "delay a_to_b"),
    (LOSSY, Shape(2.0, 200.0), True, "loss a_to_b"),
])  # fmt: skip
def test_the_wrong_direction(monkeypatch, there, back, load, name):
    """The sum of two delays is the same whichever side has which."""
    sabotage(monkeypatch, swap=True)
    assert name in wrong(there, back, load)
