"""The emulated model: every token is a function of the prompt and of all tokens before it.

The state plays the part of the KV cache: it is computed from the prompt's seed and then folded with each token. A role
that continues a stream must fold the ids it was handed (extend-decode), so a lost, doubled, reordered or foreign token
changes every later one. `expected_tokens` tells what a right stream looks like.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

VOCABULARY = 1 << 16
_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """One round of SplitMix64's finaliser."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    return x ^ (x >> 27)


class TokenChain:
    """A stream of tokens under way: `ids` so far, and the state they lead to."""

    __slots__ = ("_state", "ids")

    def __init__(self, seed: int, handed: Iterable[int] = ()) -> None:
        self._state = _mix((seed + 0x9E3779B97F4A7C15) & _MASK)
        self.ids: list[int] = []
        for token in handed:
            self._fold(token)

    def next(self) -> int:
        """The next token, which becomes part of the stream."""
        token = self._state >> 48
        self._fold(token)
        return token

    def _fold(self, token: int) -> None:
        position = len(self.ids)
        self._state = _mix((self._state + token * 0x94D049BB133111EB + position * 0x9E3779B97F4A7C15 + 1) & _MASK)
        self.ids.append(token)


def expected_tokens(seed: int, n: int) -> list[int]:
    """The first `n` tokens of the answer to a prompt."""
    chain = TokenChain(seed)
    return [chain.next() for _ in range(n)]


ID_BYTES = 2  # of a token id on the wire: the vocabulary is 2^16


def pack(ids: Sequence[int]) -> bytes:
    """Token ids as they are handed over."""
    return b"".join(token.to_bytes(ID_BYTES, "little") for token in ids)


def unpack(raw: bytes) -> list[int]:
    """Token ids from what was handed over."""
    return [int.from_bytes(raw[at : at + ID_BYTES], "little") for at in range(0, len(raw), ID_BYTES)]


def word(token: int) -> str:
    """A token's text: a space and one word."""
    return f" w{token:x}"


def words_to_ids(text: str) -> list[int]:
    """Ids of a text: one whitespace-separated word is one token."""
    return [zlib.crc32(part) & 0x7FFFFFFF for part in text.encode().split()]


def text_of(tokens: Sequence[int]) -> str:
    """The text of some tokens."""
    return "".join(map(word, tokens))
