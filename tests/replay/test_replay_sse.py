"""The SSE parser against the standard."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddbench.replay.sse import Event, SseError, SseParser


def parse(data: bytes, cuts: list[int] | None = None) -> list[tuple[bytes, bytes, bytes]]:
    """All events of `data` cut at `cuts`, without the number of their read."""
    bounds = sorted({0, len(data), *[cut for cut in cuts or () if cut < len(data)]})
    parser, out = SseParser(), []
    for a, b in itertools.pairwise(bounds):
        out += [(e.data, e.event, e.last_id) for e in parser.feed(data[a:b])]
    return out


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\r\n\r\n", [b"a"]),
        (b"data:  a\r\r", [b" a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b"data\n\n", [b""]),
        (b": hello\n\ndata: x\n: mid\n\n", [b"x"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"foo: bar\nevent: x\n\n", []),
        (b"data: a\n\ndata: lost", [b"a"]),
        (b"data: a\r\n\ndata: b\r\r\n", [b"a", b"b"]),
    ],
)
def test_events_of_the_standard(raw, data):
    """Without it a legal spelling of SSE could be dropped or joined."""
    assert [event[0] for event in parse(raw)] == data


def test_type_and_id():
    """Without it an `event: error` would look like a message, and an id would not stick."""
    events = parse(b"event: error\nid: 4\ndata: a\n\ndata: b\n\nid: x\0y\ndata: c\n\n")
    assert events == [(b"a", b"error", b"4"), (b"b", b"", b"4"), (b"c", b"", b"4")]


LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data", b": c", b"event: e", b"id: 1", b"retry: 5", "data: é漢😀".encode(), b"", b"", b"x"]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=30), st.lists(st.integers(0, 400)), st.booleans())
def test_any_split_gives_the_same_events(lines, cuts, mark):
    """Without it an event split over TCP reads could be lost, doubled or joined."""
    raw = b"".join(line + end for line, end in lines)
    raw = b"\xef\xbb\xbf" + raw if mark else raw
    assert parse(raw, cuts) == parse(raw) == parse(raw, list(range(len(raw))))


@given(st.lists(st.tuples(LINES, ENDS), max_size=20), st.lists(st.integers(0, 300)))
def test_an_event_belongs_to_the_read_of_its_completing_byte(lines, cuts):
    """Without it the stamp of an event could be that of a later read."""
    raw = b"".join(line + end for line, end in lines)
    parser, at_byte = SseParser(), []
    for i in range(len(raw)):
        at_byte += [i for _ in parser.feed(raw[i : i + 1], i)]
    bounds = sorted({0, len(raw), *[cut for cut in cuts if cut < len(raw)]})
    parser, got = SseParser(), []
    for k, (a, b) in enumerate(itertools.pairwise(bounds)):
        got += [event.read for event in parser.feed(raw[a:b], k)]
    assert got == [next(k for k, b in enumerate(bounds[1:]) if i < b) for i in at_byte]


def test_megabytes_in_small_reads_are_linear():
    """Without it a quadratic buffer would stall on a long line: 64 times the bytes must not take 1000 times as long."""

    def seconds(n_reads: int) -> float:
        parser, start = SseParser(), time.process_time()
        parser.feed(b"data: ")
        for _ in range(n_reads):
            parser.feed(b"x" * 512)
        assert [len(e.data) for e in parser.feed(b"\n\n")] == [512 * n_reads]
        return time.process_time() - start

    small = min(seconds(512) for _ in range(5))
    assert min(seconds(32768) for _ in range(2)) < 1000 * max(small, 1e-4)


def test_the_size_bound_is_an_error():
    """Without it a server could fill the memory with a single event."""
    for head in (b"data: ", b": ", b""):
        parser = SseParser(max_event_bytes=1000)
        with pytest.raises(SseError, match="larger than 1000 bytes"):
            for _ in range(20):
                parser.feed(head + b"x" * 90 + b"\n" if head == b"data: " else b"x" * 90)


def test_read_numbers():
    """Without it several events in one read would not share its stamp."""
    parser = SseParser()
    assert parser.feed(b"data: a\n\ndata: b\n\ndata: c\n", 3) == [Event(b"a", 3, b"", b""), Event(b"b", 3, b"", b"")]
    assert parser.feed(b"\n", 4) == [Event(b"c", 4, b"", b"")]


PIECES = [b"data: x\n\n", b"data: \n\n", b"event: e\n", b"data: half", b"\n\n", b"id: 7\n", b": c\n\n", b"\n",
          b"data: y\r\n\r\n", b"data: a\rb\n\n", b"data: a\ndata: b\n\n", b"data: z\n", b"data: q\r",
          b"data: " + b"w" * 70 + b"\n\n"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=8))
def test_whole_events_take_a_short_way_to_the_same_end(pieces):
    """Without it an event in a read of its own, the usual one, could lose what an earlier read began."""

    def events(reads):
        parser, out = SseParser(max_event_bytes=60), []
        try:
            for data in reads:
                out += [(event.data, event.event, event.last_id) for event in parser.feed(data)]
        except SseError as error:
            out.append(str(error))
        return out

    whole = b"".join(pieces)
    assert events(pieces) == events([whole[i : i + 1] for i in range(len(whole))])
