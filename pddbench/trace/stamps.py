"""Wall-clock stamps in trace files, to nanoseconds: Azure writes seven digits of a second, OpenTelemetry six."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

NS_PER_S = 1_000_000_000
_STAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?")


class Stamp(NamedTuple):
    """Nanoseconds since 1970 in UTC, and whether the text named its zone (if not, UTC was taken)."""

    ns: int
    has_zone: bool


def parse_stamp(text: str) -> Stamp | None:
    """The stamp in ISO 8601 text (a space or T between date and time); None if it is none."""
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    try:
        whole = datetime.fromisoformat(f"{day}T{clock}").replace(tzinfo=UTC)
    except ValueError:
        return None
    seconds = (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1) - _offset_s(zone)
    return Stamp(seconds * NS_PER_S + int((fraction or "").ljust(9, "0")), zone is not None)


def _offset_s(zone: str | None) -> int:
    if zone in (None, "Z"):
        return 0
    digits = str(zone)[1:].replace(":", "")
    offset = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -offset if str(zone).startswith("-") else offset
