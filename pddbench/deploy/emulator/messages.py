"""What router, cluster A and cluster B say to each other (msgpack, tagged arrays)."""

from __future__ import annotations

from typing import Any

import msgspec

from pddbench.deploy.emulator.observe import Events


class _Message(msgspec.Struct, array_like=True, tag=True):
    """A message; `rid` is the router's number of a request."""


class Hello(_Message):
    """First frame of a connection: what it is for (`router`, `control`, `kv`)."""

    purpose: str


class Submit(_Message):
    """Router to A: a prompt (as its path of blocks and seed) and how many tokens are wanted.

    `session`: a number that all prompts with the same beginning share.
    """

    rid: int
    seed: int
    prompt_tokens: int
    max_tokens: int
    path: list[tuple[int, int, int]]
    session: int = 0


class Cancel(_Message):
    """Router to A: the client is gone."""

    rid: int


class Tokens(_Message):
    """A or B to the router: tokens of one step, as (rid, index, token)."""

    stage: str
    rows: list[tuple[int, int, int]]


class Finish(_Message):
    """A or B to the router: a request is complete. `handoff` and `kv` as the `pdd` extension shows them."""

    rid: int
    cached_tokens: int
    pipeline: str
    eager: int
    handoff: dict[str, Any] | None
    kv: dict[str, Any] | None


class Failed(_Message):
    """A or B to the router: a request cannot be completed."""

    rid: int
    reason: str


class KvArrived(_Message):
    """A to B: the KV of a transfer is complete. It holds the blocks `path`, on top of the block `base`.

    `needs`: transfers that carry parts of what it stands on. `mode`: `decode` (start, continuing from `ids`), `hold`
    (wait for the hand-off) or `cache` (nobody waits for it). `started_s` is when A began to send, model time.
    `instance`: of MD, where each has a cache of its own; -1: any.
    """

    rid: int
    transfer: int
    mode: str
    seed: int
    max_tokens: int
    prompt_tokens: int
    cached_tokens: int
    pipeline: str
    started_s: float
    kv_bytes: int
    wire_bytes: int
    needs: list[int]
    base: tuple[int, int] | None
    path: list[tuple[int, int, int]]
    ids: bytes
    instance: int = -1


class Ready(_Message):
    """B to A: a transfer and all that it needs have arrived."""

    rid: int
    transfer: int


class HandOff(_Message):
    """A to B: ids that RLD has produced, from index `first` on, two bytes each; B recomputes their KV.

    `final`: RLD has stopped, and B goes on from them. Otherwise RLD goes on, and B says when it is done (`Extended`).
    `kv_bytes` above 0: their KV came along as `transfer`, and nothing is recomputed.
    """

    rid: int
    first: int
    ids: bytes
    final: bool
    mode: str
    round: int
    kv_bytes: int = 0
    transfer: int = 0


class Took(_Message):
    """B to A: the final ids of a request are here (or nobody waits for it any more)."""

    rid: int


class Extended(_Message):
    """B to A: the KV of the ids sent so far is recomputed."""

    rid: int


class Evict(_Message):
    """A to B: blocks of an owner from a position on leave the cache of an MD instance. On the KV connection."""

    instance: int
    owner: int
    stop: int


class Drop(_Message):
    """A to B: nobody waits for this request any more. Sent on the KV connection, so that it cannot overtake its KV."""

    rid: int


class Gone(_Message):
    """A to B: a transfer will never arrive (and nothing needs it)."""

    transfer: int


class Change(_Message):
    """Router to A and B: instances of a role are lost (`count` below 0) or added, now."""

    role: str
    count: int


class AskStats(_Message):
    """Router to A or B: how are you?"""

    number: int


class Stats(_Message):
    """A or B to the router: its figures."""

    number: int
    figures: dict[str, float]


class AskRoles(_Message):
    """Router to A or B: what did you do for each request?"""

    number: int


class Roles(_Message):
    """A or B to the router: all of it, as far as there was room."""

    number: int
    events: Events


class RolesTold(msgspec.Struct):
    """The router's answer to its launcher: by cluster; `request_ids[rid]` is the header `X-Request-Id` of a request.

    `posted`: changes of roles that clients asked for, as model time, role, count; `now_s`: model time.
    """

    parts: list[Events]
    request_ids: list[str]
    epoch_ns: int
    posted: list[tuple[float, str, int]] = []
    now_s: float = 0.0


Message = (
    Hello
    | Submit
    | Cancel
    | Tokens
    | Finish
    | Failed
    | KvArrived
    | Ready
    | HandOff
    | Took
    | Extended
    | Evict
    | Drop
    | Gone
    | Change
    | AskStats
    | Stats
    | AskRoles
    | Roles
)
FRAME_BYTES = 8  # two lengths before each message: its own and that of the filler after it

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message) -> bytes:
    """A message as bytes."""
    return _encoder.encode(message)


def decode(raw: bytes | bytearray | memoryview) -> Message:
    """A message from its bytes."""
    return _decoder.decode(raw)


def framed_bytes(message: Message) -> int:
    """What a message takes on the wire."""
    return FRAME_BYTES + len(encode(message))
