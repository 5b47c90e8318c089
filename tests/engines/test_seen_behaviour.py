"""What broke on a real engine, with our own fake of it."""

import pytest

from pddbench.runfolder.load import load
from tests.analyze.synth import Recipe, make_run
from tests.engines.engine_kit import findings, replay
from tests.engines.fake_engine import FakeEngine, serving
from tests.run.run_kit import small_rows, write_trace


@pytest.fixture
def one_session(tmp_path):
    """Six requests in a row."""
    return write_trace(tmp_path / "one.trace.jsonl", small_rows(1, turns=6, gap_s=0.0, tokens=40, output=3))


def test_llamacpp_gets_fresh_connections(one_session, tmp_path):
    """llama.cpp drops a connection used again right after a stream (5 of 300): its profile must not use one again."""
    with serving(FakeEngine(drop_reused=True)) as engine:
        folder = replay(one_session, engine.url, tmp_path / "b")
    assert (load(folder).requests["outcome"] == "ok").all()
    assert engine.served == 7  # with the preflight


def test_a_dropped_connection_is_a_failure(one_session, tmp_path):
    """Without a profile that knows the server, the drop is counted: never a silent retry."""
    with serving(FakeEngine(drop_reused=True)) as engine:
        folder = replay(one_session, engine.url, tmp_path / "a", profile="sglang")
    outcomes = load(folder).requests["outcome"].tolist()
    assert outcomes[0] == "ok" and "connection" in outcomes


def test_usage_beside_an_empty_choice(one_session, tmp_path):
    """llama.cpp's last chunk has usage, a finish reason and an empty text: it counts, and is no token."""
    with serving(FakeEngine(cached=0)) as engine:
        rows = load(replay(one_session, engine.url, tmp_path / "a")).requests
    assert (rows["completion_tokens"] == 3).all() and (rows["chunks"] == 3).all()
    assert (rows["cached_tokens"] == 0).all()


def _shared_head(arm, repeat, requests, *_):
    requests["cached_tokens"][5] = requests["cached_tokens_ceiling"][5] + 64 + 5


@pytest.mark.parametrize(("overhead", "rules"), [(16, set()), (0, {"hits"})])
def test_the_head_of_a_template_is_no_warm_cache(tmp_path, overhead, rules):
    """Prompts are shortened by their template, so no row shows it: what stands before the prompt voided every run."""

    def preflight(manifest):
        for facts in manifest["arms"].values():
            facts["preflight"] = {"overhead_tokens": overhead}

    from pddbench.analyze.summary import summarise

    run = load(make_run(tmp_path, Recipe(arms=("pdd",), edit=_shared_head, manifest=preflight)))
    assert {f["rule"] for f in summarise(run)["findings"] if f["level"] == "invalid"} == rules


VLLM = """# HELP vllm:prompt_tokens_by_source Number of prompt tokens by source.
# TYPE vllm:prompt_tokens_by_source counter
vllm:prompt_tokens_by_source_total{{engine="0",source="local_compute"}} {computed}
vllm:prompt_tokens_by_source_total{{engine="0",source="local_cache_hit"}} {hits}
"""


def test_counters_stand_in_for_cached_tokens(one_session, tmp_path):
    """A server that reports hits only in its counters: shown as its counters' figure, nothing invented."""
    with serving(FakeEngine(page=lambda served: VLLM.format(computed=100 * served, hits=25 * served))) as engine:
        folder = replay(one_session, engine.url, tmp_path / "a", profile="vllm")
    from pddbench.analyze.summary import summarise

    figures = summarise(load(folder))["arms"]["endpoint"]["figures"]
    assert figures["hit_served_counters.token_weighted"]["point"] == pytest.approx(0.2)
    assert figures["hit_served.token_weighted"]["point"] is None
    assert "hits_unreported" in findings(folder) and "hits_counters" not in findings(folder)


def test_counters_that_disagree(one_session, tmp_path):
    """Replies that always report 0 (seen behind disaggregated routers) against a server that counts hits: flagged."""
    with serving(FakeEngine(cached=0, page=lambda n: VLLM.format(computed=100 * n, hits=25 * n))) as engine:
        folder = replay(one_session, engine.url, tmp_path / "a", profile="vllm")
    assert "hits_counters" in findings(folder)
    with serving(FakeEngine(cached=25, page=lambda n: VLLM.format(computed=100 * n, hits=25 * n))) as engine:
        agreed = replay(one_session, engine.url, tmp_path / "b", profile="vllm", expect=98)
    assert "hits_counters" not in findings(agreed)


def test_a_credential_never_goes_to_metrics(one_session, tmp_path, monkeypatch):
    """A metrics port is often another server's: the key for the model must not reach it."""
    monkeypatch.setenv("SOME_KEY", "s3cret")
    with serving(FakeEngine(page="vllm:x 1\n")) as engine:
        options = ("--api-key-env", "SOME_KEY", "--header", "X-Team=s3cret")
        replay(one_session, engine.url, tmp_path / "a", *options, profile="vllm")
    seen = [headers for path, headers in engine.paths if path == "/metrics"]
    assert len(seen) == 3 and "s3cret" not in str(seen)  # the preflight asks too


def test_a_model_that_ends_at_once_is_asked_again(one_session, tmp_path):
    """Without a pinned length a model may end before its first token: no reason to refuse an endpoint that works."""
    with serving(FakeEngine(silent=(2, "stop"))) as engine:
        folder = replay(one_session, engine.url, tmp_path / "a", "--output", "natural", profile="openai")
    assert engine.served == 3 + 6 and (load(folder).requests["outcome"] == "ok").all()


def test_tokens_without_text_end_the_preflight(one_session, tmp_path):
    """Dynamo's mocker says ids that a small vocabulary has no text for: streams without any token to time."""
    with serving(FakeEngine(silent=(99, "length"))) as engine:
        said = replay(one_session, engine.url, tmp_path / "a", expect=1)
    assert "brought a stream without any token" in said and engine.served == 1


def test_transformers_takes_no_ids(one_session, tmp_path):
    """`transformers serve` answers 400 to a prompt of ids: refused before traffic, with what to do."""
    with serving(FakeEngine()) as engine:
        said = replay(one_session, engine.url, tmp_path / "a", "--output", "natural", profile="transformers", expect=2)
    assert "takes no token ids" in said and engine.served == 0


def test_counters_can_be_checked(one_session, tmp_path):
    """An endpoint that reports hits in its counters only can be gated on them, and one without them is never a pass."""
    from pddbench.analyze.check import evaluate, parse_check
    from pddbench.analyze.dataset import Dataset
    from pddbench.errors import InputError

    def results(folder, *texts):
        checks = [parse_check(f"endpoint.hit_served_counters.token_weighted {text}", ["endpoint"]) for text in texts]
        return [result.status for result in evaluate(checks, Dataset(load(folder)))]

    with serving(FakeEngine(page=lambda served: VLLM.format(computed=100 * served, hits=25 * served))) as engine:
        counted = replay(one_session, engine.url, tmp_path / "a", profile="vllm")
    assert results(counted, "> 19 %", "> 21 %") == ["pass", "breach"]
    with serving(FakeEngine()) as engine:
        silent = replay(one_session, engine.url, tmp_path / "b", profile="vllm")
    assert results(silent, "> 0 %") == ["withheld"]
    with pytest.raises(InputError, match="compare it with a value"):
        parse_check("a.hit_served_counters.token_weighted > a.hit_served.token_weighted", ["a"])


@pytest.mark.parametrize(
    ("counts", "why", "link", "rules"),
    [
        ({"replies": 9, "differing": 0}, "", {"ok": True, "problems": []}, []),
        ({"replies": 9, "differing": 1}, "", {"ok": True, "problems": []}, [("exact", "invalid")]),
        ({"replies": 9, "differing": 1}, "of a reason", {"ok": True, "problems": []}, [("exact", "warning")]),
        ({"replies": 9, "differing": 0, "not_kept": 3}, "", {"ok": True}, [("exact", "warning")]),
        ({}, "", {"ok": True, "problems": []}, [("exact", "warning")]),
        ({"replies": 9}, "", {"ok": False, "problems": ["RTT 99"]}, [("link", "invalid")]),
        ({"replies": 9}, "", None, [("link", "invalid")]),
    ],
)
def test_real_servers_must_be_exact_over_a_measured_link(tmp_path, counts, why, link, rules):
    """Other tokens than one server gives, or a link nobody measured, make a plausible table of something else."""
    from pddbench.analyze.summary import summarise

    def edit(arm, repeat, requests, events, server, health):
        for metric, value in counts.items():
            row = {"arm": arm, "repeat": repeat, "t_ns": 1, "process": "exactness", "metric": metric, "value": value}
            for name, column in server.items():
                column.append(row[name])

    def manifest(facts):
        facts["wan"]["backend"] = "tun"
        facts["arms"]["pdd"] |= {"engine": "llamacpp", "deployment": "pdd", "emulated": None,
                                 "started": {"why_inexact": why}}  # fmt: skip
        facts["runs"] = [{"arm": "pdd", "repeat": 0} | ({"link": link} if link else {})]

    recipe = Recipe(arms=("pdd",), sessions=20, repeats=1, edit=edit, manifest=manifest)
    found = summarise(load(make_run(tmp_path, recipe)))["findings"]
    assert [(f["rule"], f["level"]) for f in found if f["rule"] in ("exact", "link")] == rules


@pytest.mark.parametrize(("given_options", "block"), [((), 128), (("--block-tokens", 16), 16)])
def test_the_block_is_what_the_server_says(one_session, tmp_path, given_options, block):
    """vLLM on CPU has blocks of 128 tokens, its profile said 16: planned hits were not what it could serve."""
    page = 'vllm:cache_config_info{block_size="128",engine="0"} 1.0\n'
    with serving(FakeEngine(cached=0, page=page)) as engine:
        folder = replay(one_session, engine.url, tmp_path / "a", *given_options, profile="vllm")
    run = load(folder)
    assert run.manifest["arms"]["endpoint"]["block_tokens"] == block
    assert (run.requests["cached_tokens_planned"] % block == 0).all()
    assert ("block_tokens" in findings(folder)) == (block == 16)


@pytest.mark.parametrize(
    ("page", "block"),
    [
        ('sglang:cache_config_info{page_size="64"} 1', 64),
        ('dynamo_frontend_model_kv_cache_block_size{model="a"} 16\n', 16),
        ('vllm:cache_config_info{block_size="16"} 1\nvllm:cache_config_info{block_size="32"} 1', None),
        ('vllm:cache_config_info{block_size="9999999999"} 1', None),
        ('vllm:cache_config_info{block_size="-1"} 1', None),
        ('vllm:cache_config_info{block_size="\u0663"} 1', None),
        ("dynamo_frontend_model_kv_cache_block_size 0.5", None),
        ("", None),
    ],
)
def test_blocks_on_a_page(page, block):
    """A page is not trusted: what is no sensible size says nothing."""
    from pddbench.deploy import prometheus
    from pddbench.deploy.counters import block_tokens

    assert block_tokens(dict(prometheus.parse(page))) == block
