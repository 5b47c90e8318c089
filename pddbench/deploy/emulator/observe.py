"""What each role did for a request, as it happened: the rows behind a swim-lane."""

from __future__ import annotations

from collections.abc import Callable

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
