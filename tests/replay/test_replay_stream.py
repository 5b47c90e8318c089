"""What a stream meant, with exact synthetic stamps, over any split of its bytes."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replay_streams import CASES, Case, chat, last, sse, text

from pddbench.replay.stream import Facts, interpret

MS = 1_000_000


def facts(case: Case | None = None, **more) -> Facts:
    """A 200 with SSE that ended as the case says."""
    ending = "eof" if case is None or case.clean else "broken"
    return Facts(**{"ending": ending, "status": 200, "content_type": "text/event-stream; charset=utf-8", **more})


def check(case: Case, result, stamp_of_piece: list[int]) -> None:
    """Everything the case says, exactly."""

    def stamp(piece: int | None) -> int | None:
        return None if piece is None else stamp_of_piece[piece]

    assert (result.outcome, result.finish_reason) == (case.outcome, case.finish), result.error
    assert (result.error is None) == (case.outcome == "ok")
    assert result.first_token_ns == stamp(case.first)
    assert result.second_token_ns == stamp(case.second)
    assert result.last_token_ns == stamp(case.final)
    assert result.chunks == case.chunks == len(result.token_ns)
    assert result.completion_tokens == case.tokens
    if case.per_chunk is not None:
        assert result.chunk_tokens == case.per_chunk
    for name, value in case.more.items():
        assert getattr(result, name) == value, name


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_read_by_read(case):
    """Without it one of the streams that break other tools would break us."""
    times = [(i + 1) * 10 * MS for i in range(len(case.pieces))]
    check(case, interpret(list(zip(times, case.pieces, strict=True)), facts(case)), times)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=60)
@given(data=st.data())
def test_cases_over_any_split(case, data):
    """Without it TTFT, outcome or token count would depend on how TCP cut the stream."""
    raw = b"".join(case.pieces)
    cuts = data.draw(st.lists(st.integers(1, max(1, len(raw)))), label="cuts")
    bounds = sorted({0, len(raw), *[cut for cut in cuts if cut < len(raw)]})
    reads = [(b * MS, raw[a:b]) for a, b in itertools.pairwise(bounds)]
    whole = interpret([(len(raw) * MS, raw)] if raw else [], facts(case))
    result = interpret(reads, facts(case))
    for name in ("outcome", "error", "finish_reason", "chunks", "completion_tokens", "chunk_tokens", "stage",
                 "output_sha256", "pipeline", "tokens_md", "cached_tokens"):  # fmt: skip
        assert getattr(result, name) == getattr(whole, name), name
    ends = [sum(map(len, case.pieces[: i + 1])) for i in range(len(case.pieces))]
    # an event is complete at its last byte or, with CRLF, one byte earlier: allow for the read holding either
    for name, piece in (("first_token_ns", case.first), ("last_token_ns", case.final)):
        if piece is not None:
            allowed = {next(b for b in bounds[1:] if end <= b) * MS for end in (ends[piece], ends[piece] - 1)}
            assert getattr(result, name) in allowed, name


def test_gaps_and_the_largest():
    """Without it a stall would be reported at the wrong token, or averaged away."""
    times = [10 * MS, 12 * MS, 900 * MS, 901 * MS]
    pieces = [text("a"), text("b"), text("c"), text("d", "stop") + last(4)]
    result = interpret(list(zip(times, pieces, strict=True)), facts())
    assert (result.max_gap_ns, result.max_gap_token) == (888 * MS, 2)
    assert result.token_ns == times


def test_latency_ends_at_the_last_token():
    """Without it a server that is slow to send usage would look slow to answer."""
    reads = [(1 * MS, text("a")), (2 * MS, text("b", "stop")), (500 * MS, last(2))]
    assert interpret(reads, facts()).last_token_ns == 2 * MS


def test_both_tokens_in_one_read_but_two_chunks():
    """Without it two chunks read at once would be called bundled: they are two chunks with one stamp."""
    result = interpret([(5 * MS, text("a") + text("b", "stop") + last(2))], facts())
    assert (result.first_token_ns, result.second_token_ns, result.max_gap_ns) == (5 * MS, 5 * MS, 0)


def test_kernel_stamp_of_the_first_token():
    """Without it kernel receive stamps, where a transport has them, would be lost."""
    result = interpret([(5, chat({"role": "assistant"}), 4), (9, text("a", "stop"), 8)], facts())
    assert (result.first_token_ns, result.kernel_first_token_ns, result.user_first_token_ns) == (8, 8, 9)
    assert (result.first_chunk_ns, result.stamps) == (4, "kernel")


def test_output_hash_is_of_the_text():
    """Without it exactness between arms could not be told."""
    result = interpret(
        [
            (1, text("né")),
        ],
        facts(),
    )
    assert result.output_sha256 == hashlib.sha256("né".encode()).hexdigest()
    split = interpret([(1, text("n")), (2, text("é", "stop"))], facts())
    assert split.output_sha256 == result.output_sha256


@pytest.mark.parametrize(
    ("more", "body", "outcome", "error"),
    [
        ({"status": 404}, b'{"error": {"message": "no \\u001b[1mmodel"}}', "http_error", "HTTP 404: no model"),
        ({"status": 422}, b'{"detail": "ignore_eos?"}', "http_error", "HTTP 422: ignore_eos?"),
        ({"status": 503}, b"", "http_error", "HTTP 503"),
        ({"status": 307, "location": "http://u:p@other/x?key=1"}, b"", "http_error",
         "HTTP 307: redirects to http://***@other/x?***, not followed"),
        ({"content_type": "text/html"}, b"<html><h1>Hi</h1></html>", "stream_error",
         "the answer is text/html, not text/event-stream: Hi"),
        ({"content_type": "application/json"}, b'{"choices": []}', "stream_error",
         'the answer is application/json, not text/event-stream: {"choices": []}'),
        ({"content_type": ""}, b"", "stream_error", "the answer is no content type, not text/event-stream"),
        ({"status": None, "ending": "connection", "error": "refused"}, b"", "connection", "refused"),
        ({"status": None, "ending": "timeout", "error": "no byte"}, b"", "timeout", "no byte"),
        ({"ending": "timeout", "error": "no byte"}, text("a"), "timeout", "no byte"),
        ({"ending": "cancelled", "error": "stopped"}, text("a"), "cancelled", "stopped"),
        ({"ending": "too_large", "error": "big"}, text("a"), "stream_error", "big"),
    ],
)  # fmt: skip
def test_what_is_not_a_good_stream(more, body, outcome, error):
    """Without it a failure would get the wrong name, or unprintable text from a server."""
    result = interpret([(1, body)] if body else [], facts(**more))
    assert (result.outcome, result.error) == (outcome, error)


def test_a_reply_that_was_complete_stays_ok():
    """Without it a server that never closes after [DONE] would turn good replies into timeouts."""
    reads = [(1, text("a", "stop")), (2, last(1))]
    assert interpret(reads, facts(ending="timeout", error="no byte")).outcome == "ok"


def test_numbers_out_of_range_are_unknown():
    """Without it a server's nonsense would overflow a column, or count true as 1."""
    bad = {"prompt_tokens": 10**12, "completion_tokens": True, "prompt_tokens_details": {"cached_tokens": -1}}
    result = interpret([(1, text("a", "stop") + sse({"choices": [], "usage": bad}))], facts())
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (None, None, None)


@given(st.lists(st.binary(max_size=40)), st.sampled_from([200, 404, None]))
def test_nothing_a_server_sends_raises(pieces, status):
    """Without it one odd reply would end the whole analysis."""
    body = [piece if i % 2 else b"data: " + piece + b"\n\n" for i, piece in enumerate(pieces)]
    interpret(list(enumerate(body)), facts(status=status))


NAMES = ["choices", "usage", "pdd", "error", "delta", "text", "kv", "index", "handoff", "tool_calls", "content"]
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=20,
)


@given(ANY_JSON)
def test_no_json_raises(value):
    """Without it a chunk of unexpected shape would be a traceback instead of a stream error."""
    interpret([(1, sse(value))], facts())
    if isinstance(value, dict):
        interpret(
            [(1, sse({"choices": [{"delta": value, "finish_reason": "stop"}], "usage": value, "pdd": value}))], facts()
        )
