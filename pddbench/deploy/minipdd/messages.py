"""What cluster A and cluster B say to each other (msgpack behind four bytes of length), over the link itself."""

from __future__ import annotations

import array
import asyncio
import sys

import msgspec

MAX_FRAME_BYTES = 64 << 20


class _Message(msgspec.Struct, array_like=True, tag=True):
    """A message; `rid` is the front's number of a request."""


class Hello(_Message):
    """A to B, the first on the connection for all but KV."""


class Kv(_Message):
    """A to B, at the head of a connection of its own: the slot file that follows, and the prompt's ids with it.

    `decode`: start when it is there; else wait for the hand-off. `tokens`: how many are wanted in all.
    """

    rid: int
    n_bytes: int
    ids: bytes
    decode: bool
    tokens: int
    ignore_eos: bool


class Ready(_Message):
    """B to A: the KV is in a slot of MD. `arrived_ns`: when the last byte was there; `restored_tokens`: of the slot."""

    rid: int
    arrived_ns: int
    restored_tokens: int


class Extend(_Message):
    """A to B, a round of catching up: ids that RLD has made since the last one; RLD goes on meanwhile."""

    rid: int
    ids: bytes


class Extended(_Message):
    """B to A: their KV is recomputed; `computed_tokens` as MD's server counts it."""

    rid: int
    computed_tokens: int


class HandOff(_Message):
    """A to B: the last ids; RLD has stopped. MD recomputes what is missing, and goes on."""

    rid: int
    ids: bytes


class Token(_Message):
    """B to A: a token, its place in the answer, and its text."""

    rid: int
    index: int
    token: int
    text: str


class Done(_Message):
    """B to A: the answer is complete. `computed_tokens`: prompt tokens MD's server computed since the last round."""

    rid: int
    stopped: bool
    computed_tokens: int


class Failed(_Message):
    """B to A: a request cannot go on."""

    rid: int
    reason: str


class Drop(_Message):
    """A to B: nobody waits for this request any more."""

    rid: int


Message = Hello | Kv | Ready | Extend | Extended | HandOff | Token | Done | Failed | Drop

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def pack_ids(ids: list[int]) -> bytes:
    """Token ids, four bytes each."""
    values = array.array("i", ids)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()


def unpack_ids(raw: bytes) -> list[int]:
    """The ids of `pack_ids`."""
    values = array.array("i")
    values.frombytes(raw)
    if sys.byteorder == "big":
        values.byteswap()
    return values.tolist()


def frame(message: Message) -> bytes:
    """A message as it goes over the wire."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "big") + body


async def read_message(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the other end has closed."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        if size > MAX_FRAME_BYTES:
            raise ValueError(f"a message of {size} bytes")
        return _decoder.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
