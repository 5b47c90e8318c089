"""Two transports and two readers, one meaning: the same streams through all of them give the same rows; HTTP framing
over any split."""  # fmt: skip

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
import time
from contextlib import contextmanager

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_kit import body, plan, request, result, run
from replay_server import SSE_HEAD, Reply, plain, stream, truth_server
from replay_streams import CASES, last, text

from pddbench.replay.client import HttpClient
from pddbench.replay.engine import ReplayJob, replay
from pddbench.replay.exchange import Target
from pddbench.replay.http1 import Chunked, Counted, HttpError, UntilClose, body_of, parse_head, split_head
from pddbench.replay.native.reader import NativeReader
from pddbench.replay.raw import RawClient
from pddbench.replay.raw_connection import Poller
from pddbench.replay.spool import SpoolWriter, read_spool
from pddbench.replay.transport import raw_suits
from pddbench.runfolder import finish

GOOD = [text("a"), text("b", "stop"), last(2)]
MORE = [
    Reply([(0.0, b"".join(GOOD))], head=b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", chunked=False,
          close=True),
    Reply([(0.0, b"".join(GOOD))], chunked=False, close=True,
          head=b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n"
               b"Content-Length: %d\r\n\r\n" % len(b"".join(GOOD))),
    Reply([(0.0, piece) for piece in GOOD],
          head=b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
               b"Transfer-Encoding: chunked\r\n\r\n"),
    plain("429 Slow", b'{"error": {"message": "slow down"}}'),
    plain("503 Away"), plain("204 Nothing"),
    plain("307 There", Location="http://elsewhere/?key=1"),
    plain("200 OK", b"<html>Hi", Content_Type="text/html"),
    plain("500 Big", b"x" * 300_000),
    Reply(head=b"SSH-2.0-x\r\n\r\n", chunked=False, close=True),
    Reply(head=b"", chunked=False, close=True),
    stream([text("a")], hang=True),
]  # fmt: skip
TIMES = [
    "scheduled_ns", "ready_ns", "due_ns", "throttle_wait_ns", "connect_wait_ns", "sent_ns", "first_byte_ns",
    "first_chunk_ns", "first_token_ns", "second_token_ns", "last_token_ns", "end_ns", "max_gap_ns", "max_gap_token",
]  # fmt: skip
OWN = ["kernel_first_token_ns", "user_first_token_ns", "stamps"]  # what only one of them has, or has otherwise


async def rows(transport, folder, url, n):
    """The rows of a run of n single requests through one transport."""
    folder.mkdir()
    (folder / "spool").mkdir()
    the_plan = plan(*[request(i, start_ns=i * 2_000_000) for i in range(n)])
    finish.save_plan(folder, 1, the_plan)
    finish.save_arm(folder, "a", 1, 1.0, None)
    spool = SpoolWriter(finish.spool_path(folder, "a", 1), "a", 1, n)
    target = Target(url=url, stall_timeout_s=0.5)
    await replay(ReplayJob(the_plan, target, body, spool, transport=transport))
    spool.close()
    finish.finish_arm(folder, "a", 1)
    return pd.read_parquet(folder / "requests", dtype_backend="pyarrow")


@contextmanager
def threaded_server(answer):
    """A server of one connection in a thread, so that its writes do not wait for our loop; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
        thread.join()


def same(error):
    """An error without each library's own reason, and without what depends on timing."""
    if pd.isna(error):
        return None
    return error.replace("a reused connection", "the connection").partition(" (")[0].partition("HTTP: ")[0]


def native(target):
    """The raw transport, read by the thread in C."""
    return RawClient(target, NativeReader)


def polled(target):
    """The raw transport, read by Python."""
    return RawClient(target, Poller)


async def test_the_same_rows_through_all(tmp_path):
    """Without it what a row says would depend on whether the endpoint speaks TLS, or a compiler was there."""
    replies = [stream(case.pieces, gap_s=0.005, clean=case.clean) for case in CASES] + MORE

    def reply(seen):
        return replies[json.loads(seen.body)["prompt"][0]]

    async with truth_server(reply) as server:
        by_aiohttp = await rows(HttpClient, tmp_path / "aiohttp", server.url, len(replies))
        raw_rows = [await rows(made, tmp_path / made.__name__, server.url, len(replies)) for made in (polled, native)]
    assert len(server.seen) == 3 * len(replies)
    for raw in raw_rows:
        compare(raw, by_aiohttp)


def compare(raw, by_aiohttp):
    """Column by column."""
    for column in raw.columns:
        if column in TIMES:  # both happened, or neither
            assert raw[column].isna().tolist() == by_aiohttp[column].isna().tolist(), column
        elif column == "error":
            assert [same(x) for x in raw[column]] == [same(x) for x in by_aiohttp[column]]
        elif column not in OWN:
            assert raw[column].to_list() == by_aiohttp[column].to_list(), column
    bearing = raw["first_token_ns"].notna()
    # a busy machine may hold a read up for longer than a gap: then the user's own stamp counts, and says so
    assert set(raw.loc[bearing, "stamps"]) <= {"kernel", "merged", "mixed", "user"}
    assert raw.loc[bearing, "kernel_first_token_ns"].notna().all()
    assert set(by_aiohttp.loc[bearing, "stamps"]) == {"user"}
    assert by_aiohttp["kernel_first_token_ns"].isna().all()


@pytest.mark.parametrize("transport", [HttpClient, polled, native])
async def test_a_compressed_stream_is_told_as_one(tmp_path, transport):
    """A gateway that compresses unasked was told as a stream that broke off inside an event."""
    head = SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n")
    replies = [Reply([(0.0, gzip.compress(b"".join(GOOD)))], head=head), Reply([(0.0, b"".join(GOOD))], head=head)]
    async with truth_server(lambda seen: replies[json.loads(seen.body)["prompt"][0]]) as server:
        found = await rows(transport, tmp_path / "run", server.url, 2)
    assert found["outcome"].tolist() == ["truncated", "ok"], "one that only says so can be read"
    assert found["error"][0].startswith("the answer is compressed (gzip), which was not asked for")
    assert pd.isna(found["error"][1])


@pytest.mark.parametrize("transport", [polled, native])
async def test_stamps_stand_when_the_client_is_late(tmp_path, transport):
    """Without it a client that is held up for 30 ms would report its own delay as the server's. The native reader is
    not even held up: it needs no turn of ours."""  # fmt: skip
    loop, wrote = asyncio.get_running_loop(), []

    def block():
        while not wrote:
            time.sleep(0.001)
        time.sleep(0.03)  # the first token is there, and we do not look

    def answer(connection):
        connection.recv(65536)
        loop.call_soon_threadsafe(block)
        connection.sendall(SSE_HEAD)
        for piece in GOOD:
            time.sleep(0.2)  # much longer than we are held up, even where the machine is busy
            wrote.append(time.monotonic_ns())
            connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
        connection.sendall(b"0\r\n\r\n")

    with threaded_server(answer) as url:
        end, spool = await run(plan(request(0)), url, tmp_path, transport=transport)
    got = result(spool, 0)
    assert end.reader == ("native" if transport is native else "python")
    assert got.stamps == "kernel"
    assert got.first_token_ns == got.kernel_first_token_ns
    kernel_error, user_error = got.kernel_first_token_ns - wrote[0], got.user_first_token_ns - wrote[0]
    if transport is polled:
        assert user_error > 25_000_000, "we were held up"
    assert kernel_error > -20_000, "not before it was sent"
    assert kernel_error < (user_error - 20_000_000 if transport is polled else 20_000_000), "and does not show it"


@pytest.mark.parametrize(
    ("url", "raw"),
    [("http://h/v1", True), ("https://h/v1", False), ("http://user:pw@h/v1", False)],
)
def test_which_transport(url, raw):
    """Without it TLS or a proxy would be sent in the clear, or the fast path never used."""
    assert raw_suits(Target(url=url)) is raw
    assert not raw_suits(Target(url=url, trust_env=True))


async def test_early_refusal_of_a_large_body(tmp_path):
    """Without it a server that answers 413 before it has read the prompt would look like a broken connection."""
    release = threading.Event()

    def answer(connection):
        connection.recv(1000)
        connection.sendall(b"HTTP/1.1 413 Large\r\nContent-Length: 3\r\n\r\nbig")
        release.wait(30)

    with threaded_server(answer) as url:
        spool = SpoolWriter(tmp_path / "x.spool", "a", 1, 1)
        await replay(ReplayJob(plan(request(0)), Target(url=url), lambda i: b"x" * (32 << 20), spool))
        spool.close()
        release.set()
    got = result(read_spool(tmp_path / "x.spool"), 0)
    assert (got.outcome, got.error) == ("http_error", "HTTP 413: big")


def chunks(pieces, trailer=b"", extension=b""):
    """Pieces in chunked framing."""
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    return framed + b"0\r\n" + trailer + b"\r\n"


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    st.sampled_from([b"", b"X: 1\r\n"]),
    st.sampled_from([b"", b";a=b"]),
    st.data(),
)
def test_chunked_over_any_split(pieces, trailer, extension, data):
    """Without it a message's end would be missed, or seen too early, when TCP cuts the framing anywhere."""
    raw = chunks(pieces, trailer, extension)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw) - 1), max_size=12)))
    decoder, got = Chunked(), []
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        assert not decoder.done
        got.append(decoder.feed(raw[start:end]))
    assert b"".join(got) == b"".join(pieces)
    assert decoder.done and not decoder.surplus and decoder.closed() is None


def test_a_body_that_looks_like_the_end():
    """Without it a chunk whose text is `0` and two line ends would end the message."""
    decoder = Chunked()
    piece = b"data: 0\r\n\r\n"
    for _ in range(3):
        assert decoder.feed(b"%x\r\n%b\r\n" % (len(piece), piece)) == piece
        assert not decoder.done
    assert decoder.closed() is not None
    decoder.feed(b"0\r\n\r\nextra")
    assert decoder.done and decoder.surplus


@pytest.mark.parametrize(
    "raw", [b"z\r\n", b"-1\r\nx", b"1\nx", b"1\r\nxy\r\n", b"+2\r\nab\r\n", b"1_0\r\n", b"a" * 20_000, b"\r\n"]
)
def test_bad_framing(raw):
    """Without it broken framing would be guessed at."""
    with pytest.raises(HttpError):
        Chunked().feed(raw)
    decoder = Chunked()
    decoder.feed(b"2\r\nab\r\n" * 3)
    with pytest.raises(HttpError):
        decoder.feed(raw)


@pytest.mark.parametrize("raw", [b"SSH-2.0", b"HTTPS", b"HTTP/1.1 " + b"x" * 70_000 + b"\r\n\r\n"])
def test_not_http(raw):
    """Without it a server that speaks something else would be waited for until the stall timeout."""
    with pytest.raises(HttpError):
        split_head(raw)


@pytest.mark.parametrize(
    "raw", [b"HTTP/2 200 OK", b"HTTP/1.1 20 OK", b"HTTP/1.1 200 OK\r\nno colon", b"HTTP/1.1 200\r\n x: y"]
)
def test_bad_head(raw):
    """Without it a malformed head would be half understood."""
    with pytest.raises(HttpError):
        parse_head(raw)


@pytest.mark.parametrize(
    ("head", "kind", "alive"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\nContent-Length: 5", Chunked, True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: Close", Counted, False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5", Counted, True),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5", Counted, True),
        (b"HTTP/1.0 200 OK", UntilClose, False),
        (b"HTTP/1.1 204 No\r\nTransfer-Encoding: chunked", Counted, True),
    ],
)
def test_how_a_body_ends(head, kind, alive):
    """Without it an answer would never end, or a connection be used again that the server closes."""
    parsed = parse_head(head)
    assert isinstance(body_of(parsed), kind)
    assert parsed.keeps_alive is alive


@pytest.mark.parametrize("length", [b"5, 6", b"-1", b"x", b""])
def test_bad_lengths(length):
    """Without it two lengths, or none that is a number, would be taken for one."""
    with pytest.raises(HttpError):
        body_of(parse_head(b"HTTP/1.1 200 OK\r\nContent-Length: " + length))


def test_many_sockets_are_allowed():
    """Without it the usual soft limit of 1024 open files would end a run at a thousand streams."""
    import resource

    from pddbench.replay.transport import allow_many_sockets

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        allow_many_sockets()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
