"""`history = "live"`: the engine's own replies go into the prompts that follow, and change their lengths.

Recorded history needs no answer to make the next prompt; live history does. A reply that is shorter (or longer) than
planned makes every later prompt of its session so much shorter (longer): `sent_rows` says by how much, from the plan
and the replies' lengths alone, so that prompts, possible hits and reports agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pddbench.trace.model import Row

if TYPE_CHECKING:
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
    wanted = end - request.input_tokens
    return reply_tokens if wanted >= request.output_tokens else min(wanted, reply_tokens)


class SentRow(NamedTuple):
    """A request's lengths as they were sent (see `trace.contexts.Shares`)."""

    prefix_tokens: int
    input_tokens: int
    output_tokens: int


def sent_rows(plan: Plan, reply_tokens: Sequence[int]) -> list[SentRow]:
    """Every request's real lengths, given those of the replies (0: none came). Pure; of recorded history: as planned.

    The same donors with these lengths are the trie of what was really sent.
    """
    requests = plan.requests
    if plan.history != "live":
        return [SentRow(r.prefix_tokens, r.input_tokens, r.output_tokens) for r in requests]
    rows: list[SentRow] = []
    for request, reply in zip(requests, reply_tokens, strict=True):
        prefix = _sent_position(requests, rows, request.prefix_of, request.prefix_tokens, reply_tokens)
        fresh = request.input_tokens - request.prefix_tokens
        rows.append(SentRow(prefix, prefix + fresh, int(reply)))
    return rows


def _sent_position(
    requests: Sequence[PlannedRequest], rows: Sequence[SentRow], donor: int, position: int, replies: Sequence[int]
) -> int:
    """Where planned `position` of the context of `donor` came to lie."""
    while donor >= 0:
        request = requests[donor]
        if position > request.input_tokens:
            return rows[donor].input_tokens + taken(position, request, int(replies[donor]))
        if position > request.prefix_tokens or request.prefix_of < 0:
            return rows[donor].prefix_tokens + position - request.prefix_tokens
        donor = request.prefix_of
    return position


def only_own_replies(rows: Sequence[Row], donors: Sequence[int]) -> tuple[list[Row], list[int]]:
    """Rows whose prompts hold replies of their own ancestors only, and the index of each row's donor (-1: none).

    A prompt can hold the live reply of a request only if it is sent after it. Where a trace shares a reply across
    branches or sessions, the prefix is cut before that reply, and the rest of the prompt is fresh.
    """
    after = _Ancestors(rows)
    out: list[Row] = []
    kept: list[int] = []
    owner_before: list[int] = []  # by row: the owner of the segment that its own segment continues
    for i, row in enumerate(rows):
        donor, prefix = donors[i], row.prefix_tokens
        if donor >= 0 and not after.is_after(i, donor):
            owner, end = donor, prefix
            while owner >= 0:
                start = out[owner].prefix_tokens
                if end > max(start, out[owner].input_tokens) and not after.is_after(i, owner):
                    prefix = out[owner].input_tokens
                owner, end = owner_before[owner], min(end, start)
            if prefix < row.prefix_tokens:
                donor = donor if prefix else -1
                row = msgspec.structs.replace(row, prefix_of=row.prefix_of if prefix else None, prefix_tokens=prefix)
        out.append(row)
        kept.append(donor)
        owner = donor
        while owner >= 0 and prefix <= out[owner].prefix_tokens:
            owner = owner_before[owner]
        owner_before.append(owner)
    return out, kept


class _Ancestors:
    """Which requests have ended before a request is sent: parents, and theirs. A bit a request of the session."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._session = [row.session_id for row in rows]
        index_of: dict[str, int] = {}
        size: Counter[str] = Counter()
        self._bit: list[int] = []
        self._before: list[int] = []
        for i, row in enumerate(rows):
            index_of[row.request_id] = i
            self._bit.append(1 << size[row.session_id])
            size[row.session_id] += 1
            before = 0
            for parent in row.parents:
                at = index_of[parent]
                before |= self._bit[at] | self._before[at]
            self._before.append(before)

    def is_after(self, i: int, other: int) -> bool:
        """Whether request i is sent only after `other` has ended."""
        return self._session[i] == self._session[other] and bool(self._before[i] & self._bit[other])
