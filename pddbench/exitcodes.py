"""Exit codes: a contract with scripts and CI (documented in README.md and `pddbench --help`).

When several apply, a signal (130, 143) wins, then 1, then 98, then 99.
"""

GOOD = 0
WORLD_FAILED = 1  # unreachable, preflight not 2xx, not SSE, no request succeeded
BAD_INPUT = 2  # a flag, file, line, field, unit or named backend that cannot be used; always before traffic
INVALID = 98  # the measurement broke one of its own rules
THRESHOLD = 99  # a threshold was breached
SIGINT = 130
SIGTERM = 143

_PRECEDENCE = (SIGINT, SIGTERM, WORLD_FAILED, INVALID, THRESHOLD, BAD_INPUT, GOOD)


def worst(codes: list[int]) -> int:
    """The exit code that wins among `codes` (empty: good)."""
    return min(codes, key=_PRECEDENCE.index, default=GOOD)
