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
from pddbench.workload.history import Replies, taken
from pddbench.workload.paths import Paths
from pddbench.workload.plan import Plan
from pddbench.workload.requests import as_columns
from pddbench.workload.words import WORDS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.int32]

_KEPT_TOKENS = 32_000_000  # own segments kept in memory, tokens (4 bytes each); others are drawn again when needed
_OBJECT_TOKENS = 75  # what a segment takes in memory besides its tokens, as tokens


def draw(salt: str, name: str, n: int, low: int, high: int) -> Ids:
    """`n` seeded token ids in [low, high), the same on every machine and numpy version (Philox raw bits)."""
    import numpy as np

    key = int.from_bytes(hashlib.sha256(f"{salt}\0{name}".encode()).digest()[:16], "little")
    bits = np.random.Philox(key=key).random_raw(n) >> np.uint64(32)
    return ((bits * np.uint64(high - low)) >> np.uint64(32)).astype(np.int32) + np.int32(low)


class PromptBook:
    """Token ids of every prompt of a plan under one salt, and the request bodies made of them.

    With `replies` (live history) the replies in a prompt are those, and it can be made only once they are there.
    """

    def __init__(self, plan: Plan, salt: str, token_id_range: tuple[int, int], replies: Replies | None = None) -> None:
        self._requests, self._replies = plan.requests, replies
        self._salt = salt
        self._low, self._high = token_id_range
        columns = as_columns(plan.requests)
        self._paths = Paths(columns.ints("prefix_of").data, columns.ints("prefix_tokens").data)
        self._own: OrderedDict[int, Ids] = OrderedDict()
        self._kept_tokens = 0

    def ids(self, index: int) -> Ids:
        """The prompt of request `index`: int32, shape (input_tokens,); with live replies as long as they make it."""
        import numpy as np

        pieces = []
        for segment in self._path(index):
            written, reply_tokens = self._halves(segment)
            if written is not None:
                pieces.append(self._piece(written))
            if reply_tokens:
                assert self._replies is not None
                pieces.append(np.array(self._replies.get(segment.owner).ids_until(reply_tokens), dtype=np.int32))
        return np.concatenate(pieces)

    def _path(self, index: int) -> list[Segment]:
        return self._paths.of(index, self._requests[index].input_tokens)

    def _halves(self, segment: Segment) -> tuple[Segment | None, int]:
        """What a segment holds of its owner's prompt, and how many tokens of its live reply."""
        if self._replies is None:
            return segment, 0
        owner = self._requests[segment.owner]
        if segment.end <= owner.input_tokens:
            return segment, 0
        written = segment._replace(end=owner.input_tokens)
        tokens = taken(segment.end, owner, self._replies.get(segment.owner).tokens)
        return (written if written.start < written.end else None), tokens

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
        self._kept_tokens += n + _OBJECT_TOKENS
        while self._kept_tokens > _KEPT_TOKENS and len(self._own) > 1:
            self._kept_tokens -= len(self._own.popitem(last=False)[1]) + _OBJECT_TOKENS
        return ids

    def text(self, index: int, words: Sequence[str] = WORDS, overhead_tokens: int = 0) -> str:
        """The prompt as words, one word a token, `overhead_tokens` fewer (what a chat template adds).

        Ids index `words`, so they must be drawn from [0, len(words)).
        """
        ids = self.ids(index)
        keep = max(1, len(ids) - overhead_tokens)
        return " ".join([words[i] for i in ids[:keep].tolist()])

    def messages(self, index: int, words: Sequence[str], overhead: tuple[int, int]) -> list[dict[str, str]]:
        """The prompt as a conversation: what requests wrote as user, live replies as assistant.

        `overhead` are the tokens that a chat template adds to a prompt of one user message, and for each pair of
        assistant and user messages after it. A request's own words are so many fewer; so are they in every later
        prompt, which therefore begins with the very same messages.
        """
        assert self._replies is not None
        out: list[dict[str, str]] = []

        def say(role: str, text: str) -> None:
            if text and out and out[-1]["role"] == role:
                out[-1]["content"] += " " + text
            elif text:
                out.append({"role": role, "content": text})

        for segment in self._path(index):
            written, reply_tokens = self._halves(segment)
            if written is not None:
                end = min(written.end, self._last_word(segment.owner, overhead))
                ids = self._piece(written._replace(end=max(end, written.start)))
                say("user", " ".join([words[i] for i in ids.tolist()]))
            if reply_tokens:
                say("assistant", self._replies.get(segment.owner).text_until(reply_tokens))
        if not out or out[-1]["role"] == "assistant":
            say("user", words[0])  # nothing new was planned, but an endpoint answers a user
        return out

    def _last_word(self, owner: int, overhead: tuple[int, int]) -> int:
        """Position at which the words of a request's own message end: what the template adds is left out."""
        request, first = self._requests[owner], self._first_own(owner)
        earlier = any(s.end > self._requests[s.owner].input_tokens for s in self._path(owner) if s.owner != owner)
        return max(first + 1, request.input_tokens - overhead[earlier])


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
        turn_overhead_tokens: int = 0,
    ) -> None:
        self._book, self._plan = book, plan
        self._live = plan.history == "live"
        self._overhead = overhead_tokens, turn_overhead_tokens
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
        if self._live and not self._token_ids:
            messages = self._book.messages(index, self._words, self._overhead if self._chat else (0, 0))
            if self._chat:
                body["messages"] = messages
            else:
                body["prompt"] = _joined(messages)
        elif self._chat:
            body["messages"] = [{"role": "user", "content": self._book.text(index, self._words, self._overhead_tokens)}]
        elif self._token_ids:
            body["prompt"] = self._book.ids(index).tolist()
        else:
            body["prompt"] = self._book.text(index, self._words, self._overhead_tokens)
        for field in self._limit_fields:
            body[field] = self._plan.requests[index].output_tokens
        return msgspec.json.encode(body)


def _joined(messages: Sequence[Mapping[str, str]]) -> str:
    """A conversation as one text: replies as they came, a space between whatever has none."""
    text = ""
    for message in messages:
        gap = " " if text and not text[-1].isspace() and not message["content"][:1].isspace() else ""
        text += gap + message["content"]
    return text
