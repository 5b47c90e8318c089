"""Reader for the Azure LLM inference traces (2023 and 2024): CSV of TIMESTAMP, ContextTokens, GeneratedTokens.

Source: Azure/AzurePublicDataset. No prompt is told to share anything with another, and there are no sessions: every
row is a root of its own, all its tokens fresh.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

from pddbench.trace.csvsource import csv_lines
from pddbench.trace.model import Header, Row, Trace
from pddbench.trace.nodes import known_counts
from pddbench.trace.source import file_sha256
from pddbench.trace.stamps import NS_PER_S, parse_stamp

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read_azure(path: Path) -> Trace:
    """The trace in an Azure CSV file; the first stamp is the trace's zero."""
    found: list[tuple[int, int, int, int]] = []  # ns, line, input, output
    counts: Counter[str] = Counter()
    for line in csv_lines(path, COLUMNS):
        stamp = parse_stamp(line.text("TIMESTAMP"))
        if stamp is None:
            raise line.fail("TIMESTAMP", "is no date and time like 2023-11-16 18:17:03.9799600")
        counts["stamps_without_zone"] += not stamp.has_zone
        tokens = line.integer("ContextTokens"), line.integer("GeneratedTokens")
        counts["zero_inputs"] += tokens[0] == 0
        counts["zero_outputs"] += tokens[1] == 0
        found.append((stamp.ns, line.number, *tokens))
    in_file_order = all(a[0] <= b[0] for a, b in pairwise(found))
    found.sort(key=lambda item: item[0])
    zero_ns = found[0][0]
    rows = [
        Row(f"L{number}", f"L{number}", 0, inputs, outputs, start_s=(ns - zero_ns) / NS_PER_S)
        for ns, number, inputs, outputs in found
    ]
    header = Header(
        source=path.name,
        source_format="azure",
        source_sha256=file_sha256(path),
        licence="CC-BY-4.0 (Microsoft; cite Splitwise, ISCA 2024)",
        id_scope="none",
        assumptions=_assumptions(known_counts(counts), in_file_order),
        counts=known_counts(counts),
    )
    return Trace(header, rows)


def _assumptions(counts: dict[str, int], in_file_order: bool) -> list[str]:
    said = [
        "the format tells nothing of shared prefixes: every prompt is wholly fresh, so every hit is 0",
        "every request is a session of its own (the format names no sessions)",
        "the trace's zero is the first stamp; fractions of a second are kept to 100 ns",
    ]
    if counts.get("stamps_without_zone"):
        said.append("stamps have no zone: taken as UTC, only differences are used")
    if not in_file_order:
        said.append("stamps were not ascending: rows are sorted by time, equal times in the order of the file")
    return said
