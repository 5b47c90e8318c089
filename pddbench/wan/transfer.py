"""How long a transfer takes on the link: the law that the fluid model follows and that routers predict with.

A fresh TCP flow costs one RTT of handshake; then its window starts at ten segments (RFC 6928) and doubles each RTT
(slow start) until the flow reaches its cap; the last byte needs half an RTT more to arrive. Bytes / rate alone is
19-33% low.
"""

from __future__ import annotations

import math

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
    rtt_s = link.rtt_s
    cap = min(link.flow_bytes_s, link.rate_bytes_s / max(1, flows), loss_bytes_s(link))
    left, window, elapsed_s = float(n_bytes), float(window_bytes), 0.0
    while window < cap * rtt_s and left > window:
        elapsed_s += rtt_s
        left -= window
        window *= 2
    return elapsed_s + left / (min(cap, window / rtt_s) if rtt_s else cap)


def loss_bytes_s(link: Link) -> float:
    """What random loss leaves to one flow of Reno, bytes a second (Mathis et al. 1997): S / RTT x sqrt(3 / 2p).

    Cubic keeps to it as well up to windows of some hundred segments, where it is in its Reno-friendly region. BBR does
    not take a loss for congestion: it keeps to the line.
    """
    if link.loss_pct <= 0 or link.rtt_s <= 0 or link.congestion_control == "bbr":
        return math.inf
    return SEGMENT_BYTES / link.rtt_s * math.sqrt(1.5 / (link.loss_pct / 100))
