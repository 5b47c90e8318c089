"""What `pddbench feasibility` prints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from pddbench import exitcodes
from pddbench.analyze import feasibility as arithmetic
from pddbench.errors import InputError, suggest


@dataclass(frozen=True)
class Question:
    """What was asked. Rates in bit/s, sizes in bytes, `hit` a share."""

    model: str | None
    kv_token_bytes: float | None
    input_tokens: int | None
    hit: float
    trace: Path | None
    requests_s: float | None
    burst: int | None
    within_s: float
    line_bit_s: float


def answer(question: Question, *, as_json: bool) -> int:
    """Print whether the KV fits; raises `InputError`."""
    _check(question)
    per_token, base, source = _model(question)
    question = _from_trace(question)
    if question.input_tokens is None:
        raise InputError("feasibility needs the length of a prompt: --input N, or --trace FILE")
    one = arithmetic.transfer(question.input_tokens, question.hit, per_token, question.line_bit_s, base)
    found = arithmetic.feasibility(one, question.requests_s or 0.0, question.line_bit_s, base)
    if question.burst is not None:
        together = arithmetic.burst(one, question.burst, question.within_s, question.line_bit_s)
        found = msgspec.structs.replace(found, burst=together)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        for line in _lines(found, per_token, source, asked=question.requests_s is not None):
            click.echo(line)
    return exitcodes.GOOD


def _check(question: Question) -> None:
    """Every figure in its range."""
    ranges = (
        ("--kv-bytes", question.kv_token_bytes, 0.0, 1e9),
        ("--rate", question.requests_s, 0.0, 1e9),
        ("--within", question.within_s, 0.0, 1e9),
        ("--line-gbit", question.line_bit_s / 1e9, 0.0, 1e6),
    )
    for flag, value, low, high in ranges:
        if value is not None and not low < value <= high:
            raise InputError(f"{flag} {value:g}: must be above {low:g} and at most {high:g}")
    if not 0 <= question.hit <= 1:
        raise InputError(f"--hit {question.hit:g}: a share, 0 to 1 (90% is 0.9)")
    if question.trace is not None and (question.input_tokens is not None or question.hit):
        raise InputError("--trace gives lengths and hits: leave --input and --hit out")


def _model(question: Question) -> tuple[float, float, str]:
    """KV bytes a token, fixed bytes, and where they come from."""
    from pddbench.deploy.presets import MODELS

    if (question.model is None) == (question.kv_token_bytes is None):
        raise InputError("give --model NAME or --kv-bytes N (exactly one)")
    if question.kv_token_bytes is not None:
        return question.kv_token_bytes, 0.0, "as given"
    name = str(question.model)
    if name not in MODELS:
        raise InputError(f"--model {name}: unknown; {suggest(name, list(MODELS))}")
    model = MODELS[name]
    return model.kv_token_bytes, model.kv_base_bytes, model.source


def _from_trace(question: Question) -> Question:
    """Mean prompt, token-weighted hit and recorded rate of a trace in the place of those flags."""
    if question.trace is None:
        return question
    from pddbench.trace.read import read_trace
    from pddbench.trace.stats import trace_stats

    stats = trace_stats(read_trace(question.trace))
    rate = question.requests_s
    if rate is None and stats.span_s:
        rate = stats.requests / stats.span_s
    mean = max(1, round(stats.input_tokens / stats.requests))
    return replace(question, input_tokens=mean, hit=stats.token_weighted_hit, requests_s=rate)


def _lines(found: arithmetic.Feasibility, per_token: float, source: str, *, asked: bool) -> Iterator[str]:
    one = found.transfer
    yield (
        f"a prompt of {one.input_tokens:,} tokens at {100 * one.hit:.4g}% hit moves {one.tokens:,.0f} tokens of KV: "
        f"{_bytes(one.kv_bytes)} ({per_token:,.0f} B a token, {source})"
    )
    yield f"alone on a line of {_rate(found.line_bit_s)}: {one.seconds:.3g} s (no handshake, no slow start)"
    if found.most_requests_s is not None:
        yield f"the line is full at {found.most_requests_s:.3g} requests/s"
    if found.requests_s:
        verdict = "fits" if found.fits else "does not fit"
        yield (
            f"{found.requests_s:.4g} requests/s{'' if asked else ' (the trace)'} need {_rate(found.offered_bit_s)}, "
            f"{100 * found.line_share:.3g}% of the line: {verdict}"
        )
        if not found.fits:
            yield _needed(found)
    if found.burst:
        yield (
            f"{found.burst.requests:,} together are {_bytes(found.burst.kv_bytes)}: {_rate(found.burst.needed_bit_s)} "
            f"to have them across in {found.burst.within_s:g} s; on this line {found.burst.seconds_on_line:.3g} s"
        )


def _needed(found: arithmetic.Feasibility) -> str:
    if found.hit_needed is None:
        return "no hit rate makes it fit: the fixed part of the KV alone is too much"
    return f"it would fit from a token-weighted hit of {100 * found.hit_needed:.4g}% on"


def _bytes(size: float) -> str:
    for scale, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def _rate(bit_s: float) -> str:
    for scale, unit in ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bit_s >= scale:
            return f"{bit_s / scale:.4g} {unit}"
    return f"{bit_s / 1e3:.3g} kbit/s"
