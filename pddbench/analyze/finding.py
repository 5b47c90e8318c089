"""One thing found wrong with a measurement."""

from __future__ import annotations

from typing import Literal

import msgspec


class Finding(msgspec.Struct, kw_only=True):
    """A broken rule: `message` says what was measured against which limit, `advice` what to do about it."""

    rule: str
    level: Literal["invalid", "warning"]
    message: str
    advice: str
    arm: str | None = None
    measured: float | None = None
    limit: float | None = None
    unit: str | None = None
    allowed: bool = False
