"""pddbench through SGLang's own router in front of two llama.cpp servers."""

import pytest

from pddbench.runfolder.load import load
from tests.engines.engine_kit import IDS, findings, llama_server, replay, sglang_router

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def router(models):
    """URLs of a router and of its metrics."""
    with (
        llama_server(models / "ends.gguf") as one,
        llama_server(models / "ends.gguf") as two,
        sglang_router(one, two) as urls,
    ):
        yield urls


def test_text_through_the_router(router, trace, tmp_path):
    """Pinned lengths, usage and cached tokens must survive a router that rewrites bodies and streams."""
    url, metrics = router
    options = ("--endpoint", "/v1/chat/completions", "--metrics-url", metrics)
    folder = replay(trace, url, tmp_path / "run", *options, profile="sglang-router")
    run = load(folder)
    rows = run.requests
    assert (rows["outcome"] == "ok").all()
    assert (rows["prompt_tokens"] == rows["input_tokens_planned"]).all()
    assert (rows["completion_tokens"] == 20).all()
    assert rows["cached_tokens"].notna().all() and rows["cached_tokens"].sum() > 0
    assert findings(folder) <= {"hits_possible"}
    facts = run.manifest["arms"]["endpoint"]["metrics"]
    assert facts["engines"] == ["sglang-router"]
    assert run.server["metric"].str.startswith("smg_router_requests_total{").any()


def test_ids_are_refused(router, trace, tmp_path):
    """The router takes no token ids: its profile says so before traffic, any other learns it in the preflight."""
    url, _ = router
    said = replay(trace, url, tmp_path / "a", *IDS, profile="sglang-router", expect=2)
    assert "takes no token ids" in said
    said = replay(trace, url, tmp_path / "b", *IDS, profile="sglang", expect=1)
    assert "HTTP 422: Failed to deserialize the JSON body" in said


def test_no_metrics_is_fine(router, trace, tmp_path):
    """The router's metrics have a port of their own: beside /v1 there are none, which is said and nothing more."""
    url, _ = router
    folder = replay(trace, url, tmp_path / "run", "--prompt", "text", profile="sglang-router")
    assert load(folder).manifest["arms"]["endpoint"]["metrics"]["absent"] == "HTTP 404"
    assert load(folder).server.empty
