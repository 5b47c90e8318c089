"""How far a run is, and how our own processes are: what a progress display gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from pddbench.replay.health import Vitals


@dataclass
class Counts:
    """How far a run is. `failed` are those that ended without a 2xx answer read to its end."""

    planned: int = 0
    sent: int = 0
    in_flight: int = 0
    done: int = 0
    failed: int = 0
    not_sent: int = 0
    vitals: Vitals | None = None

    @classmethod
    def total(cls, parts: Sequence[Counts]) -> Counts:
        """The counts of several workers as one, with the worst of their vitals."""
        names = [field.name for field in fields(cls) if field.name != "vitals"]
        sums = {name: sum(getattr(part, name) for part in parts) for name in names}
        vitals = [part.vitals for part in parts if part.vitals is not None]
        return cls(**sums, vitals=Vitals.worst(vitals) if vitals else None)
