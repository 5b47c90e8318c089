"""The model file of our own."""

import hashlib
from itertools import pairwise

from pddbench.deploy.gguf import TinyLlama, vocabulary, write_tiny_llama
from pddbench.workload.words import WORDS


def test_every_word_is_one_token():
    """Text prompts have the planned length only if no word falls apart and no id stands twice."""
    words = vocabulary()
    assert len(set(words.tokens)) == len(words.tokens)
    rank = {merge: i for i, merge in enumerate(words.merges)}
    for word in WORDS:
        pieces = ["\u0120", *word]
        while len(pieces) > 1:
            pairs = [rank.get(f"{a} {b}", len(rank)) for a, b in pairwise(pieces)]
            at = pairs.index(min(pairs))
            assert min(pairs) < len(rank), word
            pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]
        assert pieces[0] in words.tokens


def test_same_seed_same_file(tmp_path):
    """Outputs of two servers can only be compared if their models are the same."""
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        write_tiny_llama(tmp_path / name, TinyLlama(seed=seed))
    a, b, c = (hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in "abc")
    assert a == b != c
    assert (tmp_path / "a").read_bytes()[:4] == b"GGUF"


def test_free_ids_are_words(tmp_path):
    """The ids to draw prompts from must hold no special token and no lone byte."""
    words = write_tiny_llama(tmp_path / "m.gguf")
    low, high = words.free_ids
    assert (low, high) == (259, len(words.tokens))
    assert all(token.startswith("\u0120") for token in words.tokens[low:high])
