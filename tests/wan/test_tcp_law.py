"""The transfer by the standards that measured ones are held against: it must itself keep to what is known of TCP."""

import random

import pytest
import tcp_law

from pddbench.wan.link import Link
from pddbench.wan.transfer import transfer_s


@pytest.mark.parametrize("control", ["reno", "cubic"])
@pytest.mark.parametrize("n_bytes, rtt_ms, rate_mbit", [(10**6, 30, 1000), (10**7, 30, 1000), (10**7, 66, 100)])
def test_without_loss_it_is_slow_start_and_the_line(control, n_bytes, rtt_ms, rate_mbit):
    """The closed form counts payload at the line's rate, so it is up to 5% fast; more would be another protocol."""
    seconds = tcp_law.mean_s(n_bytes, rtt_ms, rate_mbit, 0, control, times=1)[0]
    assert seconds == pytest.approx(transfer_s(Link(rtt_ms / 2, rate_mbit, rate_mbit), n_bytes), rel=0.05)


LONG = [
    ("reno", 0.01, 20_000_000),
    ("cubic", 0.01, 20_000_000),
    ("reno", 0.02, 10_000_000),
    ("cubic", 0.001, 100_000_000),
]


@pytest.mark.parametrize("control, loss, n_bytes", LONG)
def test_a_long_flow_keeps_to_the_square_root_law(control, loss, n_bytes):
    """Mathis et al. 1997, S / RTT x sqrt(3 / 2p); Cubic at such windows is in its Reno-friendly region."""
    seconds = tcp_law.Transfer(n_bytes, 0.015, 500.0, loss, control, random.Random(3)).seconds()
    law_bytes_s = tcp_law.SEGMENT_BYTES / 0.030 * (1.5 / loss) ** 0.5
    assert n_bytes / seconds == pytest.approx(law_bytes_s, rel=0.2)


def test_a_transfer_with_loss_is_a_distribution():
    """A mean of a few would be taken for the figure: the slowest takes several times as long as the fastest."""
    mean_s, error_s, found = tcp_law.mean_s(2_000_000, 30, 100, 1.0, "cubic", times=40)
    assert max(found) > 4 * min(found) and 0.03 < error_s / mean_s < 0.15
