"""Words that a given tokenizer makes exactly one token of, so that text prompts have exactly the planned lengths."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Any

from pddbench.errors import InputError

_WORD = re.compile(r"[a-z]{2,12}")
_LEAST_WORDS = 64
_CHECKED_WORDS = 512  # length of the joined text that must come back as one token a word


@lru_cache(maxsize=8)
def single_token_words(path: str) -> tuple[str, ...]:
    """The lower-case words of a `tokenizer.json` that stay one token, alone in a text and after a space.

    A text of such words joined by spaces has one token a word and shares a prefix with another text exactly as far as
    their words agree. Raises `InputError` when the file or the `tokenizers` package is missing, or words do not hold.
    """
    tokenizer = _load(Path(path))

    def ids(text: str) -> list[int]:
        found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return found

    pieces = {re.sub(r"^[\u0120\u2581 ]", "", piece) for piece in tokenizer.get_vocab()}
    first = "the" if len(ids("the")) == 1 else None
    words = [
        word
        for word in sorted(piece for piece in pieces if _WORD.fullmatch(piece))
        if len(ids(word)) == 1 and first is not None and len(ids(f"{first} {word}")) == 2
    ]
    if len(words) < _LEAST_WORDS:
        raise InputError(f"{path}: only {len(words)} words stay one token in it; use token ids with this model instead")
    sample = (words * (1 + _CHECKED_WORDS // len(words)))[:_CHECKED_WORDS]
    if len(ids(" ".join(sample))) != len(sample):
        raise InputError(f"{path}: joined words change their tokens in it; use token ids with this model instead")
    return tuple(words)


def _load(path: Path) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError("a tokenizer file needs the tokenizers package: pip install 'pddbench[text]'") from None
    if not path.is_file():
        raise InputError(f"{path}: no such tokenizer file")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception for every fault of a file
        raise InputError(f"{path}: not a tokenizer.json: {error}") from error
