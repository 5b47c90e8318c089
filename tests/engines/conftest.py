"""Models and traces for real engines."""

from pathlib import Path

import pytest

from pddbench.deploy.gguf import TinyLlama, write_tiny_llama
from tests.engines.engine_kit import llama_server
from tests.run.run_kit import small_rows, write_trace


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    """A folder with three random models: plain, one that ends early, one that says bytes."""
    folder = tmp_path_factory.mktemp("models")
    write_tiny_llama(folder / "plain.gguf")
    write_tiny_llama(folder / "ends.gguf", TinyLlama(ends=True))
    write_tiny_llama(folder / "bytes.gguf", TinyLlama(printable_only=False))
    return folder


@pytest.fixture(scope="session")
def llama(models):
    """llama.cpp's server with the plain model."""
    with llama_server(models / "plain.gguf") as url:
        yield url


@pytest.fixture(scope="session")
def trace(tmp_path_factory) -> Path:
    """Four sessions of three turns on one shared half prompt."""
    return write_trace(tmp_path_factory.mktemp("trace") / "small.trace.jsonl", small_rows(4, gap_s=0.1, tokens=300))
