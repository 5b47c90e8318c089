"""`pddbench trace synth | fit | oracle | cache-curve`: make traces to a plan, and check what they hit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pddbench.cli.trace_files import FORCE, FORMAT, JSON, check_free, read, read_any, sessions_text

if TYPE_CHECKING:
    from pddbench.trace.cachecurve import CacheCurves, Curve
    from pddbench.trace.quota.spec import QuotaSpec

_PLAN_OPTIONS = (
    click.option("--edges", metavar="0,…,1", help="Edges of the buckets, as shares of the input that hit."),
    click.option("--shares", metavar="S,…", help="Share of all requests in each bucket; they sum to 1."),
    click.option("--mean-hit", type=float, help="Mean hit of all requests (basis `prompt`)."),
    click.option("--mean-input", type=float, help="Mean prompt in tokens."),
    click.option("--mean-output", type=float, help="Mean reply in tokens."),
    click.option("--singular", type=float, help="Share of singular requests: very long, short reply, hardly any hit."),
    click.option("--session-rate", type=float, help="Session starts a second."),
    click.option("--block-tokens", type=int, help="Prompts and hits are multiples of this."),
)


def _plan_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_PLAN_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option("--preset", metavar="NAME", help="Which trace to make; a wrong name lists them.")
@click.option("--spec", "spec_file", type=click.Path(path_type=Path), help="A specification as TOML, instead.")
@click.option("--requests", type=click.IntRange(1, 100_000_000), help="How many requests.  [default: 10000]")
@click.option("--sessions", type=click.IntRange(1, 10_000_000), help="How many conversations, instead of their length.")
@click.option("--hit", type=float, help="With fixed-64k-h90: another hit than 0.9.")
@_plan_options
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed makes the same trace.")
@click.option("--out", type=click.Path(path_type=Path), help="The file to write.")
@click.option("--print-spec", is_flag=True, help="Print the specification as TOML and make nothing.")
@FORCE
def synth(
    preset: str | None,
    spec_file: Path | None,
    requests: int | None,
    sessions: int | None,
    hit: float | None,
    seed: int,
    out: Path | None,
    print_spec: bool,
    force: bool,
    **plan: Any,
) -> None:
    """Make a synthetic trace from a seed, its prefix hits planned to the request.

    The plan is a preset (or a TOML file) and what the options change of it. Counts in the buckets are exact (largest
    remainder), the mean hit within 0.001, the mean input within 2%; a plan that cannot be met is refused with the bound
    that breaks. `pddbench trace oracle FILE` recounts the hits independently.
    """
    from pddbench.errors import InputError
    from pddbench.trace.quota.spec import dump_spec

    if (preset is None) == (spec_file is None):
        raise InputError("give either --preset NAME or --spec FILE")
    if out is None and not print_spec:
        raise InputError("--out FILE is missing: where the trace is to be written")
    if out is not None and not print_spec:
        check_free(out, force)
    changed = {name: value for name, value in plan.items() if value is not None}
    if preset in ("agentic-small", "hit-sweep"):
        _refuse(preset, {"hit": hit, "print-spec": print_spec or None, **changed})
        assert out is not None
        (_agentic_small if preset == "agentic-small" else _sweep)(requests, sessions, seed, out)
        return
    n = requests or 10_000
    spec = _planned(_base(preset, spec_file, n, hit), n, sessions, changed)
    if print_spec:
        click.echo(dump_spec(spec), nl=False)
        return
    from pddbench.trace.quota.generate import generate_rows, header

    assert out is not None
    _write(header(spec, n, seed), generate_rows(spec, n, seed), out)


def _refuse(preset: str, given: dict[str, Any]) -> None:
    from pddbench.errors import InputError

    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name.replace('_', '-')} does not go with --preset {preset}")


def _agentic_small(requests: int | None, sessions: int | None, seed: int, out: Path) -> None:
    from pddbench.trace.synth import agentic_small

    _refuse("agentic-small", {"requests": requests})
    made = agentic_small(sessions or 130, seed)
    _write(made.header, made.rows, out)


def _sweep(requests: int | None, sessions: int | None, seed: int, out: Path) -> None:
    from pddbench.trace.quota.sweep import sweep_header, sweep_rows

    _refuse("hit-sweep", {"sessions": sessions})
    n = requests or 10_000
    _write(sweep_header(n, seed), sweep_rows(n, seed), out)


def _base(preset: str | None, spec_file: Path | None, requests: int, hit: float | None) -> QuotaSpec:
    from pddbench.errors import InputError, suggest
    from pddbench.trace.quota import presets
    from pddbench.trace.quota.spec import load_spec

    if hit is not None and preset != "fixed-64k-h90":
        raise InputError("--hit goes with --preset fixed-64k-h90 only; elsewhere --mean-hit is the mean")
    if spec_file is not None:
        return load_spec(spec_file)
    known = ["agentic-small", *presets.NAMES]
    if preset not in known:
        raise InputError(f"--preset {preset!r} is not known: {suggest(str(preset), known)}")
    return presets.fixed(requests, hit) if hit is not None else presets.preset(preset, requests)


def _planned(spec: QuotaSpec, requests: int, sessions: int | None, changed: dict[str, Any]) -> QuotaSpec:
    """The specification with what the options change."""
    import msgspec

    from pddbench.trace.quota.generate import with_sessions
    from pddbench.trace.quota.spec import check_spec

    replace = msgspec.structs.replace
    for name, value in changed.items():
        if name in ("edges", "shares"):
            spec = replace(spec, **{name: _numbers(name, value)})
        elif name in ("mean_input", "mean_output"):
            part = name.removeprefix("mean_")
            spec = replace(spec, **{part: replace(getattr(spec, part), mean=value)})
        elif name == "singular":
            spec = replace(spec, singular=replace(spec.singular, share=value))
        elif name == "session_rate":
            spec = replace(spec, arrival=replace(spec.arrival, session_rate=value))
        else:
            spec = replace(spec, **{name: value})
    check_spec(spec)
    return with_sessions(spec, requests, sessions) if sessions is not None else spec


def _numbers(name: str, text: str) -> tuple[float, ...]:
    from pddbench.errors import InputError

    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{name} {text!r} is not a list of numbers with commas between them") from None


def _write(header: Any, rows: Any, out: Path) -> None:
    from pddbench.trace.quota.write import write_rows

    sessions: set[str] = set()

    def counted() -> Any:
        for row in rows:
            sessions.add(row.session_id)
            yield row

    n = write_rows(header, counted(), out)
    click.echo(f"{out}: written, {n:,} requests in {sessions_text(len(sessions))}, {out.stat().st_size:,} bytes")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@FORMAT
@click.option("--edges", metavar="0,…,1", help="Edges of the buckets; default: the seven of `trace stats`.")
def fit(file: Path, format_name: str | None, edges: str | None) -> None:
    """Print the specification (TOML) that would make a trace like FILE.

    Shares and means are those of the trace, laws its quantiles; `trace synth --spec` makes the trace.
    """
    from pddbench.trace.quota.fit import fit as fitted
    from pddbench.trace.quota.spec import DEFAULT_EDGES, dump_spec

    found = fitted(read(file, format_name), _numbers("edges", edges) if edges else DEFAULT_EDGES)
    click.echo(dump_spec(found), nl=False)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@FORMAT
@click.option("--block-size", type=click.IntRange(1, 65_536), default=16, show_default=True, help="Tokens a block.")
@click.option("--edges", metavar="0,…,1", help="Edges of the buckets; default: the plan's, else the seven.")
@JSON
def oracle(file: Path, format_name: str | None, block_size: int, edges: str | None, as_json: bool) -> None:
    """Recount the prefix hits of FILE from token ids, independently of everything else here.

    Prompts are written out as tokens, cut into blocks and compared block by block (infinite cache, basis `prompt`,
    trace order).
    """
    import msgspec

    from pddbench.trace.oracle import bucket_counts, recount_hits
    from pddbench.trace.quota.spec import DEFAULT_EDGES

    found, _ = read_any(file, format_name)
    planned = found.header.extra.get("spec", {}).get("edges", DEFAULT_EDGES)
    bounds = _numbers("edges", edges) if edges else tuple(planned)
    hits = recount_hits(found, block_size).tolist()
    inputs = found.input_tokens.tolist()
    mean = sum(hit / max(n, 1) for hit, n in zip(hits, inputs, strict=True)) / len(inputs)
    counts = bucket_counts(hits, inputs, bounds)
    result = {"requests": len(inputs), "block_size": block_size, "edges": bounds, "counts": counts, "mean_hit": mean}
    if as_json:
        click.echo(msgspec.json.encode(result).decode())
        return
    click.echo(f"{file}: {len(inputs):,} requests, blocks of {block_size} tokens, mean hit {mean:.4%}")
    for low, high, count in zip(bounds, bounds[1:], counts, strict=False):
        click.echo(f"  hit from {low:.2%} to {high:.2%}: {count:,}")


@click.command("cache-curve")
@click.argument("file", type=click.Path(path_type=Path))
@FORMAT
@click.option(
    "--basis",
    type=click.Choice(["prompt", "prompt+output"]),
    default="prompt",
    show_default=True,
    help="What is cached.",
)
@click.option("--kv-bytes", type=click.FloatRange(1), help="KV bytes a token: show capacities in GB too.")
@JSON
def cache_curve(file: Path, format_name: str | None, basis: Any, kv_bytes: float | None, as_json: bool) -> None:
    """Hit rate of FILE against cache size (LRU) and against time to live.

    One pass gives all sizes. Tokens are counted singly: an engine's blocks round hits down. Replayed at another rate
    or with other gaps, the times to live change.
    """
    import msgspec

    from pddbench.trace.cachecurve import cache_curves

    curves = cache_curves(read(file, format_name).rows, basis=basis)
    if as_json:
        click.echo(msgspec.json.encode(curves).decode())
    else:
        _echo_curves(file, curves, kv_bytes)


def _echo_curves(file: Path, curves: CacheCurves, kv_bytes: float | None) -> None:
    click.echo(f"{file}: {curves.requests:,} requests in order of {curves.order}, cached: {curves.basis}")
    click.echo(f"{curves.distinct_tokens:,} distinct tokens: a cache of this size forgets nothing\n")
    _echo_curve("LRU capacity (tokens)", curves.capacity, kv_bytes)
    if curves.time_to_live is None:
        click.echo("\nno curve of times to live: some requests have no recorded start")
    else:
        click.echo()
        _echo_curve("time to live (s)", curves.time_to_live, None)


def _echo_curve(name: str, curve: Curve, kv_bytes: float | None) -> None:
    click.echo(f"{name:>22}{'GB' if kv_bytes else '':>10}{'token-weighted hit':>20}{'mean hit':>12}")
    for at, weighted, mean in zip(curve.at, curve.token_weighted_hit, curve.mean_hit, strict=True):
        size = f"{at * kv_bytes / 1e9:,.1f}" if kv_bytes else ""
        click.echo(f"{at:>22,.0f}{size:>10}{weighted:>20.2%}{mean:>12.2%}")


@click.command()
@click.argument("folders", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Change nothing; exit 99 where a figure is not as recorded.")
def observe(folders: tuple[Path, ...], check: bool) -> int:
    """Make the trace of each catalogue FOLDER and write what it is like into observed.json.

    A folder holds a workload.toml (preset, requests, seed). With --check the recorded figures are compared: counts
    exactly, other figures within 2%.
    """
    from pddbench import exitcodes
    from pddbench.workload import catalogue

    wrong = False
    for folder in folders:
        entry = catalogue.load_entry(folder)
        figures = catalogue.observed(entry, catalogue.make_trace(entry))
        if not check:
            catalogue.write_observed(folder, figures)
            click.echo(f"{folder / catalogue.OBSERVED}: written")
            continue
        lines = catalogue.differences(catalogue.read_observed(folder), _plain(figures))
        wrong |= bool(lines)
        click.echo(f"{folder}: {'as recorded' if not lines else 'not as recorded'}")
        for line in lines:
            click.echo(f"  {line}")
    return exitcodes.THRESHOLD if wrong else exitcodes.GOOD


def _plain(figures: dict[str, Any]) -> Any:
    """As it is after writing and reading (tuples are lists)."""
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(figures))
