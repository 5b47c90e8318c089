"""Calls of the kernel that Python 3.11's `os` does not have: namespaces of a process, and switching a device on.

Imports are inside the functions: a program that only enters a namespace starts in half the time.
"""

from __future__ import annotations

import os
import sys

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
_PR_SET_TIMERSLACK = 29
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFMTU = 0x8913, 0x8914, 0x8922
_SIOCSIFADDR, _SIOCSIFDSTADDR = 0x8916, 0x8918
_IFF_UP = 1
_RTM_NEWLINK, _IFLA_TXQLEN, _REQUEST_WITH_ANSWER = 16, 13, 5


def _call(name: str, *args: int) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def say(text: str) -> None:
    """One line to whoever started this process."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def unshare(flags: int) -> None:
    """Move this process into new namespaces; `OSError` carries the kernel's reason."""
    _call("unshare", flags)


def setns(fd: int, kind: int) -> None:
    """Move this process into the namespace behind an open `/proc/PID/ns/…` file."""
    _call("setns", fd, kind)


def precise_timers() -> None:
    """Let this thread's waits end within a nanosecond or so of their time, not 50 microseconds later."""
    _call("prctl", _PR_SET_TIMERSLACK, 1, 0, 0, 0)


def set_up(device: str) -> None:
    """Switch a device of this process's network namespace on."""
    import fcntl
    import socket
    import struct

    name = device.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        (flags,) = struct.unpack_from("H", fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16s24x", name)), 16)
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", name, flags | _IFF_UP))


def configure(device: str, mtu_bytes: int, queue_packets: int, address: str, peer: str) -> None:
    """Give a point-to-point device its MTU, transmit queue and two IPv4 addresses."""
    import fcntl
    import socket
    import struct

    name = device.encode()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", name, mtu_bytes))
        for request, host in ((_SIOCSIFADDR, address), (_SIOCSIFDSTADDR, peer)):
            fcntl.ioctl(control, request, struct.pack("16sHH4s16x", name, socket.AF_INET, 0, socket.inet_aton(host)))
    _set_transmit_queue(socket.if_nametoindex(device), queue_packets)


def _set_transmit_queue(index: int, packets: int) -> None:
    """By netlink: the ioctl for it (SIOCSIFTXQLEN) is refused in an unprivileged user namespace, netlink is not."""
    import socket
    import struct

    body = struct.pack("BxHiII", socket.AF_UNSPEC, 0, index, 0, 0) + struct.pack("HHI", 8, _IFLA_TXQLEN, packets)
    header = struct.pack("IHHII", 16 + len(body), _RTM_NEWLINK, _REQUEST_WITH_ANSWER, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as route:
        route.send(header + body)
        (code,) = struct.unpack_from("i", route.recv(4096), 16)
    if code != 0:
        raise OSError(-code, os.strerror(-code))
