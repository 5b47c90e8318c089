"""From requests with parents, recorded times and block ids to rows in an order the canonical trace allows."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pddbench.errors import TraceError
from pddbench.trace.model import Row
from pddbench.trace.trie import PrefixTrie
from pddbench.trace.units import check_seconds


@dataclass(kw_only=True)
class Node:
    """A request before it has its place: `parents` and `extends` are indices into the list of nodes.

    With `extends` the prompt continues the whole context (prompt and reply) of that request; otherwise what it shares
    follows from `hash_ids`. `line` is for errors.
    """

    request_id: str
    session_id: str
    turn: int
    input_tokens: int
    output_tokens: int
    line: int
    start_s: float | None = None
    gap_s: float | None = None
    parents: list[int] = field(default_factory=list)
    extends: int | None = None
    hash_ids: Sequence[int] = ()
    kind: str = "root"


def rows_of(nodes: Sequence[Node], path: Path, block_tokens: int) -> list[Row]:
    """The rows by start time (equal ones in the order given), each after its parents.

    Where no start is recorded the parents' place plus the gap stands for it. A circle of parents is a `TraceError`.
    """
    _check_ids(nodes, path)
    trie = PrefixTrie(block_tokens)
    in_trie: list[int] = []
    rows = []
    for i in in_order(nodes, path):
        node = nodes[i]
        if node.extends is None:
            donor, shared = trie.add(node.hash_ids, node.input_tokens, node.output_tokens)
            donor = in_trie[donor] if donor >= 0 else -1
            in_trie.append(i)
        else:
            donor = node.extends
            shared = nodes[donor].input_tokens + nodes[donor].output_tokens
        rows.append(_row(node, nodes, donor, shared))
    return rows


def _row(node: Node, nodes: Sequence[Node], donor: int, shared: int) -> Row:
    return Row(
        request_id=node.request_id,
        session_id=node.session_id,
        turn=node.turn,
        input_tokens=node.input_tokens,
        output_tokens=node.output_tokens,
        parents=tuple(nodes[parent].request_id for parent in node.parents),
        start_s=node.start_s,
        gap_s=node.gap_s,
        prefix_of=nodes[donor].request_id if donor >= 0 else None,
        prefix_tokens=shared,
        kind=node.kind,
    )


def _check_ids(nodes: Sequence[Node], path: Path) -> None:
    seen: set[str] = set()
    for node in nodes:
        if node.request_id in seen:
            raise TraceError(path, node.line, None, f"request {node.request_id!r} is already in the file")
        seen.add(node.request_id)


def in_order(nodes: Sequence[Node], path: Path) -> list[int]:
    """Indices of the nodes by start, parents first."""
    for node in nodes:
        check_seconds(node.start_s, path, node.line, "start")
        check_seconds(node.gap_s, path, node.line, "gap")
    waits = [len(node.parents) for node in nodes]
    children: list[list[int]] = [[] for _ in nodes]
    for i, node in enumerate(nodes):
        for parent in node.parents:
            children[parent].append(i)
    earliest_s = [0.0] * len(nodes)
    ready = [(node.start_s or 0.0, i) for i, node in enumerate(nodes) if not node.parents]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        at_s, i = heapq.heappop(ready)
        order.append(i)
        for child in children[i]:
            earliest_s[child] = max(earliest_s[child], at_s)
            waits[child] -= 1
            if not waits[child]:
                start_s, gap_s = nodes[child].start_s, nodes[child].gap_s
                place_s = earliest_s[child] + (gap_s or 0.0) if start_s is None else max(start_s, earliest_s[child])
                heapq.heappush(ready, (place_s, child))
    if len(order) < len(nodes):
        stuck = next(node for node, wait in zip(nodes, waits, strict=True) if wait)
        raise TraceError(
            path, stuck.line, None, f"request {stuck.request_id!r} waits for itself in a circle of parents"
        )
    return order


def known_counts(counts: Counter[str]) -> dict[str, int]:
    """What was met at least once, for the header."""
    return {name: n for name, n in counts.items() if n}


def clipped_gap_s(start_s: float, end_s: float, counts: Counter[str]) -> float:
    """Start minus the last parent's end, to the microsecond; a negative gap becomes 0 and is counted."""
    gap_s = round(start_s - end_s, 6)
    counts["negative_gaps"] += gap_s < 0
    return max(0.0, gap_s)
