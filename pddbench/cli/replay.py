"""`pddbench replay`: a trace against one live endpoint, in the spellings of `vllm bench serve` where they exist."""

from __future__ import annotations

import math
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from pddbench.cli.common import json_object, key_value, options, run_options, workload_options
from pddbench.errors import InputError, suggest
from pddbench.workload import experiment as ex

_GOODPUT = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2e_ms", "e2e": "e2e_ms", "max_gap": "max_gap_ms"}

_endpoint_options = options(
    click.option("--trace", required=True, help="Trace file (canonical, Mooncake, WEKA; detected) or folder."),
    click.option("--format", "trace_format", help="Force the trace's format instead of detecting it."),
    click.option("--base-url", required=True, help="http://HOST:PORT, with or without /v1."),
    click.option("--model", required=True, help="Model name the endpoint serves."),
    click.option("--endpoint", help="/v1/completions (token ids) or /v1/chat/completions (text)."),
    click.option("--target-profile", default="openai", show_default=True, help="Kind of server: vllm, sglang, …"),
    click.option("--prompt", type=click.Choice(["token_ids", "text"]), help="Prompt form [by endpoint]."),
    click.option("--token-id-range", default="1000:30000", show_default=True, help="LOW:HIGH ids, special ones out."),
    click.option("--tokenizer", type=click.Path(), help="tokenizer.json: text prompts exact to the token."),
    click.option("--block-tokens", type=click.IntRange(1), help="Block size of the endpoint's prefix cache."),
    click.option("--api-key-env", metavar="NAME", help="Environment variable that holds the API key."),
    click.option("--header", multiple=True, metavar="K=V", help="Extra request header (value never saved)."),
    click.option("--extra-body", metavar="JSON", help="Extra body fields, a JSON object."),
    click.option("--metrics-url", help="The endpoint's counters [/metrics beside /v1]; off: none."),
    click.option("--ignore-eos", is_flag=True, help="Send ignore_eos, whatever the profile."),
)
_load_options = options(
    click.option("--name", default="replay", show_default=True, help="Name of the run."),
    click.option("--arrival", type=click.Choice(["trace", "poisson", "gamma", "constant"]), help="Session arrivals."),
    click.option("--session-rate", type=float, help="Sessions a second (poisson unless --arrival is given)."),
    click.option("--request-rate", help="Mean requests a second, or inf: sets the session rate accordingly."),
    click.option("--burstiness", type=float, help="Shape of gamma arrivals: 1 Poisson, below 1 burstier."),
    click.option("--max-concurrency", type=click.IntRange(1), help="Brake: requests in flight at most."),
    click.option("--max-start-rate", type=float, help="Brake: requests started a second at most."),
    click.option("--num-prompts", type=click.IntRange(1), help="Same as --limit-requests."),
    click.option("--num-warmups", type=click.IntRange(0), default=0, show_default=True, help="Warm-up requests."),
    click.option("--output", type=click.Choice(["exact", "natural"]), default="exact", show_default=True,
                 help="Pinned output lengths, or as the model ends."),
    click.option("--stall-timeout", type=float, help="Give a stream up after S seconds without a byte."),
    click.option("--goodput", multiple=True, metavar="METRIC:MS", help="SLO: ttft:MS, tpot:MS, e2el:MS, max_gap:MS."),
)  # fmt: skip


@click.command()
@_endpoint_options
@_load_options
@workload_options
@run_options
def replay(**given: Any) -> int:
    """Replay a trace against one live OpenAI-compatible endpoint and print the table."""
    from pddbench.runner.conduct import RunOptions, conduct
    from pddbench.workload.load import check

    experiment = _experiment(given)
    check(experiment, "command line")
    names = [field.name for field in fields(RunOptions) if field.name in given]
    return conduct(experiment, RunOptions(**{name: given[name] for name in names}))


def _experiment(given: dict[str, Any]) -> ex.Experiment:
    """The flags as an experiment with a single arm."""
    text = given["prompt"] == "text" or (given["prompt"] is None and "chat" in (given["endpoint"] or ""))
    limit = given["limit_requests"] or given["num_prompts"]
    settings = {
        "seed": given["seed"],
        "repeats": given["repeats"],
        "idle_cap_s": given["idle_cap_s"],
        "time_scale": given["time_scale"],
        "timing": given["timing"],
        "duration_s": given["duration_s"],
        "warmup_s": given["warmup_s"],
        "history": given["history"],
        "workers": given["workers"],
        "burstiness": given["burstiness"],
        "max_start_rate": given["max_start_rate"],
        "max_concurrency": given["max_concurrency"],
        "stall_timeout_s": given["stall_timeout"],
    }
    work = ex.Workload(
        trace=given["trace"],
        format=given["trace_format"],
        prompt="text" if text else "token_ids",
        output=given["output"],
        warmups=given["num_warmups"],
        limit_requests=limit,
        **{name: value for name, value in settings.items() if value is not None},
    )
    _set_arrival(work, given)
    extra = json_object(given["extra_body"], "--extra-body")
    arm = ex.Arm(
        name="endpoint",
        base_url=with_scheme(given["base_url"]),
        model=given["model"],
        endpoint=endpoint_path(given["endpoint"]),
        profile=given["target_profile"],
        api_key_env=given["api_key_env"],
        headers=dict(key_value(item, "--header") for item in given["header"]),
        extra_body=({"ignore_eos": True} if given["ignore_eos"] else {}) | extra,
        token_id_range=id_range(given["token_id_range"]),
        block_tokens=given["block_tokens"],
        tokenizer=given["tokenizer"],
        metrics_url=given["metrics_url"],
    )
    return ex.Experiment(name=given["name"], workload=work, arm=[arm], slo=_slo(given["goodput"]))


def _set_arrival(work: ex.Workload, given: dict[str, Any]) -> None:
    """Arrival and session rate from `--arrival`, `--session-rate` and vLLM's `--request-rate`."""
    rate, requests = given["session_rate"], given["request_rate"]
    if rate is not None and requests is not None:
        raise InputError("--session-rate and --request-rate say the same thing: give one of them")
    if requests is not None:
        rate = _sessions_a_second(work, requests)
    default: ex.Arrival = "trace"
    if rate is not None:
        default = "gamma" if given["burstiness"] not in (None, 1.0) else "poisson"
    work.arrival = given["arrival"] or default
    work.session_rate = rate


def _sessions_a_second(work: ex.Workload, requests: str) -> float:
    """The session rate that offers `requests` a second on average; `inf`: everything at once."""
    try:
        rate = float(requests)
    except ValueError:
        raise InputError(f"--request-rate {requests!r} is not a number of requests a second (or inf)") from None
    if math.isnan(rate) or rate <= 0:
        raise InputError(f"--request-rate {requests}: must be above 0")
    if math.isinf(rate):
        return 1e5
    from pddbench.trace.read import read_as_columns

    trace = read_as_columns(Path(work.trace), work.format)
    if work.limit_requests is not None and work.limit_requests < len(trace):
        trace.keep_first(work.limit_requests)
    return rate * trace.sessions / max(1, len(trace))


def with_scheme(url: str) -> str:
    """`http://` before an address that has no scheme."""
    return url if "://" in url else f"http://{url}"


def endpoint_path(endpoint: str | None) -> str | None:
    """`/v1/completions` from any spelling with or without `/v1`."""
    if endpoint is None:
        return None
    return "/v1/" + endpoint.strip("/").removeprefix("v1/")


def id_range(text: str) -> tuple[int, int]:
    """`LOW:HIGH` as two numbers."""
    low, _, high = text.partition(":")
    if not (re.fullmatch(r"[0-9]{1,9}", low) and re.fullmatch(r"[0-9]{1,9}", high)):
        raise InputError(f"--token-id-range {text!r}: give LOW:HIGH, for example 1000:30000")
    return int(low), int(high)


def _slo(goals: tuple[str, ...]) -> ex.Slo:
    """`ttft:500` and so on as objectives in milliseconds; `ttft` counts from sent, as vLLM does."""
    slo = ex.Slo()
    for goal in (part for item in goals for part in item.split()):
        metric, _, value = goal.partition(":")
        if metric not in _GOODPUT:
            raise InputError(f"--goodput {goal!r}: unknown metric {metric!r} ({suggest(metric, list(_GOODPUT))})")
        try:
            setattr(slo, _GOODPUT[metric], float(value))
        except ValueError:
            raise InputError(f"--goodput {goal!r}: give milliseconds, for example ttft:500") from None
    return slo
