"""Donors and shared tokens from lists of block ids."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddbench.trace.trie import PrefixTrie

B = 4
REQUEST = st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 20), st.integers(0, 6))


def add_all(requests, first_row=0):
    trie = PrefixTrie(B, first_row)
    return [trie.add(*request) for request in requests]


def by_force(requests):
    """The rule in plain words: most shared tokens, then within the donor's prompt, then the latest."""
    out = []
    for i, (ids, tokens, _) in enumerate(requests):
        best = (0, False, -1)
        for j, (other, other_tokens, other_output) in enumerate(requests[:i]):
            k = 0
            mine, theirs = ids[: -(-tokens // B)], other[: -(-other_tokens // B)]
            while k < min(len(mine), len(theirs)) and mine[k] == theirs[k]:
                k += 1
            shared = min(k * B, tokens, other_tokens + other_output)
            if shared:
                best = max(best, (shared, shared <= other_tokens, j))
        out.append((best[2], best[0]))
    return out


@given(st.lists(REQUEST, max_size=12))
def test_donor_is_the_one_of_the_rule(requests):
    """Without it the trie may choose another donor, or share more tokens than two requests have in common."""
    assert add_all(requests) == by_force(requests)


@pytest.mark.parametrize(
    ("requests", "last"),
    [
        ([([1, 2], 8, 0), ([1, 2], 8, 0), ([1, 2, 3], 12, 0)], (1, 8)),  # a tie: the latest
        ([([1, 2], 8, 0), ([1, 2], 7, 5), ([1, 2, 3], 12, 0)], (0, 8)),  # a tie: shared tokens in the prompt first
        ([([1, 2], 6, 1), ([1, 2, 3], 12, 0)], (0, 7)),  # never beyond the donor's context
        ([([1, 2], 8, 0), ([1, 2], 8, 0)], (0, 8)),  # a full hit
        ([([1, 2], 8, 0), ([1, 2], 7, 0)], (0, 7)),  # never beyond the row's input
        ([([1], 8, 0), ([1], 8, 0)], (0, 4)),  # ids that cover less than the input: the rest is fresh
        ([([1, 2, 3], 4, 9), ([1, 2, 3], 12, 0)], (0, 4)),  # ids beyond the input are no tokens
        ([([1], 4, 0), ([2], 4, 0)], (-1, 0)),
        ([([], 4, 0), ([], 4, 0)], (-1, 0)),
    ],
)
def test_ties_and_bounds(requests, last):
    """Each is a rule of its own; a wrong one moves hits of whole traces."""
    assert add_all(requests)[-1] == last


def test_rows_are_numbered_from_the_first():
    """A folder of files has a trie a file; donors must be numbers of the whole list."""
    assert add_all([([1], 4, 0), ([1], 4, 0)], first_row=7) == [(-1, 0), (7, 4)]
