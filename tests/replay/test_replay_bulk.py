"""Streams read in bulk against the same streams read event by event: not one field may differ."""

from __future__ import annotations

import itertools
import json
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from replay_streams import CASES, chat, last, sse, text, usage

from pddbench.replay.kernel import KernelClock, on_our_clock
from pddbench.replay.reader import StreamReader
from pddbench.replay.stream import Facts, interpret

MS = 1_000_000
WORDS = st.text(st.characters(codec="utf-8"), max_size=4) | st.sampled_from(
    [" a", "é", "\n", '"', "\\", "}]}", "\n\ndata: ", "data: [DONE]", "😀", "\x00", "\u2028", "null", ""]
)


def compact(value):
    """One event as some servers write it: no blanks, and ids before the choices."""
    head = {"id": "c-1", "object": "text_completion", "created": 1, "model": "m"}
    return b"data: " + json.dumps({**head, **value}, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


EVENTS = st.one_of(
    st.builds(text, WORDS),
    st.builds(
        lambda w: compact({"choices": [{"index": 0, "text": w, "logprobs": None, "finish_reason": None}]}), WORDS
    ),
    st.builds(lambda w: chat({"content": w}), WORDS),
    st.builds(lambda w: text(w, usage=None, token_ids=None), WORDS),
)
ODD = st.one_of(
    EVENTS,
    st.builds(lambda w: text(w, "stop"), WORDS),
    st.builds(lambda w, n: text(w, usage=usage(n)), WORDS, st.integers(0, 5)),
    st.builds(lambda w, n: text(w, pdd={"index": n, "stage": "md"}), WORDS, st.integers(0, 5)),
    st.builds(lambda w, n: sse({"choices": [{"index": n, "text": w, "token_ids": [n]}]}), WORDS, st.integers(0, 1)),
    st.builds(lambda w: chat({"content": w, "reasoning_content": w}), WORDS),
    st.builds(lambda w: sse({"choices": [{"text": "x", "text ": w}, {"index": 1, "text": w}]}), WORDS),
    st.sampled_from([
        sse("[DONE]"), sse(" [DONE] "), sse(""), sse("{}"), sse("[]"), sse("nonsense"), sse("null"), b": ping\n\n",
        b"data: {\"choices\":[{\"text\":\"a\"}]}\n\n\n", b"data:{}\n\n", b"event: x\ndata: {}\n\n", b"data: {}\r\n\r\n",
        b"\n\n", sse({"error": {"message": "no"}}), sse({"object": "error", "message": "no"}), sse({"usage": usage(2)}),
        sse({"choices": [], "usage": usage(3)}), sse({"choices": None}), sse({"choices": [{"text": None}]}),
        b'data: {"choices":[{"text":"a","text":"b"}]}\n\n', b'data: {"choices":[{"text":"\xff"}]}\n\n', b"data: {\n\n",
        b'data: {"choices":[{"text":"a\tb"}]}\n\n', b"\xef\xbb\xbf", b'data: {"choices": [{"text": "b"}]} \n\n',
    ]),
)  # fmt: skip


def both(reads, facts):
    """The result as it is, and with every event read by itself."""
    quick = interpret(reads, facts)
    run, StreamReader.run = StreamReader.run, StreamReader.run_carefully
    try:
        return quick, interpret(reads, facts)
    finally:
        StreamReader.run = run


def facts(ending="eof"):
    return Facts(ending, status=200, content_type="text/event-stream")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@settings(max_examples=30)
@given(data=st.data())
def test_known_streams(case, data):
    """Without it a row would depend on which of two parsers had read it."""
    raw = b"".join(case.pieces)
    cuts = data.draw(st.lists(st.integers(1, max(1, len(raw)))))
    bounds = sorted({0, len(raw), *[cut for cut in cuts if cut < len(raw)]})
    for pieces in (case.pieces, [raw[a:b] for a, b in itertools.pairwise(bounds)]):
        quick, careful = both([(i * MS, piece) for i, piece in enumerate(pieces)], facts())
        assert quick == careful


@given(
    st.lists(EVENTS, max_size=6), st.lists(ODD, max_size=5), st.lists(EVENTS, max_size=3), st.booleans(),
    st.lists(st.integers(0, 900), max_size=3), st.sampled_from(["eof", "broken", "cancelled"]),
)  # fmt: skip
@example([text("a"), text("b"), text("c")], [], [], True, [], "eof")
@example([text("a"), b'data: {"x":[{}\n\n', b"data: {}]}\n\n"], [], [], True, [], "eof")
@settings(max_examples=400, deadline=None)
def test_any_stream(first, odd, more, ends, cuts, ending):
    """Without it a stream that is nearly as usual could be read wrong, and nobody would see it."""
    pieces = [*first, *odd, *more, *([last(len(first))] if ends else [])]
    raw = b"".join(pieces)
    bounds = sorted({0, len(raw), *[cut for cut in cuts if cut < len(raw)]})
    for parts in (pieces, [raw[a:b] for a, b in itertools.pairwise(bounds)]):
        quick, careful = both([(i * MS, piece) for i, piece in enumerate(parts)], facts(ending))
        assert quick == careful


@given(st.integers(0, 12), st.lists(WORDS, min_size=2, max_size=12), st.data())
@settings(max_examples=200, deadline=None)
def test_streams_with_a_changed_byte(shape, words, data):
    """Without it bytes that a bad network or server changed could pass as what the server meant."""
    make = (text, lambda w: chat({"content": w}), lambda w: text(w, usage=None))[shape % 3]
    raw = bytearray(b"".join([*map(make, words), make("z")[:-4] + b"}\n\n", last(len(words))]))
    for _ in range(shape // 3):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    quick, careful = both([(MS, bytes(raw[:40])), (2 * MS, bytes(raw[40:]))], facts())
    assert quick == careful


@given(
    st.lists(st.integers(0, 10**7), min_size=24, max_size=40),
    st.lists(st.tuples(st.integers(1, 10**6), st.integers(-2000, 2000)), min_size=1, max_size=8),
    st.lists(st.integers(-50_000, 10**6), min_size=24, max_size=40),
)
@settings(max_examples=200, deadline=None)
def test_kernel_stamps_at_once(times, samples, late):
    """Without it a kernel stamp converted with many others could be another time than alone."""
    stamp = struct.Struct("@ll")
    offsets, at, offset = [], 0, 10**18
    for step, drift in samples:
        at, offset = at + step * 10, offset + drift
        offsets.append((at, offset))
    clock = KernelClock(offsets)
    reads = [
        (t, b"x", stamp.pack(*divmod(t - delay + 10**18, 10**9))) for t, delay in zip(sorted(times), late, strict=False)
    ]
    alone = []
    for read in reads:
        found = clock.monotonic_ns(read[2], read[0])
        alone.append(read[:2] if found is None else (*read[:2], found))
    rejected, clock.rejected = clock.rejected, 0
    assert on_our_clock(reads, clock) == alone
    assert clock.rejected == rejected


@given(
    st.lists(st.tuples(st.integers(10**8, 3 * 10**8), st.integers(-20_000, 20_000)), min_size=2, max_size=8),
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=2, max_size=60),
)
@settings(max_examples=200, deadline=None)
def test_kernel_stamps_keep_their_order(samples, arrivals):
    """Without it two arrivals with one stamp, read apart, would change their order by a nanosecond of rounding: a head
    after its own first chunk, and a good run void."""  # fmt: skip
    pack = struct.Struct("@ll").pack
    offsets = [(0, 10**18)]
    for step, drift in samples:
        offsets.append((offsets[-1][0] + step, offsets[-1][1] + drift))
    clock = KernelClock(offsets)
    stamp_ns, read_ns, before = 10**18, 0, None
    for step, late in arrivals:
        stamp_ns += step * (step % 3 > 0)  # a third of them share the stamp before
        read_ns = max(read_ns + 1, stamp_ns - 10**18 + late)
        found = clock.monotonic_ns(pack(*divmod(stamp_ns, 10**9)), read_ns)
        assert before is None or found >= before[1]
        if before is not None and before[0] == stamp_ns and max(found, before[1]) < read_ns - late:
            assert found == before[1]
        before = stamp_ns, found
