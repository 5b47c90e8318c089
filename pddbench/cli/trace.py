"""`pddbench trace`: validate, describe, convert and make traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pddbench.cli.groups import Group
from pddbench.cli.trace_files import (
    FORCE,
    FORMAT,
    JSON,
    SOURCE_BLOCK,
    check_free,
    check_side,
    read,
    read_any,
    sessions_text,
    write,
    write_mooncake,
    write_side,
)
from pddbench.cli.trace_make import cache_curve, fit, observe, oracle, synth
from pddbench.text import one_line, printable

if TYPE_CHECKING:
    from pddbench.trace.stats import HitStats, Quantiles, TraceStats


@click.group(cls=Group)
def trace() -> None:
    """Validate, describe, convert and make traces.

    Traces are canonical files (*.trace.jsonl[.gz|.zst], *.trace.parquet) or files of other formats, seen from their
    content: Mooncake with and without sessions, Dynamo's agentic rows, WEKA (kv-cache-tester) files and folders of
    them, Qwen-Bailian, Azure, BurstGPT, TraceLab, OpenTelemetry gen_ai spans, ShareGPT-like and SWE-agent
    conversations. What a reader assumed is said with every answer.
    """


@trace.command()
@click.argument("file", type=click.Path(path_type=Path))
@FORMAT
@SOURCE_BLOCK
@JSON
def validate(file: Path, format_name: str | None, source_block: int | None, as_json: bool) -> None:
    """Check every rule of a trace.

    The first violation ends it, in one sentence with file, line and field (exit 2).
    """
    import msgspec

    from pddbench.trace.validate import validate_rows

    columns, found = read_any(file, format_name, source_block)
    if found is not None:
        validate_rows(found.rows, file)
    sessions = columns.sessions
    if as_json:
        header = columns.header
        report = {
            "valid": True,
            "format": header.source_format,
            "requests": len(columns),
            "sessions": sessions,
            "assumptions": header.assumptions,
            "counts": header.counts,
        }
        click.echo(msgspec.json.encode(report).decode())
        return
    click.echo(
        f"{file}: valid, {len(columns):,} requests in {sessions_text(sessions)} ({columns.header.source_format})"
    )
    _echo_notes(columns.header.assumptions, columns.header.counts)


@trace.command()
@click.argument("file", type=click.Path(path_type=Path))
@FORMAT
@SOURCE_BLOCK
@click.option("--block-size", type=click.IntRange(1, 65_536), help="Show also what an engine with such blocks can hit.")
@JSON
def stats(file: Path, format_name: str | None, source_block: int | None, block_size: int | None, as_json: bool) -> None:
    """Describe a trace: sizes, span, prefix hits.

    Hits are those of an infinite cache in trace order, on both bases: `prompt` (only prompts leave KV behind, as when
    recorded prompts are replayed) and `prompt+output` (replies do too). JSON has the former on the top level.
    """
    import msgspec

    from pddbench.trace.blocks import block_hits
    from pddbench.trace.stats import column_stats

    found, _ = read_any(file, format_name, source_block)
    figures = column_stats(found)
    blocks = [block_hits(found, block_size, basis) for basis in ("prompt", "prompt+output")] if block_size else []
    if as_json:
        report = msgspec.to_builtins(figures)
        if blocks:
            report["blocks"] = {"block_size": block_size, "prompt": blocks[0], "prompt_output": blocks[1]}
        click.echo(msgspec.json.encode(report).decode())
        return
    _echo_stats(file, figures)
    if blocks:
        click.echo(f"\nthe same in blocks of {block_size} tokens, never the whole prompt")
        _echo_hits(*blocks)


@trace.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("out", metavar="OUT", type=click.Path(path_type=Path))
@FORMAT
@SOURCE_BLOCK
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
@FORCE
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
    from pddbench.trace.validate import validate_rows

    target = target or ("mooncake" if out.name.endswith(".mooncake.jsonl") else "canonical")
    check_free(out, force, any_suffix=target == "mooncake")
    if target == "canonical":
        check_side(source, out, force)
    if target == "mooncake":
        rows = read(source, format_name, source_block)
        write_mooncake(rows, out, block_tokens)
        header = rows.header
    else:
        columns, found = read_any(source, format_name, source_block)
        if found is not None:
            validate_rows(found.rows, source)
        write(columns, out)
        write_side(found, source, out)
        header = columns.header
    _echo_notes(header.assumptions, header.counts)


for command in (synth, fit, oracle, cache_curve, observe):
    trace.add_command(command)


def _echo_notes(assumptions: list[str], counts: dict[str, int]) -> None:
    if assumptions:
        click.echo("assumed:")
        for text in assumptions:
            click.echo(f"  - {printable(text, 1000)}")
    if counts:
        click.echo("met: " + ", ".join(f"{name} {n:,}" for name, n in counts.items()))


def _echo_stats(file: Path, figures: TraceStats) -> None:
    span = "no recorded starts" if figures.span_s is None else f"{figures.span_s:,.1f} s from first to last start"
    lengths = "" if figures.lengths == "exact" else f", lengths {figures.lengths}"
    click.echo(one_line(f"{file}") + f" ({figures.source_format}{lengths})")
    click.echo(f"{figures.requests:,} requests in {sessions_text(figures.sessions)}, {span}")
    click.echo("kinds: " + ", ".join(f"{printable(kind, 40)} {n:,}" for kind, n in figures.kinds.items()))
    click.echo(f"\n{'tokens':<8}{'total':>15}{'mean':>11}{'P50':>10}{'P90':>10}{'P99':>10}{'max':>10}")
    click.echo(_quantile_line("input", figures.input_tokens, figures.input_quantiles))
    click.echo(_quantile_line("output", figures.output_tokens, figures.output_quantiles))
    click.echo("\nprefix hits of an infinite cache, in trace order")
    _echo_hits(figures, figures.prompt_output)
    click.echo()
    _echo_notes(figures.assumptions, figures.counts)


def _quantile_line(name: str, total: int, q: Quantiles) -> str:
    return f"{name:<8}{total:>15,}{q.mean:>11,.1f}{q.p50:>10,}{q.p90:>10,}{q.p99:>10,}{q.max:>10,}"


def _echo_hits(prompt: TraceStats | HitStats, both: HitStats) -> None:
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
