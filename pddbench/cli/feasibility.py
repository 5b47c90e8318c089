"""`pddbench feasibility`: KV rate against a line."""

from __future__ import annotations

from pathlib import Path

import click

from pddbench.cli.common import options


@click.command()
@options(
    click.option("--model", help="KV bytes of a token by model name (deepseek-v3-fp8, qwen3-32b, …)."),
    click.option("--kv-bytes", type=float, metavar="N", help="KV bytes of a token, instead of --model."),
    click.option("--input", "input_tokens", type=click.IntRange(1), metavar="N", help="Tokens of a prompt."),
    click.option("--hit", type=float, default=0.0, show_default=True, help="Token-weighted hit, 0 to 1."),
    click.option("--trace", type=click.Path(path_type=Path), metavar="FILE", help="Prompts and hits from a trace."),
    click.option("--rate", "requests_s", type=float, metavar="R", help="Requests a second."),
    click.option("--burst", type=click.IntRange(1), metavar="N", help="N requests that begin together."),
    click.option("--within", "within_s", type=float, default=1.0, show_default=True, help="Seconds for the burst."),
    click.option("--line-gbit", type=float, default=10.0, show_default=True, help="The line, Gbit/s."),
    click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON."),
)
def feasibility(
    model: str | None,
    kv_bytes: float | None,
    input_tokens: int | None,
    hit: float,
    trace: Path | None,
    requests_s: float | None,
    burst: int | None,
    within_s: float,
    line_gbit: float,
    as_json: bool,
) -> int:
    """Compare the KV of prompts with a line: does it fit, how many requests would, which hit would it take?

    Arithmetic alone: no queue, no protocol, no loss. A line that fails here fails; one that passes may be slow still.
    """
    from pddbench.report.feasibility import Question, answer

    return answer(
        Question(
            model=model,
            kv_token_bytes=kv_bytes,
            input_tokens=input_tokens,
            hit=hit,
            trace=trace,
            requests_s=requests_s,
            burst=burst,
            within_s=within_s,
            line_bit_s=line_gbit * 1e9,
        ),
        as_json=as_json,
    )
