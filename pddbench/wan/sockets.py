"""Sockets whose TCP is pinned: congestion control by name, a flow's pace, what waits unsent, what TCP says of it."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

CONGESTION_CONTROL = "cubic"
_SO_MAX_PACING_RATE = 47  # asm-generic/socket.h; Python 3.11's `socket` has no name for it
_TCP_NOTSENT_LOWAT = 25
_PACE_LIMIT = (1 << 32) - 1  # of the option's 32-bit form, bytes a second: 34 Gbit/s; above, no pace is set
_UNSENT_S = 0.010  # what waits in a socket, at its pace: a busy event loop must not leave the line idle
_UNSENT_BYTES = (16 << 10, 4 << 20)
_INFO_BYTES = 104
_SEGMENT_AT, _WINDOW_AT, _RETRANSMITTED_AT = 16, 80, 100  # in struct tcp_info: snd_mss, snd_cwnd, total_retrans


class TcpInfo(NamedTuple):
    """What the kernel knows of a connection: its window in bytes, and segments sent again so far."""

    window_bytes: int
    retransmitted: int


def pin(sock: socket.socket, control: str = CONGESTION_CONTROL) -> str:
    """Set the congestion control and switch Nagle off; returns the control that the socket has then.

    A host's default may be another (BBR is four times as fast at 0.1% loss), and a namespace's own default can be
    refused where a socket's is not. Where this is refused too the name returned says so.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, control.encode())
    except OSError:
        pass  # no right to this one outside a namespace of ours: what it is, is reported
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()


def pace(sock: socket.socket, bytes_s: float, capped: bool) -> None:
    """A flow's cap (`capped`: pace it at `bytes_s`), and how much of its data waits in the kernel unsent: 10 ms."""
    if capped and bytes_s < _PACE_LIMIT:
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, struct.pack("I", max(1, round(bytes_s))))
    unsent = round(min(max(bytes_s * _UNSENT_S, _UNSENT_BYTES[0]), _UNSENT_BYTES[1]))
    sock.setsockopt(socket.IPPROTO_TCP, _TCP_NOTSENT_LOWAT, unsent)


def tcp_info(sock: socket.socket) -> TcpInfo:
    """The kernel's figures of a connection."""
    raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    segment, window, again = (
        struct.unpack_from("I", raw, at)[0] for at in (_SEGMENT_AT, _WINDOW_AT, _RETRANSMITTED_AT)
    )
    return TcpInfo(segment * window, again)
