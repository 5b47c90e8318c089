"""Prompts as bytes on the wire: the salt seeds the map from (trie node, position) to token, and adds no tokens.

Two prompts share exactly the tokens that their paths in the trie share (`trace.contexts`), whatever the salt; with
another salt every token changes, so that nothing hits a cache warmed by an earlier run.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from pddbench.trace.contexts import Segment
from pddbench.workload.paths import Paths
from pddbench.workload.plan import Plan
from pddbench.workload.requests import as_columns
from pddbench.workload.words import WORDS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.int32]

_KEPT_TOKENS = 32_000_000  # own segments kept in memory, tokens (4 bytes each); others are drawn again when needed


def draw(salt: str, name: str, n: int, low: int, high: int) -> Ids:
    """`n` seeded token ids in [low, high), the same on every machine and numpy version (Philox raw bits)."""
    import numpy as np

    key = int.from_bytes(hashlib.sha256(f"{salt}\0{name}".encode()).digest()[:16], "little")
    bits = np.random.Philox(key=key).random_raw(n) >> np.uint64(32)
    return ((bits * np.uint64(high - low)) >> np.uint64(32)).astype(np.int32) + np.int32(low)


class PromptBook:
    """Token ids of every prompt of a plan under one salt, and the request bodies made of them."""

    def __init__(self, plan: Plan, salt: str, token_id_range: tuple[int, int]) -> None:
        self._requests = plan.requests
        self._salt = salt
        self._low, self._high = token_id_range
        columns = as_columns(plan.requests)
        self._paths = Paths(columns.ints("prefix_of").data, columns.ints("prefix_tokens").data)
        self._own: OrderedDict[int, Ids] = OrderedDict()
        self._kept_tokens = 0

    def ids(self, index: int) -> Ids:
        """The prompt of request `index`: int32, shape (input_tokens,)."""
        import numpy as np

        return np.concatenate([self._piece(segment) for segment in self._path(index)])

    def _path(self, index: int) -> list[Segment]:
        return self._paths.of(index, self._requests[index].input_tokens)

    def _piece(self, segment: Segment) -> Ids:
        """A segment's ids, cut out of its owner's fresh tokens."""
        offset = self._first_own(segment.owner)
        return self._own_ids(segment.owner)[segment.start - offset : segment.end - offset]

    def _first_own(self, owner: int) -> int:
        return self._paths.first_own(owner)

    def _own_ids(self, owner: int) -> Ids:
        """All fresh tokens of a row (rest of the prompt, then its recorded reply), drawn once while kept."""
        if owner in self._own:
            self._own.move_to_end(owner)
            return self._own[owner]
        request = self._requests[owner]
        n = request.input_tokens + request.output_tokens - self._first_own(owner)
        ids = self._own[owner] = draw(self._salt, request.request_id, n, self._low, self._high)
        self._kept_tokens += n
        while self._kept_tokens > _KEPT_TOKENS and len(self._own) > 1:
            self._kept_tokens -= len(self._own.popitem(last=False)[1])
        return ids

    def text(self, index: int, words: Sequence[str] = WORDS, overhead_tokens: int = 0) -> str:
        """The prompt as words, one word a token, `overhead_tokens` fewer (what a chat template adds).

        Ids index `words`, so they must be drawn from [0, len(words)).
        """
        ids = self.ids(index)
        keep = max(1, len(ids) - overhead_tokens)
        return " ".join([words[i] for i in ids[:keep].tolist()])


class BodyWriter:
    """Request bodies for one arm: the prompt in the form its endpoint takes, and the fields its profile needs."""

    def __init__(
        self,
        book: PromptBook,
        plan: Plan,
        *,
        model: str,
        chat: bool,
        token_ids: bool,
        fields: Mapping[str, Any],
        limit_field: str,
        min_tokens: bool,
        words: Sequence[str] = WORDS,
        overhead_tokens: int = 0,
    ) -> None:
        self._book, self._plan = book, plan
        self._chat, self._token_ids = chat, token_ids
        self._limit_fields = (limit_field, "min_tokens") if min_tokens else (limit_field,)
        self._words, self._overhead_tokens = words, overhead_tokens
        self._base = {
            "model": model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0,
            **fields,
        }

    def __call__(self, index: int) -> bytes:
        """The body of request `index`, JSON."""
        body = dict(self._base)
        if self._chat:
            body["messages"] = [{"role": "user", "content": self._book.text(index, self._words, self._overhead_tokens)}]
        elif self._token_ids:
            body["prompt"] = self._book.ids(index).tolist()
        else:
            body["prompt"] = self._book.text(index, self._words, self._overhead_tokens)
        for field in self._limit_fields:
            body[field] = self._plan.requests[index].output_tokens
        return msgspec.json.encode(body)
