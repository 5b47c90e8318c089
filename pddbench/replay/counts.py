"""How far a run is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass
class Counts:
    """How far a run is. `failed` are those that ended without a 2xx answer read to its end."""

    planned: int = 0
    sent: int = 0
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    not_sent: int = 0

    @classmethod
    def total(cls, parts: Sequence[Counts]) -> Counts:
        """The counts of several workers as one."""
        return cls(**{field.name: sum(getattr(part, field.name) for part in parts) for field in fields(cls)})
