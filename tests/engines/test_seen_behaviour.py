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
    assert len(seen) == 2 and "s3cret" not in str(seen)
