"""pddbench against llama.cpp's own server: real tokens, a real prefix cache, a stream that we did not write."""

import pytest

from pddbench.analyze.counters import served_by_counters
from pddbench.analyze.dataset import Dataset
from pddbench.runfolder.load import load
from tests.engines.engine_kit import IDS, findings, llama_server, replay
from tests.run.run_kit import small_rows, write_trace

pytestmark = pytest.mark.slow


def test_token_ids(llama, trace, tmp_path):
    """Without it, "live endpoint" means our own emulator: lengths, hits and counters of a real server must be exact."""
    folder = replay(trace, llama, tmp_path / "run", *IDS)
    run = load(folder)
    rows = run.requests
    assert len(rows) == 12 and (rows["outcome"] == "ok").all()
    assert (rows["prompt_tokens"] == rows["input_tokens_planned"]).all()
    assert (rows["completion_tokens"] == rows["output_tokens_planned"]).all()
    assert (rows["chunks"] == rows["completion_tokens"]).all()
    # two prompts that part have the same next token once in 616 (IDS): one token more is then really shared
    more = rows["cached_tokens"] - rows["cached_tokens_planned"]
    assert more.isin([0, 1, 2]).all() and (more > 0).sum() <= 1
    assert rows["cached_tokens_planned"].sum() > 3000
    assert all(list(tokens) == [1] * 20 for tokens in run.events["chunk_tokens"])
    assert findings(folder) == set()
    counted = served_by_counters(Dataset(run), "endpoint")
    assert counted.hits == rows["cached_tokens"].sum() and counted.asked == rows["prompt_tokens"].sum()
    metrics = run.manifest["arms"]["endpoint"]["metrics"]
    assert metrics["engines"] == ["llamacpp"] and metrics["pages"] >= 2 and metrics["failed"] == 0


def test_chat(llama, trace, tmp_path):
    """A template stands before and after the prompt: no hit of its head may void the run as a warm cache."""
    folder = replay(trace, llama, tmp_path / "run", "--endpoint", "/v1/chat/completions")
    run = load(folder)
    rows = run.requests
    template = run.manifest["arms"]["endpoint"]["preflight"]["overhead_tokens"]
    assert template > 0
    assert (rows["outcome"] == "ok").all()
    assert (rows["prompt_tokens"] == rows["input_tokens_planned"]).all()
    assert (rows["completion_tokens"] == 20).all() and (rows["chunks"] == 20).all()
    off = (rows["cached_tokens"] - rows["cached_tokens_planned"])[rows["cached_tokens_planned"] > 0]
    assert off.abs().max() <= template and off.nunique() == 2  # behind a whole prompt, or inside one
    assert findings(folder) <= {"hits_possible"}


def test_lengths_are_pinned(models, trace, tmp_path):
    """A model that would rather stop must produce every planned token, or the work differs from the plan."""
    with llama_server(models / "ends.gguf") as url:
        free = replay(trace, url, tmp_path / "free", *IDS, profile="openai", expect=98)
        pinned = replay(trace, url, tmp_path / "pinned", *IDS)
    rows = load(free).requests
    assert "lengths" in findings(free)
    assert (rows["completion_tokens"] < 20).all() and (rows["finish_reason"] == "stop").all()
    assert (load(pinned).requests["completion_tokens"] == 20).all()


def test_held_back_tokens(models, trace, tmp_path):
    """The server holds back bytes that are no character yet: usage counts the tokens, chunks do not."""
    with llama_server(models / "bytes.gguf") as url:
        folder = replay(trace, url, tmp_path / "run", *IDS)
    rows = load(folder).requests
    assert (rows["outcome"] == "ok").all()
    assert (rows["completion_tokens"] == 20).all()
    assert (rows["chunks"] <= 20).all() and rows["chunks"].sum() < 12 * 20
    assert findings(folder) == {"bundled"}


def test_what_the_server_refuses(llama, trace, tmp_path):
    """The server's own sentence must reach the user: before load for ids it does not know, in the row for the rest."""
    said = replay(trace, llama, tmp_path / "ids", expect=1)
    assert "HTTP 400: Prompt contains invalid tokens" in said
    rows = [
        *small_rows(2, turns=1),
        {"request_id": "long", "session_id": "long", "turn": 0, "parents": [], "start_s": 0.4, "gap_s": None,
         "prefix_of": None, "prefix_tokens": 0, "input_tokens": 9000, "output_tokens": 4, "kind": "root"},
    ]  # fmt: skip
    long = write_trace(tmp_path / "long.trace.jsonl", rows)
    done = load(replay(long, llama, tmp_path / "long", *IDS)).requests.set_index("request_id")
    assert done.loc["long", "outcome"] == "http_error"
    assert "exceeds the available context size (8192 tokens)" in done.loc["long", "error"]
    assert (done.drop("long")["outcome"] == "ok").all()
