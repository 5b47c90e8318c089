"""Which transport a target gets: raw sockets with kernel stamps for plain `http://`, aiohttp for all else."""

from __future__ import annotations

import select
from urllib.parse import urlsplit

from pddbench.replay.exchange import Target, Transport


def make_transport(target: Target) -> Transport:
    """The transport for a target. Use inside a running loop."""
    if raw_suits(target):
        from pddbench.replay.raw import RawClient

        return RawClient(target)
    from pddbench.replay.client import HttpClient

    return HttpClient(target)


def raw_suits(target: Target) -> bool:
    """Plain HTTP, no proxy, no credentials in the URL, on a system with epoll."""
    parts = urlsplit(target.url)
    return parts.scheme == "http" and not target.trust_env and parts.username is None and hasattr(select, "epoll")
