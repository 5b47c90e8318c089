"""Replies that fit: on the `prompt` basis an append turn hits at most L / (L + O) of the context before it.

If a turn's prompt is the context of the one before (L tokens of prompt, O of reply) and something new, what it hits
are the L tokens; its own length was chosen for its hit, so O has at most the *slack* that is left. Which reply goes
where is a matching: replies sorted, slacks sorted, each slack takes any reply that is small enough and still there.
That finds a complete matching if there is one (the sets of small-enough replies are nested). Where a slack is too
small for all that are left, the turn's hit is lowered inside its bucket; where even that is not enough, the turn
changes its hit for that of a turn on a longer context.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pddbench.trace.quota.lengths import Draw
from pddbench.trace.quota.prompts import Prompts
from pddbench.trace.quota.spec import QuotaSpec


class Slack(NamedTuple):
    """Slot `owner` may reply with at most `tokens`; with at most `most_tokens` if the hit of slot `turn` is lowered.

    `context`: tokens that `turn` hits.
    """

    owner: int
    turn: int
    context: int
    tokens: int
    most_tokens: int


@dataclass
class Matched:
    """Replies by slot, hits (slot: share) that must be lowered for them to fit, and limits that no reply meets."""

    outputs: list[int]
    lowered: dict[int, float]
    failing: list[Slack]


def slacks(made: Prompts, previous: Sequence[int], bucket: Sequence[int], spec: QuotaSpec) -> list[Slack]:
    """The limits on replies: of appended-to prompts, and of singular requests."""
    found = []
    for slot, kind in enumerate(made.kinds):
        if made.appends[slot]:
            context = made.hits[slot]
            spare = made.inputs[slot] - context - spec.min_fresh_tokens
            most = _longest(context, spec.edges[bucket[slot]], spec) - context - spec.min_fresh_tokens
            found.append(Slack(previous[slot], slot, context, spare, max(spare, most)))
        elif kind == "singular":
            found.append(Slack(slot, slot, 0, spec.singular.max_output, spec.singular.max_output))
    return found


def _longest(context: int, low: float, spec: QuotaSpec) -> int:
    """The longest prompt in which `context` tokens are still in the bucket that begins at `low`."""
    if low <= 0:
        return int(max(spec.input.max, context))
    block = spec.block_tokens
    length = int(context / low) // block * block
    return length if context / length >= low else length - block


def match(limits: list[Slack], replies: Sequence[int], spec: QuotaSpec, draw: Draw) -> Matched:
    """A reply for every slot (as many as `replies`), within `limits` but for the `failing` ones."""
    ordered = sorted(replies)
    found = _greedy(sorted(limits, key=lambda slack: slack.tokens), ordered, spec, draw)
    if found.failing:
        found = _greedy(sorted(limits, key=lambda slack: slack.most_tokens), ordered, spec, draw)
    return found


def _greedy(limits: list[Slack], ordered: list[int], spec: QuotaSpec, draw: Draw) -> Matched:
    """Random replies that fit, in the order of `limits`; the smallest that is left where none does."""
    left = ordered.copy()
    matched = Matched([-1] * len(left), {}, [])
    for slack in limits:
        fitting = bisect_right(left, slack.tokens)
        if not fitting and left[0] > slack.most_tokens:
            matched.failing.append(slack)
            continue
        reply = left.pop(draw.below(fitting) if fitting else 0)
        if not fitting:
            matched.lowered[slack.turn] = _lowered(reply, slack, spec)
        matched.outputs[slack.owner] = reply
    order = draw.permutation(len(left)).tolist()
    for slot, output in enumerate(matched.outputs):
        if output < 0:
            matched.outputs[slot] = left[order.pop()]
    return matched


def _lowered(reply: int, slack: Slack, spec: QuotaSpec) -> float:
    """The share with which the reply fits, with some room so that the next pass does not undo it."""
    room = min(slack.most_tokens, int(reply * 1.01) + spec.block_tokens)
    return slack.context / (slack.context + spec.min_fresh_tokens + room)


def infeasible(limits: list[Slack], replies: Sequence[int]) -> str:
    """The bound that breaks: the first limit for which there are too few replies that are small enough."""
    ordered = sorted(replies)
    for number, slack in enumerate(sorted(limits, key=lambda slack: slack.most_tokens), start=1):
        if (small := bisect_right(ordered, slack.most_tokens)) < number:
            break
    n = len(replies)
    return (
        f"these laws do not go together: {number / n:.1%} of the replies must have at most {slack.most_tokens:,} "
        f"tokens, but only {small / n:.1%} of the output law do. On the prompt basis an append turn hits at most "
        "L/(L + O) of a context of L prompt and O reply tokens: lower output.mean or the share of the highest buckets, "
        "or raise input.mean"
    )
