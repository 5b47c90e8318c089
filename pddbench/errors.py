"""Errors a user can cause, each a single sentence with an exit code. Nothing else may reach the user as a traceback."""

from __future__ import annotations

from pddbench import exitcodes


class PddbenchError(Exception):
    """A failure with a sentence for the user (what, where, what to do) and the exit code it ends with."""

    exit_code = exitcodes.WORLD_FAILED


class InputError(PddbenchError):
    """What the user gave cannot be used (exit 2); raised before any traffic."""

    exit_code = exitcodes.BAD_INPUT


class WorldError(PddbenchError):
    """The world failed: unreachable, refused, not SSE, no request succeeded (exit 1)."""

    exit_code = exitcodes.WORLD_FAILED


class TraceError(InputError):
    """A trace file that cannot be read: names the file, the line (1-based) and the field."""

    def __init__(self, path: object, line: int | None, field: str | None, problem: str) -> None:
        where = str(path) + (f":{line}" if line is not None else "")
        super().__init__(f"{where}: {f'field {field!r}: ' if field else ''}{problem}")
        self.line = line
        self.field = field


def suggest(name: str, known: list[str]) -> str:
    """A hint for a misspelt name: the closest known one, else the list of all."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(sorted(known))
