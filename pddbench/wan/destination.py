"""Which traffic of a real device crosses the WAN: addresses and ports, and the filters that pick it out."""

from __future__ import annotations

import ipaddress
import re

import msgspec

from pddbench.errors import InputError

_HOW = "give CIDR or CIDR:PORTS, as 10.0.0.0/24, 10.0.0.5:8000-8010,9000 or [fd00::5]:8000"
_MOST_FILTERS = 512
_TCP, _UDP = 6, 17


class Destination(msgspec.Struct, frozen=True):
    """Addresses of the other side, and ports on either end of a connection (none: all traffic)."""

    network: str
    ports: list[tuple[int, int]] = []

    @property
    def version(self) -> int:
        """IP version: 4 or 6."""
        return ipaddress.ip_network(self.network).version

    def holds(self, address: str) -> bool:
        """Whether an address is in there."""
        return ipaddress.ip_address(address) in ipaddress.ip_network(self.network)

    def __str__(self) -> str:
        ports = ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in self.ports)
        network = f"[{self.network}]" if self.version == 6 and ports else self.network
        return f"{network}:{ports}" if ports else network


def parse(text: str) -> Destination:
    """`CIDR[:PORTS]`. Raises `InputError`."""
    bracketed = re.fullmatch(r"\[([^\]]+)\](?::(.+))?", text)
    if bracketed:
        network, ports = bracketed[1], bracketed[2]
    elif text.count(":") > 1:
        network, ports = text, None
    else:
        network, _, ports = text.partition(":")
    try:
        parsed = ipaddress.ip_network(network)
    except ValueError as error:
        raise InputError(f"--to {text!r}: {error}: {_HOW}") from None
    if parsed.prefixlen == 0:
        raise InputError(f"--to {text!r} is all there is: name the other side's addresses ({_HOW})")
    return Destination(str(parsed), [_port_range(word, text) for word in ports.split(",")] if ports else [])


def _port_range(word: str, text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", word)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if not 1 <= low <= high <= 65535:
        raise InputError(f"--to {text!r}: {word!r} is no port or range of ports: {_HOW}")
    return low, high


def masks(low: int, high: int) -> list[tuple[int, int]]:
    """A range of ports as (value, mask) pairs, which is all that the u32 filter knows."""
    out = []
    while low <= high:
        size = low & -low or 1 << 16
        while low + size - 1 > high:
            size >>= 1
        out.append((low, 0xFFFF & ~(size - 1)))
        low += size
    return out


def matches(to: Destination, side: str) -> list[list[str]]:
    """u32 matches for packets to (`side` dst) or from (`src`) the destination: one list of words a filter."""
    ip = "ip" if to.version == 4 else "ip6"
    address = ["match", ip, side, to.network]
    if not to.ports:
        return [address]
    out = [
        [*address, "match", ip, "protocol", str(protocol), "0xff", "match", ip, end, str(value), hex(mask)]
        for low, high in to.ports
        for value, mask in masks(low, high)
        for end in ("dport", "sport")  # the port may be the server's on either side
        for protocol in (_TCP, _UDP)
    ]
    if len(out) > _MOST_FILTERS:
        raise InputError(f"--to {to}: that needs {len(out)} filters, more than {_MOST_FILTERS}: give fewer ranges")
    return out
