"""Prompts: the same bytes for the same salt, shared exactly as far as the plan says."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddbench.errors import InputError
from pddbench.trace.model import Header, Row, Trace
from pddbench.workload.experiment import Workload
from pddbench.workload.plan import make_plan
from pddbench.workload.prompts import BodyWriter, PromptBook, draw
from pddbench.workload.tokenizer import single_token_words
from pddbench.workload.words import WORDS


@st.composite
def traces(draw_):
    """Random tries of up to 12 requests with prefixes reaching into donors' outputs."""
    rows = []
    for i in range(draw_(st.integers(1, 12))):
        donor = draw_(st.integers(-1, i - 1))
        length = rows[donor].input_tokens + rows[donor].output_tokens if donor >= 0 else 0
        prefix = draw_(st.integers(0, length))
        rows.append(
            Row(
                request_id=f"r{i}",
                session_id=f"s{i}",
                turn=0,
                start_s=float(i),
                prefix_of=f"r{donor}" if donor >= 0 else None,
                prefix_tokens=prefix,
                input_tokens=prefix + draw_(st.integers(0 if prefix else 1, 40)),
                output_tokens=draw_(st.integers(1, 20)),
            )
        )
    return Trace(Header(), rows)


def common(a, b):
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


@given(traces())
@settings(max_examples=150, deadline=None)
def test_prefixes_are_shared_exactly_as_planned(trace):
    """Without it, the replayed hits are not those of the trace."""
    plan = make_plan(trace, Workload(trace="t"))
    book = PromptBook(plan, "salt", (0, 2**30))
    for request in plan.requests:
        ids = book.ids(request.index)
        assert len(ids) == request.input_tokens
        donors = [common(ids, book.ids(j)) for j in range(request.index)]
        assert max(donors, default=0) >= request.cached_tokens_planned
        assert min(max(donors, default=0), request.input_tokens - 1) == request.cached_tokens_planned


def test_salt_changes_every_token_and_adds_none():
    """Without it, a second run hits the cache the first one warmed (TRAPS 27)."""
    a, b = (draw(salt, "r", 5000, 0, 2**30) for salt in ("one", "two"))
    assert (a == b).mean() < 0.001
    assert (draw("one", "r", 5000, 0, 2**30) == a).all()
    assert draw("one", "r", 10_000, 1000, 1010).min() == 1000
    assert draw("one", "r", 10_000, 1000, 1010).max() == 1009


def test_ids_are_the_same_on_every_machine():
    """Without it, arms or repeats run on another host would get other bytes."""
    assert draw("salt", "request", 6, 1000, 30000).tolist() == [2302, 12792, 28413, 23511, 23451, 22204]


def test_bodies():
    """Without it, the endpoint gets another length, model or form than planned."""
    trace = Trace(Header(), [Row("a", "s", 0, 50, 7, start_s=0.0)])
    plan = make_plan(trace, Workload(trace="t"))
    book = PromptBook(plan, "salt", (1000, 30000))
    common_fields = {"model": "m", "fields": {"ignore_eos": True}, "limit_field": "max_tokens", "min_tokens": True}
    ids = msgspec.json.decode(BodyWriter(book, plan, chat=False, token_ids=True, **common_fields)(0))
    assert ids["prompt"] == book.ids(0).tolist()
    assert (ids["max_tokens"], ids["min_tokens"], ids["ignore_eos"], ids["stream"]) == (7, 7, True, True)
    assert ids["stream_options"] == {"include_usage": True}
    worded = PromptBook(plan, "salt", (0, len(WORDS)))
    chat = BodyWriter(worded, plan, chat=True, token_ids=False, overhead_tokens=8, **common_fields)
    content = msgspec.json.decode(chat(0))["messages"][0]["content"]
    assert len(content.split()) == 42


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory):
    """A byte-level BPE of our own, trained on a few hundred made-up words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    letters = "abcdefghijkl"
    words = [a + b + c for a in letters for b in "aeiou" for c in letters]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([" ".join(words + ["the"] * 50)] * 50 + words * 20 + ["the"] * 500, trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@given(traces())
@settings(max_examples=40, deadline=None)
def test_text_prompts_are_exact_to_the_token(tokenizer_file, trace):
    """Without it, text re-tokenises to other lengths and prefixes break at the joins (TRAPS 28)."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    words = single_token_words(str(tokenizer_file))
    plan = make_plan(trace, Workload(trace="t"))
    book = PromptBook(plan, "salt", (0, len(words)))
    encoded = [np.array(tokenizer.encode(book.text(r.index, words)).ids) for r in plan.requests]
    for request in plan.requests:
        assert len(encoded[request.index]) == request.input_tokens
        for other in range(request.index):
            assert common(encoded[request.index], encoded[other]) == common(book.ids(request.index), book.ids(other))


def test_tokenizer_files_that_cannot_be_used(tmp_path):
    """Without it, a wrong tokenizer file ends in a traceback or in prompts of other lengths."""
    from tokenizers import Tokenizer, models

    with pytest.raises(InputError, match="no such tokenizer"):
        single_token_words(str(tmp_path / "none.json"))
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(InputError, match=r"not a tokenizer\.json"):
        single_token_words(str(tmp_path / "bad.json"))
    Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).save(str(tmp_path / "letters.json"))
    with pytest.raises(InputError, match="use token ids"):
        single_token_words(str(tmp_path / "letters.json"))
