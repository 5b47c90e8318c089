"""How long a transfer takes on the link: the law that the fluid model follows and that routers predict with.

A fresh TCP flow costs one RTT of handshake; then its window starts at ten segments (RFC 6928) and doubles each RTT
(slow start) until the flow reaches its cap; the last byte needs half an RTT more to arrive. Bytes / rate alone is
19-33% low.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pddbench.wan.link import Link

SEGMENT_BYTES = 1448  # payload of a TCP segment on Ethernet: 1500 - 20 (IP) - 20 (TCP) - 12 (timestamps)
INITIAL_WINDOW_BYTES = 10 * SEGMENT_BYTES  # RFC 6928, the default of Linux


def transfer_s(link: Link, n_bytes: float, fresh: bool = True, flows: int = 1) -> float:
    """Seconds from the send's start to the last byte's arrival, with `flows` flows (this one too) sharing the line.

    `fresh`: a new connection (handshake and slow start); else one whose window is already open.
    """
    if not fresh:
        return sending_s(link, n_bytes, math.inf, flows) + link.rtt_s / 2
    return link.rtt_s + sending_s(link, n_bytes, INITIAL_WINDOW_BYTES, flows) + link.rtt_s / 2


def sending_s(link: Link, n_bytes: float, window_bytes: float, flows: int = 1) -> float:
    """Seconds to send bytes from a window that doubles each RTT, up to the flow's cap or its share of the line."""
    rtt_s, cap = link.rtt_s, min(link.flow_bytes_s, link.rate_bytes_s / max(1, flows))
    if _bound_by_loss(link):
        return _lossy_sending_s(link, n_bytes, window_bytes, cap)
    left, window, elapsed_s = float(n_bytes), float(window_bytes), 0.0
    while window < cap * rtt_s and left > window:
        elapsed_s += rtt_s
        left -= window
        window *= 2
    return elapsed_s + left / (min(cap, window / rtt_s) if rtt_s else cap)


def _bound_by_loss(link: Link) -> bool:
    """BBR does not take a loss for congestion: it keeps to the line."""
    return link.loss_pct > 0 and link.rtt_s > 0 and link.congestion_control != "bbr"


def loss_bytes_s(link: Link) -> float:
    """What random loss leaves to a long flow of Reno, bytes a second (Mathis et al. 1997): S / RTT x sqrt(3 / 2p).

    Cubic keeps to it as well up to windows of some hundred segments, where it is in its Reno-friendly region.
    """
    if not _bound_by_loss(link):
        return math.inf
    return SEGMENT_BYTES / link.rtt_s * math.sqrt(1.5 / (link.loss_pct / 100))


# The share of the window that a loss leaves, and what a round trip adds to it: Reno (RFC 5681) and Cubic in its
# Reno-friendly region (RFC 9438, section 4.3), whose other region grows by C seconds^3.
_AFTER_LOSS = {"reno": (0.5, 1.0), "cubic": (0.7, 3 * (1 - 0.7) / (1 + 0.7))}
_CUBIC_C = 0.4
_LOSSES = 8  # after which a flow is taken for a long one
_FIRST_LOSSES = [-math.log(1 - q) for q in (0.1, 0.3, 0.5, 0.7, 0.9)]  # when the first comes, over its mean


def _lossy_sending_s(link: Link, n_bytes: float, window_bytes: float, cap: float) -> float:
    """As `sending_s` where losses bound the flow: the mean over when the first loss ends slow start."""
    every = 100 / link.loss_pct
    each = [
        lossy_sending_s(link, n_bytes, window_bytes, cap, [first * every] + [every] * (_LOSSES - 1))
        for first in _FIRST_LOSSES
    ]
    return sum(each) / len(each)


def lossy_sending_s(link: Link, n_bytes: float, window_bytes: float, cap: float, gaps: Iterable[float]) -> float:
    """Seconds to send bytes, a round trip at a time, when losses come after `gaps` segments each; then the long flow's
    rate. The window that slow start had reached goes slowly, so a short transfer is faster than a long flow."""
    rtt_s, most = link.rtt_s, cap * link.rtt_s / SEGMENT_BYTES
    keep, add = _AFTER_LOSS.get(link.congestion_control, _AFTER_LOSS["reno"])
    left, window, elapsed_s = n_bytes / SEGMENT_BYTES, window_bytes / SEGMENT_BYTES, 0.0
    since_s, peak = 0.0, 0.0
    for unlost in gaps:
        while left > 0 and unlost > 0:
            sent = min(window, left)
            part = sent / window  # of a round, for the last one
            took_s = part * max(rtt_s, window * SEGMENT_BYTES / cap)
            left, unlost, elapsed_s, since_s = left - sent, unlost - sent, elapsed_s + took_s, since_s + took_s
            window = min(2 * window, 2 * most) if not peak else window + add
            if peak and link.congestion_control == "cubic":
                falls_s = (peak * (1 - keep) / _CUBIC_C) ** (1 / 3)
                window = max(window, peak + _CUBIC_C * (since_s - falls_s) ** 3)
        if left <= 0:
            return elapsed_s
        peak, since_s = window, 0.0
        window = max(2.0, window * keep)
    return elapsed_s + left * SEGMENT_BYTES / min(cap, loss_bytes_s(link))
