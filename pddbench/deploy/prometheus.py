"""Prometheus text pages (format 0.0.4, and what OpenMetrics adds) as series and values: small, bounded, never raising.

A page comes from a server and is not trusted: lines and series beyond the limits, and lines that are none, are left
out; label values are made printable.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import msgspec

from pddbench.text import printable

MAX_SERIES = 5000
MAX_LINE_CHARACTERS = 4096
ENGINES = {
    "vllm:": "vllm", "vllm_": "vllm", "sglang:": "sglang", "sglang_": "sglang", "llamacpp:": "llamacpp",
    "dynamo_": "dynamo", "smg_": "sglang-router", "sgl_router_": "sglang-router", "lmcache:": "lmcache",
    "pddbench_emulator_": "pddbench",
}  # fmt: skip
"""What is kept of a page, by the beginning of the name, and whose it is."""

_LINE = re.compile(
    r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*"  # name
    r'(?:\{((?:[^"{}]|"(?:[^"\\]|\\.)*")*)\})?'  # {labels}
    r"\s+(\S+)(?:\s.*)?"  # value; a timestamp or an exemplar may follow
)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_SERIES = re.compile(r"([^{]+)(?:\{(.*)\})?", re.DOTALL)
_ESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_LEFT_OUT = ("_bucket", "_created")  # buckets end too early for a WAN (5 s); sum and count are kept


class Series(msgspec.Struct, frozen=True):
    """A name and its labels, in order of their names."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """As it is saved: `name{label="value",…}`, a label's value escaped."""
        inner = ",".join(f'{key}="{_escape(value)}"' for key, value in self.labels)
        return f"{self.name}{{{inner}}}" if inner else self.name


def parse(text: str) -> Iterator[tuple[Series, float]]:
    """All samples of a page, in order."""
    for line in text.splitlines():
        if line.startswith("#") or len(line) > MAX_LINE_CHARACTERS:
            continue
        match = _LINE.fullmatch(line.strip())
        value = _number(match[3]) if match else None
        if match and value is not None:
            yield Series(match[1], _labels(match[2] or "")), value


def read_series(saved: str) -> Series:
    """A series from the form in which it was saved."""
    match = _SERIES.fullmatch(saved)
    return Series(match[1], _labels(match[2] or "")) if match else Series(saved)


def known(text: str) -> dict[str, float]:
    """The engines' own series of a page (`ENGINES`) without histogram buckets, by their saved form."""
    out: dict[str, float] = {}
    for series, value in parse(text):
        if series.name.startswith(tuple(ENGINES)) and not series.name.endswith(_LEFT_OUT):
            out[str(series)] = value
            if len(out) == MAX_SERIES:
                break
    return out


def engines(names: Mapping[str, float]) -> list[str]:
    """Whose series these are, sorted."""
    return sorted({engine for prefix, engine in ENGINES.items() if any(name.startswith(prefix) for name in names)})


def _number(text: str) -> float | None:
    """A finite value; NaN and the infinities are no figures."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _labels(inner: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, printable(_unescape(value))) for key, value in _LABEL.findall(inner)))


def _unescape(text: str) -> str:
    return re.sub(r"\\.", lambda match: _ESCAPED.get(match[0], match[0]), text)


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"")
