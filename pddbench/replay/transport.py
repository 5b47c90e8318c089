"""Which transport a target gets: raw sockets with kernel stamps for plain `http://`, aiohttp for all else."""

from __future__ import annotations

import asyncio
import select
from urllib.parse import urlsplit

from pddbench.replay.exchange import Target, Transport
from pddbench.replay.native.compiled import chosen
from pddbench.replay.raw_connection import Poller, SocketReader


def make_transport(target: Target) -> Transport:
    """The transport for a target. Use inside a running loop."""
    allow_many_sockets()
    if raw_suits(target):
        from pddbench.replay.raw import RawClient

        return RawClient(target, make_reader)
    from pddbench.replay.client import HttpClient

    return HttpClient(target)


def make_reader(loop: asyncio.AbstractEventLoop) -> SocketReader:
    """The reader in C where it was compiled, else the one in Python; the environment may insist on one of them."""
    if chosen() == "python":
        return Poller(loop)
    from pddbench.replay.native.reader import NativeReader

    return NativeReader(loop)


def allow_many_sockets() -> None:
    """Raise the soft limit on open files to the hard one: its usual 1024 would end a run at a thousand streams."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard and soft != resource.RLIM_INFINITY:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            pass  # some systems refuse an unlimited soft limit: what there is must do


def raw_suits(target: Target) -> bool:
    """Plain HTTP, no proxy, no credentials in the URL, on a system with epoll."""
    parts = urlsplit(target.url)
    return parts.scheme == "http" and not target.trust_env and parts.username is None and hasattr(select, "epoll")
