"""`history = "live"`: the engine's own replies go into the prompts that follow, and change their lengths.

Recorded history needs no answer to make the next prompt; live history does. A reply that is shorter (or longer) than
planned makes every later prompt of its session so much shorter (longer): `sent_rows` says by how much, from the plan
and the replies' lengths alone, so that prompts, possible hits and reports agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pddbench.workload.requests import as_columns

if TYPE_CHECKING:
    import numpy.typing as npt

    from pddbench.trace.columns import Columns
    from pddbench.trace.hits import Lengths
    from pddbench.workload.plan import Plan, PlannedRequest


@dataclass(slots=True)
class Reply:
    """What an endpoint answered: its number of tokens, their ids where it tells them, its text chunk by chunk."""

    tokens: int
    ids: list[int] | None = None
    texts: list[str] = field(default_factory=list)

    def ids_until(self, tokens: int) -> list[int]:
        """The first `tokens` ids."""
        return (self.ids or [])[:tokens]

    def text_until(self, tokens: int) -> str:
        """The text of about the first `tokens` tokens: whole chunks, as many as their share of the reply."""
        if tokens >= self.tokens:
            return "".join(self.texts)
        return "".join(self.texts[: round(len(self.texts) * tokens / self.tokens)])


class Replies:
    """The replies of one run that later prompts may need; a session's are forgotten when its last request is over."""

    def __init__(self, plan: Plan) -> None:
        self._requests = plan.requests
        self._open = Counter(request.session_id for request in plan.requests)
        self._kept: dict[int, Reply] = {}
        self._of_session: dict[str, list[int]] = {}

    def put(self, index: int, reply: Reply) -> None:
        """Request `index` was answered."""
        self._kept[index] = reply
        self._of_session.setdefault(self._requests[index].session_id, []).append(index)

    def get(self, index: int) -> Reply:
        """The reply to request `index`; its prompt's descendants are only sent after it."""
        return self._kept[index]

    def done(self, index: int) -> None:
        """Request `index` needs no more replies: it has ended, or will never be sent."""
        session = self._requests[index].session_id
        self._open[session] -= 1
        if not self._open[session]:
            for old in self._of_session.pop(session, ()):
                del self._kept[old]

    def __len__(self) -> int:
        return len(self._kept)


def taken(end: int, request: PlannedRequest, reply_tokens: int) -> int:
    """Tokens of a reply in a context that ends at planned position `end` inside or after it.

    All of the reply, however long it became, where the plan has all of it; else the planned number, or fewer.
    """
    return taken_of(end - request.input_tokens, request.output_tokens, reply_tokens)


def taken_of(wanted: int, planned: int, reply_tokens: int) -> int:
    """The same of the first `wanted` tokens of a reply that was planned to have `planned`."""
    return reply_tokens if wanted >= planned else min(wanted, reply_tokens)


def sent_rows(plan: Plan, reply_tokens: npt.ArrayLike) -> Lengths:
    """Every request's real lengths, given those of the replies (0: none came). Pure; of recorded history: as planned.

    The same donors with these lengths are the trie of what was really sent.
    """
    import numpy as np

    from pddbench.trace.hits import Lengths

    columns = as_columns(plan.requests)
    planned = Lengths.of(columns.ints)
    if plan.history != "live":
        return planned
    sent = _SentPositions(planned, columns.ints("prefix_of").tolist(), np.asarray(reply_tokens).tolist())
    for i in range(len(columns)):
        sent.add(i)
    return Lengths(*(np.array(column, dtype=np.int64) for column in (sent.prefix, sent.inputs, sent.replies)))


class _SentPositions:
    """Prefix and prompt of each request as they were sent, request by request."""

    def __init__(self, planned: Lengths, donors: list[int], replies: list[int]) -> None:
        self._prefix: list[int] = planned.prefix_tokens.tolist()
        self._input: list[int] = planned.input_tokens.tolist()
        self._output: list[int] = planned.output_tokens.tolist()
        self._donors, self.replies = donors, replies
        self.prefix: list[int] = []
        self.inputs: list[int] = []

    def add(self, i: int) -> None:
        """The next request."""
        self.prefix.append(self._position(self._donors[i], self._prefix[i]))
        self.inputs.append(self.prefix[i] + self._input[i] - self._prefix[i])

    def _position(self, donor: int, position: int) -> int:
        """Where planned `position` of the context of `donor` came to lie."""
        while donor >= 0:
            if position > self._input[donor]:
                reply = taken_of(position - self._input[donor], self._output[donor], self.replies[donor])
                return self.inputs[donor] + reply
            if position > self._prefix[donor] or self._donors[donor] < 0:
                return self.prefix[donor] + position - self._prefix[donor]
            donor = self._donors[donor]
        return position


def only_own_replies(columns: Columns, session: Sequence[int]) -> tuple[list[int], list[int]]:
    """Prefixes of prompts that hold replies of their own ancestors only, and each row's donor (-1: none).

    A prompt can hold the live reply of a request only if it is sent after it. Where a trace shares a reply across
    branches or sessions, the prefix is cut before that reply, and the rest of the prompt is fresh. `session`: that of
    each row, as a number.
    """
    inputs, wanted, wanted_of = (c.tolist() for c in (columns.input_tokens, columns.prefix_tokens, columns.donor))
    after = _Ancestors(session, columns.parents.tolist(), columns.parent_counts.tolist())
    prefixes: list[int] = []
    donors: list[int] = []
    owner_before: list[int] = []  # by row: the owner of the segment that its own segment continues
    for i, (donor, prefix) in enumerate(zip(wanted_of, wanted, strict=True)):
        if donor >= 0 and not after.is_after(i, donor):
            owner, end = donor, prefix
            while owner >= 0:
                start = prefixes[owner]
                if end > max(start, inputs[owner]) and not after.is_after(i, owner):
                    prefix = inputs[owner]
                owner, end = owner_before[owner], min(end, start)
            if prefix < wanted[i] and not prefix:
                donor = -1
        prefixes.append(prefix)
        donors.append(donor)
        owner = donor
        while owner >= 0 and prefix <= prefixes[owner]:
            owner = owner_before[owner]
        owner_before.append(owner)
    return prefixes, donors


class _Ancestors:
    """Which requests have ended before a request is sent: parents, and theirs. A bit a request of the session."""

    def __init__(self, session: Sequence[int], parents: Sequence[int], counts: Sequence[int]) -> None:
        self._session = session
        size: Counter[int] = Counter()
        self._bit: list[int] = []
        self._before: list[int] = []
        at = 0
        for own, count in zip(session, counts, strict=True):
            self._bit.append(1 << size[own])
            size[own] += 1
            before = 0
            for parent in parents[at : at + count]:
                before |= self._bit[parent] | self._before[parent]
            self._before.append(before)
            at += count

    def is_after(self, i: int, other: int) -> bool:
        """Whether request i is sent only after `other` has ended."""
        return self._session[i] == self._session[other] and bool(self._before[i] & self._bit[other])
