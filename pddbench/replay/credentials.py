"""The credentials this process was given. A server may repeat them anywhere in an answer; nothing of that is kept.

Only what came under a name that says so (see `headers.secrets_of`) and is long enough not to be an ordinary word: a
stream is masked as bytes before it goes to disk, and must stay the stream it was.
"""

from __future__ import annotations

from collections.abc import Iterable

MIN_CHARS = 8

_known: set[str] = set()  # a process's own, like its environment, from where they come


def remember(values: Iterable[str]) -> None:
    """These must never be seen in what is kept."""
    _known.update(value for value in values if len(value) >= MIN_CHARS)


def mask(data: bytes) -> bytes:
    """The bytes with every credential in them overwritten, as long as before."""
    for secret in _known:
        if (found := secret.encode()) in data:
            data = data.replace(found, b"*" * len(found))
    return data


def hide(text: str) -> str:
    """The text without any credential: also one that was spelt with escapes before it was decoded."""
    for secret in sorted(_known, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text
