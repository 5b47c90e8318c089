"""The device at each end of a link: its name, addresses, and what every backend must offer."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Protocol

from pddbench.errors import InputError, WorldError
from pddbench.text import printable
from pddbench.wan.namespaces import Side
from pddbench.wan.shape import Shape

NAME = "wan0"
ADDRESSES = ("198.18.0.1", "198.18.0.2")  # RFC 2544: kept for benchmarks, routed nowhere


class Unavailable(InputError):
    """A backend that this host cannot run: exit 2 when it was asked for by name. `reason` is the kernel's own."""

    def __init__(self, backend: str, reason: str) -> None:
        super().__init__(f"WAN backend {backend!r} does not work here: {reason} (`pddbench wan probe` shows what does)")
        self.reason = reason


class Backend(Protocol):
    """A link between two namespaces whose two directions can be changed while it runs."""

    name: str

    def apply(self, a_to_b: Shape, b_to_a: Shape) -> None:
        """Make the link so; raises `Unavailable` when the kernel refuses. Not read back: `check_unchanged`."""
        ...

    def read_back(self) -> dict[str, Any]:
        """What is in force in each direction, as the kernel or the emulator says."""
        ...

    def counters(self) -> dict[str, dict[str, float]]:
        """By direction (`a_to_b`, `b_to_a`), since the start: packets, bytes, lost on purpose, dropped."""
        ...

    def check_unchanged(self) -> None:
        """`WorldError` when the link is no longer what was last applied."""
        ...

    def close(self) -> None:
        """Take the link down."""
        ...


def attempt(side: Side, argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run `ip` or `tc` inside a side, whatever it ends with. `WorldError` when it does not end, or cannot be started.

    A link is changed and watched by threads: one that ended by any other error would do so without a word.
    """
    try:
        return side.run(argv)
    except subprocess.TimeoutExpired as error:
        reason = f"did not end within {error.timeout:g} s"
    except OSError as error:
        reason = f"cannot be started: {error.strerror}"
    raise WorldError(f"`{' '.join(argv[:6])} …` in side {side.name} {reason}")


def command(side: Side, argv: list[str]) -> str:
    """As `attempt`; what it prints. `WorldError` with its own words when it fails."""
    done = attempt(side, argv)
    if done.returncode != 0:
        said = printable(done.stderr.removeprefix("Error: ") or done.stdout) or f"exit {done.returncode}"
        raise WorldError(f"`{' '.join(argv[:6])} …` in side {side.name}: {said}")
    return done.stdout


def json_command(side: Side, argv: list[str]) -> Any:
    """As `command`, for one that prints JSON."""
    text = command(side, argv)
    try:
        return json.loads(text or "[]")
    except json.JSONDecodeError:
        raise WorldError(f"`{' '.join(argv)}` printed no JSON: {printable(text, 80)!r}") from None
