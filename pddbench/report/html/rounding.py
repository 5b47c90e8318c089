"""Numbers for the page."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def rounded(values: Any, digits: int = 4) -> list[float | None]:
    """Numbers with `digits` significant digits, null for what is not finite: half the bytes of full floats."""
    out: list[float | None] = []
    for value in np.asarray(values, dtype=np.float64).tolist():
        out.append(float(f"{value:.{digits}g}") if math.isfinite(value) else None)
    return out
