"""HDR histograms of a run (`.hlog`, format 1.2, as HdrHistogram's own tools read it), and merging such files.

Microseconds of experiment time, three significant digits, up to an hour; tags are `ARM.METRIC`. What a histogram cannot
hold (failures, which are infinite, and values above an hour) is counted in a comment line of its own, never dropped
silently. Histograms are merged, percentiles never averaged.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pddbench.analyze.dataset import Dataset
from pddbench.analyze.quantiles import Floats
from pddbench.errors import InputError

if TYPE_CHECKING:
    from hdrh.histogram import HdrHistogram

METRICS = ("ttft", "ttft_sched", "ttst", "second_sched", "max_gap", "e2e", "e2e_sched", "icl", "session_completion")
HIGHEST_US = 3_600_000_000
DIGITS = 3
_MOST_BYTES = 64 << 20
_LEFT_OUT = re.compile(r"#\[LeftOut: ([^ ]{1,120}) failed=(\d+) above_range=(\d+)\]")
_LINE = re.compile(r"(?:Tag=([^,]{1,120}),)?([\d.]+),([\d.]+),([\d.]+),([A-Za-z0-9+/=]+)")


@dataclass
class Tagged:
    """One histogram, when it began (s) and how long it is (s), and how many values it could not hold."""

    histogram: HdrHistogram
    start_s: float = 0.0
    length_s: float = 0.0
    failed: int = 0
    above: int = 0


@dataclass
class Log:
    """Histograms by tag."""

    tags: dict[str, Tagged] = field(default_factory=dict)


def new_histogram() -> HdrHistogram:
    """An empty one: 1 us to an hour, three digits."""
    from hdrh.histogram import HdrHistogram

    return HdrHistogram(1, HIGHEST_US, DIGITS)


def of_values(values_s: Floats) -> Tagged:
    """Seconds (infinite: failed) as a histogram of microseconds."""
    failed = int(np.isinf(values_s).sum())
    micros = np.maximum(0, np.rint(values_s[np.isfinite(values_s)] * 1e6)).astype(np.int64)
    out = Tagged(new_histogram(), failed=failed, above=int((micros > HIGHEST_US).sum()))
    for value, count in zip(*np.unique(micros[micros <= HIGHEST_US], return_counts=True), strict=True):
        if not out.histogram.record_value(int(value), int(count)):
            out.above += int(count)
    return out


def of_run(data: Dataset) -> Log:
    """The latencies of every arm of a run, phase measure."""
    log = Log()
    for arm, part in data.arms.items():
        for metric in METRICS:
            values = part.values(metric)
            if values.blank is None and len(values.values):
                tagged = of_values(values.values)
                tagged.length_s = max(0.0, part.window_s)
                log.tags[f"{arm}.{metric}"] = tagged
    return log


def write(log: Log, file: Path) -> None:
    """Write the log; `InputError` when the file cannot be written."""
    try:
        file.write_text("\n".join(_lines(log)) + "\n", encoding="ascii")
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror})") from None


def _lines(log: Log) -> Iterator[str]:
    yield "#[Histogram log format version 1.2]"
    yield "#[pddbench: microseconds of experiment time; failures are left out and counted below]"
    for tag, one in log.tags.items():
        yield f"#[LeftOut: {tag} failed={one.failed} above_range={one.above}]"
    yield '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"'
    for tag, one in log.tags.items():
        payload = one.histogram.encode().decode("ascii")
        largest = one.histogram.get_max_value() / 1e6
        yield f"Tag={tag},{one.start_s:f},{one.length_s:f},{largest:f},{payload}"


def read(file: Path) -> Log:
    """A log, the histograms of one tag added up; `InputError` names file and line."""
    from hdrh.histogram import HdrHistogram

    try:
        if file.stat().st_size > _MOST_BYTES:
            raise InputError(f"{file}: larger than {_MOST_BYTES >> 20} MiB: not a log of histograms")
        lines = file.read_text(encoding="ascii").splitlines()
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{file}: not a log of HDR histograms (it is not ASCII)") from None
    log, left_out = Log(), {}
    for number, line in enumerate(lines, start=1):
        if match := _LEFT_OUT.fullmatch(line):
            left_out[match[1]] = (int(match[2]), int(match[3]))
        elif match := _LINE.fullmatch(line):
            try:
                histogram = HdrHistogram.decode(match[5])
            except Exception as error:  # the decoder raises whatever its parts raise
                raise InputError(f"{file}, line {number}: not an HDR histogram ({type(error).__name__})") from error
            _add(log, match[1] or "", Tagged(histogram, float(match[2]), float(match[3])))
        elif line and not line.startswith(("#", '"')):
            raise InputError(f"{file}, line {number}: not a line of a histogram log")
    if not log.tags:
        raise InputError(f"{file}: no histogram in it")
    for tag, (failed, above) in left_out.items():
        if tag in log.tags:
            log.tags[tag].failed, log.tags[tag].above = failed, above
    return log


def _add(log: Log, tag: str, one: Tagged) -> None:
    """Add a histogram under its tag, into one of our own range."""
    have = log.tags.setdefault(tag, Tagged(new_histogram(), one.start_s))
    before = have.histogram.get_total_count()
    try:
        have.histogram.add(one.histogram)
    except IndexError as error:
        raise InputError(f"histogram {tag!r} holds values above an hour: {error}") from None
    if have.histogram.get_total_count() != before + one.histogram.get_total_count():
        raise InputError(f"histogram {tag!r} has another unit or range and cannot be added without loss")
    have.length_s += one.length_s
    have.failed += one.failed
    have.above += one.above


def merge(logs: Sequence[Log]) -> Log:
    """All logs as one: histograms of the same tag are added."""
    out = Log()
    for log in logs:
        for tag, one in log.tags.items():
            _add(out, tag, one)
    return out


def summary(log: Log) -> dict[str, dict[str, Any]]:
    """Count, failures and quantiles (s) of each tag; failures are at the far end, so they shift every quantile."""
    out: dict[str, dict[str, Any]] = {}
    for tag, one in log.tags.items():
        count = int(one.histogram.get_total_count())
        missing = one.failed + one.above
        row: dict[str, Any] = {"count": count, "failed": one.failed, "above_range": one.above}
        for name, q in (("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9)):
            rank = math.ceil(q / 100 * (count + missing) - 1e-9)  # the ceil(q n)-th smallest, as everywhere
            among = 100 * rank / count if count else math.inf
            row[name] = None if rank > count else one.histogram.get_value_at_percentile(among) / 1e6
        out[tag] = row
    return out
