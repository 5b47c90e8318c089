"""Which of an engine's counters say how much of its prompts came from the prefix cache, by engine and version."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from pddbench.deploy.prometheus import Series

MAX_BLOCK_TOKENS = 1 << 20
Growth = Mapping[Series, float]
"""How much each counter grew over a run."""


class Served(msgspec.Struct, frozen=True):
    """Prompt tokens an engine says it took from its cache, of those it was asked for. `tokens` is False when the
    counters may be in blocks: then only their share means anything."""  # fmt: skip

    engine: str
    source: str
    hits: float
    asked: float
    tokens: bool = True

    @property
    def share(self) -> float:
        """Hits as a share of what was asked for; NaN for nothing."""
        return self.hits / self.asked if self.asked > 0 else float("nan")


def total(growth: Mapping[Series, float], name: str, **labels: str) -> float | None:
    """Sum over the series of `name` that have these labels; None when there is none."""
    found = [
        value for series, value in growth.items() if series.name == name and set(labels.items()) <= set(series.labels)
    ]
    return sum(found) if found else None


def served(growth: Growth) -> Served | None:
    """The best such counters of a page; None when it has none."""
    return next((found for source in _SOURCES if (found := source(growth)) is not None), None)


_BLOCKS = (
    ("vllm:cache_config_info", "block_size"),
    ("sglang:cache_config_info", "page_size"),
    ("dynamo_frontend_model_kv_cache_block_size", None),
)
"""Where an engine says its prefix-cache block in tokens: a label, or the value."""


def block_tokens(page: Mapping[Series, float]) -> int | None:
    """Block of an engine's prefix cache as its /metrics page says; None when it does not, or its models differ."""
    found = set()
    for series, value in page.items():
        for name, label in _BLOCKS:
            if series.name == name:
                said = str(value) if label is None else dict(series.labels).get(label, "")
                found.add(said.removesuffix(".0"))
    [only] = found if len(found) == 1 else [""]
    return int(only) if only.isascii() and only.isdigit() and 0 < int(only) <= MAX_BLOCK_TOKENS else None


def _pair(engine: str, hits: str, asked: str, tokens: bool = True) -> Callable[[Growth], Served | None]:
    """A source of two plain counters."""

    def read(growth: Growth) -> Served | None:
        hit, of = total(growth, hits), total(growth, asked)
        return None if hit is None or of is None else Served(engine, hits, hit, of, tokens)

    return read


def _vllm_by_source(growth: Growth) -> Served | None:
    """Newer vLLM: counted once a request. KV from elsewhere (a prefill instance, an offload tier) is no hit."""
    name = "vllm:prompt_tokens_by_source_total"
    asked = total(growth, name)
    if asked is None:
        return None
    return Served("vllm", name, total(growth, name, source="local_cache_hit") or 0.0, asked)


def _sglang(growth: Growth) -> Served | None:
    """SGLang; newer versions split the counter by tier (device, host, storage…), some with the total beside them."""
    name = "sglang:cached_tokens_total"
    asked = total(growth, "sglang:prompt_tokens_total")
    whole = total(growth, name, cache_source="total")
    hits = total(growth, name) if whole is None else whole
    if asked is None or hits is None:
        return None
    return Served("sglang", name, hits, asked)


def _llamacpp(growth: Growth) -> Served | None:
    """llama.cpp of 2026: its prompt counter leaves cached tokens out. Older servers have no counter of hits."""
    name = "llamacpp:prompt_tokens_cached_total"
    hits, computed = total(growth, name), total(growth, "llamacpp:prompt_tokens_total")
    return None if hits is None or computed is None else Served("llamacpp", name, hits, hits + computed)


_SOURCES: tuple[Callable[[Growth], Served | None], ...] = (
    _vllm_by_source,
    # counts preemptions and connector deferrals again
    _pair("vllm", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
    # the first V1 engines, in blocks, later in tokens under the same name
    _pair("vllm", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_queries_total", tokens=False),
    _sglang,
    _llamacpp,
    _pair("dynamo", "dynamo_frontend_cached_tokens_sum", "dynamo_frontend_input_sequence_tokens_sum"),
)
