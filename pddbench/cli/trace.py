"""`pddbench trace`: validate, describe, convert and make traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from pddbench.trace.model import Trace
    from pddbench.trace.stats import HitStats, Quantiles, TraceStats

_FORMAT = click.option(
    "--format",
    "format_name",
    metavar="NAME",
    help="canonical, mooncake, mooncake-sessions, mooncake-cumulative, mooncake-delta, dynamo, weka, bailian, azure, "
    "burstgpt, tracelab, otel, sharegpt or sweagent; default: seen from the content.",
)
_SOURCE_BLOCK = click.option(
    "--source-block-tokens",
    "source_block",
    type=click.IntRange(1, 1_000_000),
    help="Tokens that an id of FILE stands for, where the format does not say (mooncake…, dynamo, bailian).",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for a machine, nothing else.")
_FORCE = click.option("--force", is_flag=True, help="Replace an existing output file.")


@click.group()
def trace() -> None:
    """Validate, describe, convert and make traces.

    Traces are canonical files (*.trace.jsonl[.gz|.zst], *.trace.parquet) or files of other formats, seen from their
    content: Mooncake with and without sessions, Dynamo's agentic rows, WEKA (kv-cache-tester) files and folders of
    them, Qwen-Bailian, Azure, BurstGPT, TraceLab, OpenTelemetry gen_ai spans, ShareGPT-like and SWE-agent
    conversations. What a reader assumed is said with every answer.
    """


@trace.command()
@click.argument("file", type=click.Path(path_type=Path))
@_FORMAT
@_SOURCE_BLOCK
@_JSON
def validate(file: Path, format_name: str | None, source_block: int | None, as_json: bool) -> None:
    """Check every rule of a trace.

    The first violation ends it, in one sentence with file, line and field (exit 2).
    """
    import msgspec

    found = _read(file, format_name, source_block)
    sessions = len({row.session_id for row in found.rows})
    if as_json:
        header = found.header
        report = {
            "valid": True,
            "format": header.source_format,
            "requests": len(found.rows),
            "sessions": sessions,
            "assumptions": header.assumptions,
            "counts": header.counts,
        }
        click.echo(msgspec.json.encode(report).decode())
        return
    click.echo(f"{file}: valid, {len(found.rows):,} requests in {_sessions(sessions)} ({found.header.source_format})")
    _echo_notes(found.header.assumptions, found.header.counts)


@trace.command()
@click.argument("file", type=click.Path(path_type=Path))
@_FORMAT
@_SOURCE_BLOCK
@_JSON
def stats(file: Path, format_name: str | None, source_block: int | None, as_json: bool) -> None:
    """Describe a trace: sizes, span, prefix hits.

    Hits are those of an infinite cache in trace order, on both bases: `prompt` (only prompts leave KV behind, as when
    recorded prompts are replayed) and `prompt+output` (replies do too). JSON has the former on the top level.
    """
    import msgspec

    from pddbench.trace.stats import trace_stats

    figures = trace_stats(_read(file, format_name, source_block))
    if as_json:
        click.echo(msgspec.json.encode(figures).decode())
    else:
        _echo_stats(file, figures)


@trace.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@_FORMAT
@_SOURCE_BLOCK
@click.option(
    "--to",
    "target",
    type=click.Choice(["canonical", "mooncake"]),
    help="Format of OUT; default: mooncake for *.mooncake.jsonl, else canonical.",
)
@click.option(
    "--block-tokens",
    type=click.IntRange(1, 1_000_000),
    default=512,
    show_default=True,
    help="Tokens of a block in a Mooncake OUT.",
)
@_FORCE
def convert(
    source: Path,
    out: Path,
    format_name: str | None,
    source_block: int | None,
    target: str | None,
    block_tokens: int,
    force: bool,
) -> None:
    """Convert a trace to the canonical format, or to Mooncake.

    The suffix of OUT decides the canonical form: .trace.jsonl, .trace.jsonl.gz, .trace.jsonl.zst or .trace.parquet.
    Nothing is lost: text, roles and tools, where there are any, go to NAME.content.jsonl.zst beside it. Mooncake cannot
    express all of a trace; what is lost is said. OUT appears when it is complete.
    """
    target = target or ("mooncake" if out.name.endswith(".mooncake.jsonl") else "canonical")
    _check_free(out, force, any_suffix=target == "mooncake")
    if target == "canonical":
        _check_side(source, out, force)
    found = _read(source, format_name, source_block)
    if target == "mooncake":
        _write_mooncake(found, out, block_tokens)
    else:
        _write(found, out)
        _write_side(found, source, out)
    _echo_notes(found.header.assumptions, found.header.counts)


@trace.command()
@click.option("--preset", required=True, metavar="NAME", help="Which trace to make: agentic-small.")
@click.option(
    "--sessions", type=click.IntRange(1, 1_000_000), default=130, show_default=True, help="How many conversations."
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same trace everywhere.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write.")
@_FORCE
def synth(preset: str, sessions: int, seed: int, out: Path, force: bool) -> None:
    """Make a synthetic trace from a seed."""
    from pddbench.errors import InputError, suggest
    from pddbench.trace.synth import PRESETS

    if preset not in PRESETS:
        raise InputError(f"--preset {preset!r} is not known: {suggest(preset, list(PRESETS))}")
    _check_free(out, force)
    _write(PRESETS[preset](sessions, seed), out)


def _read(path: Path, format_name: str | None, source_block: int | None = None) -> Trace:
    from pddbench.trace.read import read_trace

    return read_trace(path, format_name, source_block)


def _check_free(out: Path, force: bool, any_suffix: bool = False) -> None:
    """What would fail at the end fails at the start."""
    from pddbench.errors import InputError
    from pddbench.trace.canonical import check_suffix

    if not any_suffix:
        check_suffix(out)
    if out.is_dir():
        raise InputError(f"{out}: is a directory; give the name of a file")
    if not out.parent.is_dir():
        raise InputError(f"{out}: the directory {out.parent} does not exist")
    if out.exists() and not force:
        raise InputError(f"{out}: exists already; --force replaces it")


def _write(made: Trace, out: Path) -> None:
    from pddbench.trace.canonical import write_trace

    write_trace(made, out)
    sessions = len({row.session_id for row in made.rows})
    click.echo(f"{out}: written, {len(made.rows):,} requests in {_sessions(sessions)}, {out.stat().st_size:,} bytes")


def _check_side(source: Path, out: Path, force: bool) -> None:
    """An old side file where that of OUT may go is not overwritten in passing (that of IN itself is left alone)."""
    from pddbench.errors import InputError
    from pddbench.trace.content import side_path

    side = side_path(out)
    if side.exists() and side != side_path(source) and not force:
        raise InputError(f"{side}: exists already; --force replaces it")


def _write_side(found: Trace, source: Path, out: Path) -> None:
    """The text of a trace, from its own format or from the side file of a canonical one."""
    from pddbench.trace.content import read_content_file, side_path, write_content

    side, content = side_path(out), found.content
    if content is None and side != side_path(source) and side_path(source).is_file():
        content = read_content_file(side_path(source))
    if content is not None:
        write_content(content, side)
        click.echo(f"{side}: written, the text of {len(content):,} requests, {side.stat().st_size:,} bytes")


def _write_mooncake(found: Trace, out: Path, block_tokens: int) -> None:
    from pddbench.trace.to_mooncake import write_mooncake

    lost = write_mooncake(found, out, block_tokens)
    size = out.stat().st_size
    click.echo(f"{out}: written, {len(found.rows):,} requests in blocks of {block_tokens:,} tokens, {size:,} bytes")
    click.echo("lost:" if lost else "lost: nothing")
    for text in lost:
        click.echo(f"  - {text}")


def _sessions(n: int) -> str:
    return f"{n:,} session{'' if n == 1 else 's'}"


def _echo_notes(assumptions: list[str], counts: dict[str, int]) -> None:
    if assumptions:
        click.echo("assumed:")
        for text in assumptions:
            click.echo(f"  - {text}")
    if counts:
        click.echo("met: " + ", ".join(f"{name} {n:,}" for name, n in counts.items()))


def _echo_stats(file: Path, figures: TraceStats) -> None:
    span = "no recorded starts" if figures.span_s is None else f"{figures.span_s:,.1f} s from first to last start"
    lengths = "" if figures.lengths == "exact" else f", lengths {figures.lengths}"
    click.echo(f"{file} ({figures.source_format}{lengths})")
    click.echo(f"{figures.requests:,} requests in {_sessions(figures.sessions)}, {span}")
    click.echo("kinds: " + ", ".join(f"{kind} {n:,}" for kind, n in figures.kinds.items()))
    click.echo(f"\n{'tokens':<8}{'total':>15}{'mean':>11}{'P50':>10}{'P90':>10}{'P99':>10}{'max':>10}")
    click.echo(_quantile_line("input", figures.input_tokens, figures.input_quantiles))
    click.echo(_quantile_line("output", figures.output_tokens, figures.output_quantiles))
    click.echo("\nprefix hits of an infinite cache, in trace order")
    _echo_hits(figures, figures.prompt_output)
    click.echo()
    _echo_notes(figures.assumptions, figures.counts)


def _quantile_line(name: str, total: int, q: Quantiles) -> str:
    return f"{name:<8}{total:>15,}{q.mean:>11,.1f}{q.p50:>10,}{q.p90:>10,}{q.p99:>10,}{q.max:>10,}"


def _echo_hits(prompt: TraceStats, both: HitStats) -> None:
    """Both bases side by side: what is cached of a request is its prompt, or its prompt and its reply."""
    columns: tuple[TraceStats | HitStats, ...] = (prompt, both)

    def line(name: str, cells: list[str]) -> None:
        click.echo(f"{name:<34}" + "".join(f"{cell:>24}" for cell in cells))

    line("cached of each request (basis)", [hits.basis for hits in columns])
    line("hit tokens", [f"{hits.hit_tokens:,}" for hits in columns])
    line("token-weighted hit", [f"{hits.token_weighted_hit:.2%}" for hits in columns])
    line("mean hit per request", [f"{hits.mean_hit:.2%}" for hits in columns])
    line("requests that hit more than 95%", [f"{hits.share_above_95:.2%}" for hits in columns])
    for a, b in zip(prompt.buckets, both.buckets, strict=True):
        line(f"  hit in {a.range} %", [f"{bucket.count:,} ({bucket.share:.1%})" for bucket in (a, b)])
