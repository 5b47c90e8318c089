"""Prometheus pages: the parser, each engine's counters in each version we know of, and the scraper."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddbench.deploy import prometheus, scrape
from pddbench.deploy.counters import served
from tests.engines.fake_engine import FakeEngine, serving

VLLM_BY_SOURCE = """
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_compute"} 1000
vllm:prompt_tokens_by_source_total{engine="1",model_name="m",source="local_compute"} 500
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="local_cache_hit"} 300
vllm:prompt_tokens_by_source_total{engine="0",model_name="m",source="external_kv_transfer"} 200
vllm:prompt_tokens_by_source_created{engine="0",model_name="m",source="local_compute"} 1.7e9
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 2400
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 900
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""
VLLM_PREFIX = """
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 2000.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 500.0
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 3.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 1.5
"""
VLLM_GPU_PREFIX = """
vllm:gpu_prefix_cache_queries_total{model_name="m"} 125
vllm:gpu_prefix_cache_hits_total{model_name="m"} 25
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
"""
SGLANG_OLD = """
sglang:prompt_tokens_total{model_name="m"} 8.0e+03
sglang:cached_tokens_total{model_name="m"} 2.0e+03
sglang:cache_hit_rate{model_name="m"} 0.0075
"""
SGLANG_TIERS = """
sglang:prompt_tokens_total{model_name="m"} 1000
sglang:cached_tokens_total{cache_source="device",model_name="m"} 400
sglang:cached_tokens_total{cache_source="host",model_name="m"} 100
"""
SGLANG_TOTAL = SGLANG_TIERS + 'sglang:cached_tokens_total{cache_source="total",model_name="m"} 500\n'
LLAMACPP = "llamacpp:prompt_tokens_total 600\nllamacpp:prompt_tokens_cached_total 400\n"
LLAMACPP_OLD = "llamacpp:prompt_tokens_total 600\nllamacpp:requests_processing 1\n"
DYNAMO = """
dynamo_frontend_input_sequence_tokens_sum{model="m"} 4000
dynamo_frontend_input_sequence_tokens_count{model="m"} 4
dynamo_frontend_cached_tokens_sum{model="m"} 1000
dynamo_component_router_kv_hit_rate_sum 2.5
"""
ROUTER = 'smg_router_requests_total{router_type="http",endpoint="chat"} 14\n'


@pytest.mark.parametrize(
    ("page", "engine", "hits", "asked", "tokens"),
    [
        (VLLM_BY_SOURCE, "vllm", 300, 2000, True),  # what came by transfer is no hit, preemptions do not count again
        (VLLM_PREFIX, "vllm", 500, 2000, True),
        (VLLM_GPU_PREFIX, "vllm", 25, 125, False),
        (SGLANG_OLD, "sglang", 2000, 8000, True),
        (SGLANG_TIERS, "sglang", 500, 1000, True),
        (SGLANG_TOTAL, "sglang", 500, 1000, True),
        (LLAMACPP, "llamacpp", 400, 1000, True),
        (DYNAMO, "dynamo", 1000, 4000, True),
    ],
)
def test_hits_by_engine_and_version(page, engine, hits, asked, tokens):
    """Names differ by engine and version; a wrong pair gives a plausible hit rate."""
    growth = {prometheus.read_series(name): value for name, value in prometheus.known(page).items()}
    found = served(growth)
    assert (found.engine, found.hits, found.asked, found.tokens) == (engine, hits, asked, tokens)
    assert prometheus.engines(prometheus.known(page)) == [engine]


@pytest.mark.parametrize("page", [LLAMACPP_OLD, ROUTER, "", "<html>hello {} 1</html>"])
def test_no_counters_no_figure(page):
    """A page without hit counters must give no hit rate at all."""
    growth = {prometheus.read_series(name): value for name, value in prometheus.known(page).items()}
    assert served(growth) is None


def test_what_is_kept():
    """Buckets and creation times would be most of the rows; sum and count are what a transfer over a WAN needs."""
    names = "\n".join(prometheus.known(VLLM_BY_SOURCE + VLLM_PREFIX + "python_gc_objects_total 5\n"))
    assert "_bucket" not in names and "_created" not in names and "python" not in names
    assert "vllm:time_to_first_token_seconds_sum" in names


def test_hostile_lines():
    """A page is text from a stranger: escapes, terminal codes, non-numbers and endless lines."""
    page = (
        'vllm:a{x="q\\"uo\\\\te}",y="\x1b[31mred"} 1 1700000000\nvllm:b NaN\nvllm:c +Inf\nvllm:d 1e3 # {id="7"} 2\n'
        f'vllm:e{{x="{"y" * 9000}"}} 1\nvllm:f{{x="1" 2\nvllm:g\nvllm:h 0x10\n'
    )
    found = prometheus.known(page)
    assert sorted(found.values()) == [1.0, 1000.0]
    series = prometheus.read_series(next(iter(found)))
    assert dict(series.labels) == {"x": 'q"uo\\te}', "y": "red"}
    many = "".join(f'vllm:n{{i="{i}"}} 1\n' for i in range(prometheus.MAX_SERIES + 100))
    assert len(prometheus.known(many)) == prometheus.MAX_SERIES


@given(st.text(max_size=300))
def test_any_page_is_read(text):
    """Nothing that a server sends as its page may end a run."""
    prometheus.known(text)
    prometheus.known(f'vllm:x{{a="{text}"}} 1\n')


@given(st.dictionaries(st.sampled_from("abc"), st.text(max_size=20), max_size=3))
def test_saved_series_come_back(labels):
    """What is saved as text must be read back as the same series, or counters of two labels add up wrongly."""
    clean = {key: prometheus.printable(value) for key, value in labels.items()}
    series = prometheus.Series("vllm:x", tuple(sorted(clean.items())))
    assert prometheus.read_series(str(series)) == series


def test_before_during_after():
    """Pages before, during and after; a value is a row when it changed."""
    with serving(FakeEngine(page=lambda _: f"vllm:x {len(engine.paths)}\nvllm:y 7\n")) as engine:
        with scrape.Scraper(f"{engine.url}/metrics", interval_s=0.05) as scraper:
            while len(scraper.pages) < 3:
                pass
        rows = scrape.rows(scraper.pages, "a", 1, scraper.pages[0].t_ns)
    assert scraper.facts["engines"] == ["vllm"] and scraper.facts["failed"] == 0
    x = [row for row in rows if row["metric"] == "vllm:x"]
    assert [row["value"] for row in x] == list(range(1, len(scraper.pages) + 1))
    assert len([row for row in rows if row["metric"] == "vllm:y"]) == 1
    assert x[0]["t_ns"] == 0 and {row["process"] for row in rows} == {"endpoint"}


@pytest.mark.parametrize(
    ("page", "why"),
    [(404, "HTTP 404"), (401, "HTTP 401"), (302, "HTTP 302"), ("up 1\n", "no series of a known engine on the page"),
     ("vllm:x 1\n" * 600_000, "the page is larger than 4 MiB")],
)  # fmt: skip
def test_absent_metrics_are_said(page, why):
    """No metrics is fine, and said once: no further request disturbs a server that has none."""
    with serving(FakeEngine(page=page)) as engine:
        with scrape.Scraper(f"{engine.url}/metrics", interval_s=0.01) as scraper:
            pass
        assert len(engine.paths) == 1
    assert scraper.facts["absent"] == why and not scraper.pages


def test_nobody_there():
    """A metrics port that nobody listens on must not end the run."""
    with scrape.Scraper("http://127.0.0.1:1/metrics") as scraper:
        pass
    assert "refused" in scraper.facts["absent"]


@pytest.mark.parametrize(
    ("given_url", "want"),
    [
        (None, "http://u:p@h:1/metrics"),
        ("https://other:9/m?x=1", "https://other:9/m?x=1"),
        ("off", None),
    ],
)
def test_where_metrics_are(given_url, want):
    """Beside /v1 unless told: gateways have them elsewhere."""
    assert scrape.metrics_url(given_url, "http://u:p@h:1/v1/completions?key=2") == want


def test_a_prefix_before_v1_is_kept():
    """A server behind a path has its metrics there too."""
    assert scrape.metrics_url(None, "https://h/llm/v1/chat/completions") == "https://h/llm/metrics"
