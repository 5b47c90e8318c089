"""What each role did for a request, as it happened: the rows behind a swim-lane."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

# event, request, model time, instance (-1: none), tokens, bytes
Observer = Callable[[str, int, float, int, int, int], None]

EVENTS = {
    "queued": "P: in the queue",
    "prefill": "P: prefill begins; tokens: un-hit",
    "prefilled": "P: prefill ends",
    "kv_start": "link: KV leaves for MD; tokens and bytes that cross",
    "kv_at_rld": "RLD: KV is there, decoding may begin",
    "kv_at_md": "MD: KV is there",
    "round": "RLD: ids sent while it goes on; tokens: how many",
    "hand_over": "RLD: stopped, ids sent; tokens: made so far",
    "extend": "MD: ids are here, their KV is recomputed; tokens: how many",
    "resume": "MD: the stream joins the batch",
    "cancelled": "link: the KV is not needed any more",
    "lost": "the instance that had the stream is gone",
    "done": "the last token is there",
    "failed": "the answer ends as an error",
}


def ignore(event: str, rid: int, t_s: float, instance: int, tokens: int, n_bytes: int) -> None:
    """Keep nothing."""


class Events(msgspec.Struct, array_like=True):
    """Events as columns of one machine's bytes: `codes` (int8) into `names`, times in model seconds (double), the rest
    int64. `dropped`: events that there was no room for."""  # fmt: skip

    names: list[str]
    codes: bytes
    rids: bytes
    times_s: bytes
    instances: bytes
    tokens: bytes
    n_bytes: bytes
    dropped: int


class EventLog:
    """An `Observer` that keeps up to `most` events (41 bytes each; None: all)."""

    def __init__(self, most: int | None = None) -> None:
        self._names: dict[str, int] = {}
        self._most, self._dropped = most, 0
        self._codes = array("b")
        self._rids, self._instances, self._tokens, self._bytes = (array("q") for _ in range(4))
        self._times_s = array("d")

    def __call__(self, event: str, rid: int, t_s: float, instance: int, tokens: int, n_bytes: int) -> None:
        """One event of request `rid`."""
        if self._most is not None and len(self._codes) >= self._most:
            self._dropped += 1
            return
        self._codes.append(self._names.setdefault(event, len(self._names)))
        self._rids.append(rid)
        self._times_s.append(t_s)
        self._instances.append(instance)
        self._tokens.append(tokens)
        self._bytes.append(n_bytes)

    def events(self) -> Events:
        """All that was kept."""
        return Events(
            names=list(self._names),
            codes=self._codes.tobytes(),
            rids=self._rids.tobytes(),
            times_s=self._times_s.tobytes(),
            instances=self._instances.tobytes(),
            tokens=self._tokens.tobytes(),
            n_bytes=self._bytes.tobytes(),
            dropped=self._dropped,
        )
