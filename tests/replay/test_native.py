"""The native reader: the same framing as Python's, whole under sanitizers, bounded, and gone when it is told to go."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_kit import body, plan, request, result, run
from replay_server import Reply, plain, stream, truth_server
from replay_sockets import read_request, served
from replay_streams import last, text

from pddbench.errors import InputError, WorldError
from pddbench.replay.exchange import Exchange, Target
from pddbench.replay.health import rss_bytes
from pddbench.replay.http1 import Chunked, Counted, HttpError, UntilClose
from pddbench.replay.native import compiled
from pddbench.replay.native import reader as native
from pddbench.replay.raw import RawClient
from pddbench.replay.raw_connection import Poller
from pddbench.replay.stream import whose_stamps
from pddbench.replay.transport import make_reader

GOOD = [text("a"), text("b", "stop"), last(2)]
MS = 1_000_000
READERS = pytest.mark.parametrize("make", [Poller, native.NativeReader], ids=["python", "native"])


# --- framing


class _Framing:
    """The framing of the library alone, as http1's decoders are used."""

    def __init__(self, kind, length=0):
        self._c = compiled.load()
        self._c.pdd_feed.restype = ctypes.c_int64
        self._state = ctypes.create_string_buffer(256)
        self._c.pdd_feed_begin(self._state, kind, ctypes.c_int64(length))

    def feed(self, data):
        out = ctypes.create_string_buffer(len(data) + 1)
        n = self._c.pdd_feed(self._state, data, ctypes.c_int64(len(data)), out)
        if n < 0:
            raise HttpError(native._WRONG[n])
        return out.raw[:n]

    @property
    def state(self):
        return self._c.pdd_feed_state(self._state)


def decode(decoder, pieces, state):
    """What a decoder makes of pieces: bytes, how it stands, what it says is wrong."""
    out = b""
    try:
        for piece in pieces:
            if state(decoder) & 1:
                return out, 3, None  # more came than it said
            out += decoder.feed(piece)
    except HttpError as error:
        return out, None, str(error)
    return out, state(decoder), None


LINES = st.sampled_from([b"5\r\n", b"0\r\n", b"a;x=y\r\n", b"3 \r\n", b"F\r\n", b"\r\n", b"zz\r\n", b"-1\r\n",
                         b"1\n", b"fffffffffffffff\r\n", b"1234567890abcdef0\r\n", b"X: y\r\n", b"3;\rq\r\n",
                         b"3; \r\n"])  # fmt: skip


@given(st.lists(st.one_of(LINES, st.binary(max_size=12)), max_size=14).map(b"".join), st.data())
def test_the_same_framing_as_in_python(raw, data):
    """Without it a run would depend on which reader was there: a message ended early, or broken framing let through."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True) if a < b]
    length = data.draw(st.integers(0, 40))
    for python, c in (
        (Chunked(), _Framing(2)), (Counted(length), _Framing(1, length)), (UntilClose(), _Framing(0)),
    ):  # fmt: skip
        expected = decode(python, pieces, lambda d: d.done | d.surplus << 1)
        got = decode(c, pieces, lambda d: d.state)
        if expected[2] is None:
            assert got == expected
        else:  # of a read that is wrong, the bytes before the fault do not matter
            assert got[2] == expected[2]


@pytest.mark.parametrize("line", [b"1" * 20_000, b"1;" + b"x" * 20_000 + b"\r\n", b"0\r\n" + b"x" * 20_000])
def test_endless_lines(line):
    """Without it a server that never ends a line would be read for ever."""
    for decoder in (Chunked(), _Framing(2)):
        with pytest.raises(HttpError, match="too long"):
            decoder.feed(line)


def test_whole_under_sanitizers(tmp_path):
    """Without it a server could make the C code read or write where it must not, or lose memory: random answers, good
    and spoilt, cut anywhere, on 24 connections at once."""  # fmt: skip
    compiler = shutil.which("cc")
    assert compiler is not None, "apt-get install gcc libc6-dev"
    here = Path(__file__).parent
    flags = [
        "-g",
        "-O1",
        "-pthread",
        f"-I{compiled.FOLDER}",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
    ]
    program = str(tmp_path / "fuzz")
    subprocess.run([compiler, *flags, "-o", program, str(here / "native_fuzz.c")], check=True, capture_output=True)
    done = subprocess.run([program, "1", "60"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    counts = {word: int(n) for n, word in (part.split() for part in done.stdout.split(", "))}
    assert counts["whole"] > 300, "good answers are whole"
    assert counts["sent"] > 200, "and some of the requests left by the thread"


# --- what a run sees


@READERS
async def test_a_close_at_each_byte(tmp_path, make):
    """Without it a connection that breaks at an unlucky byte would hang, be taken for whole, or lose what had come."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    head = len(whole)
    for piece in GOOD:
        whole += b"%x\r\n%b\r\n" % (len(piece), piece)
    whole += b"0\r\n\r\n"
    cuts = list(range(0, len(whole) + 1, 3))

    def reply(seen):
        cut = cuts[int(seen.request_id[1:])]
        return Reply(head=b"", pieces=[(0.0, whole[:cut])], chunked=False, close=True)

    async with truth_server(reply) as server:
        requests = [request(i, start_ns=i * MS) for i in range(len(cuts))]
        _, spool = await run(plan(*requests), server.url, tmp_path, transport=lambda target: RawClient(target, make))
    for i, cut in enumerate(cuts):
        got = result(spool, i)
        if cut < head:
            assert got.outcome == "connection", cut
        else:
            assert (got.outcome == "ok") == (b'"stop"' in whole[:cut] and got.chunks == 2), cut
            assert spool.request(i).ended.ending == ("eof" if cut == len(whole) else "broken"), cut
        assert (got.chunks or 0) == sum(whole[:cut].count(piece[:-1]) for piece in GOOD[:2]), cut


@READERS
async def test_an_error_that_repeats_the_key_slowly(tmp_path, make, monkeypatch):
    """Without it the key would lie in the spool: an error's body that comes in pieces over more than a flush."""
    monkeypatch.setenv("THE_KEY", "sk-very-secret-0123456789")
    pieces = [(0.0, b'{"error": {"message": "bad key sk-very-'), (0.8, b'secret-0123456789"'), (0.0, b"}}")]
    head = plain("401 No").head.replace(b"Content-Length: 0", b"Connection: close")
    refused = Reply(pieces, head=head, chunked=False, close=True)
    async with truth_server(refused) as server:
        _, spool = await run(
            plan(request(0)), server.url, tmp_path, {"api_key_env": "THE_KEY"},
            transport=lambda target: RawClient(target, make),
        )  # fmt: skip
    assert result(spool, 0).error == "HTTP 401: bad key ***"
    assert b"very-" not in spool.path.read_bytes()


@READERS
@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + GOOD[0]])
async def test_a_reset(make, sent):
    """Without it a server that crashed would pass for one that ended its answer: a body without a length is over when
    the connection is closed."""  # fmt: skip

    def crash(connection):
        read_request(connection)
        connection.sendall(sent)
        time.sleep(0.1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with served(crash) as url:
        client = RawClient(Target(url=url), make)
        exchange = await exchange_of(client)
        await client.close()
    assert exchange.ending == ("broken" if sent else "connection"), exchange.error
    assert "Connection reset by peer" in exchange.error


async def exchange_of(client, number=0):
    """One request, outside a run."""
    exchange = Exchange(number, time.monotonic_ns())
    await client.perform(exchange, body(number), f"r{number}")
    return exchange


async def test_events_that_waited_keep_their_own_stamps():
    """Without it tokens that came while nobody looked would all have the time of the last: on the loopback the kernel
    keeps segments that come soon after one another apart, and the reader takes them one by one."""  # fmt: skip
    listener = socket.create_server(("127.0.0.1", 0))
    wrote: list[int] = []

    def serve():
        connection, _ = listener.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.recv(65536)
            head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
            connection.sendall(head)
            for _ in range(40):  # warm: acknowledged at once at first, then with delay
                time.sleep(0.002)
                connection.sendall(b"%x\r\n%b\r\n" % (len(GOOD[0]), GOOD[0]))
            held.wait(10)
            for _ in range(3):
                wrote.append(time.monotonic_ns())
                connection.sendall(b"%x\r\n%b\r\n" % (len(GOOD[0]), GOOD[0]))
                time.sleep(0.003)
            released.set()
            connection.sendall(b"0\r\n\r\n")

    held, released = threading.Event(), threading.Event()
    thread = threading.Thread(target=serve)
    thread.start()
    client = RawClient(Target(url=f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"), native.NativeReader)
    reader = client._reader
    task = asyncio.ensure_future(exchange_of(client))
    while not reader._connections or reader.c.pdd_last_ns(reader.handle, 0) < 0:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.2)
    lock = ctypes.cast(reader.handle, ctypes.c_void_p)  # the mutex is the first member: the thread is held up by it
    libc = ctypes.CDLL(None)
    assert libc.pthread_mutex_lock(lock) == 0
    held.set()
    released.wait(10)
    libc.pthread_mutex_unlock(lock)
    exchange = await task
    looks, exact = ctypes.c_int64(), ctypes.c_int64()
    reader.c.pdd_counts(reader.handle, looks, exact)
    await client.close()
    thread.join()
    listener.close()
    reads = exchange.all_reads()[-3:]
    assert exact.value >= 1 and len({read[1] for read in reads}) == 1, "read one by one"
    assert reads[0][0] - wrote[0] > 5 * MS, "late"
    stamps = [int.from_bytes(r[2][:8], sys.byteorder) * 10**9 + int.from_bytes(r[2][8:], sys.byteorder) for r in reads]
    gaps = [after - before for before, after in pairwise(stamps)]
    if all(gaps):  # else the kernel had joined them, and there is nothing to be had
        assert all(2 * MS < gap < 40 * MS for gap in gaps)


def shared(*stamps_ms, late_ms=0.1):
    """Whose stamps the chunks of a stream have that came at these times, each read so late."""
    reads = [(int((stamp + late_ms) * MS), b"", stamp * MS) for stamp in stamps_ms]
    return whose_stamps(reads, range(len(reads)))


def test_a_shared_stamp_is_merged():
    """Without it segments that the kernel joined would pass for stamped exactly, each having the last one's time."""
    assert shared(10, 30, 50, 50, late_ms=5) == "kernel", "in its time, late by less than a gap: they belong together"
    assert shared(10, 30, 50, 50, late_ms=45) == "merged"
    assert shared(10, 30, 50, late_ms=45) == "kernel"


def test_a_shared_stamp_is_merged_though_we_came_just_after_it():
    """Nobody read for 90 ms of a stream of 20 ms, then came right after the last segment: told as a gap of 100 ms by
    the kernel's own stamps, and `loop_lag` was said to be in no gap."""  # fmt: skip
    assert shared(10, 30, 50, 150, 150, 150, 150, 150, 170, 190) == "merged"
    assert shared(10, 30, 70, 70, 90, 110) == "merged", "the second to last came 20 ms before"
    assert shared(70, 70, 70, 90, 110, 130) == "merged", "the first token may be 40 ms too late"
    assert shared(10, 10, 50, 50, 90, 90, 130, 130) == "kernel", "a server that sends two at a time"
    assert shared(10, 30, 30, 50, 70, 70) == "kernel", "one or two in a step"


async def test_back_pressure(monkeypatch):
    """Without it a server that sends faster than Python takes would fill the memory. Nothing is lost by waiting."""
    monkeypatch.setattr(native, "MAX_HELD_ONE_BYTES", 64 << 10)
    piece = b"data: " + b"x" * 50_000 + b"\n\n"
    async with truth_server(stream([piece] * 200)) as server:
        client = RawClient(Target(url=server.url), native.NativeReader)
        task = asyncio.ensure_future(exchange_of(client))
        await asyncio.sleep(0.05)
        time.sleep(0.2)  # noqa: ASYNC251  # Python does not take
        exchange = await task
        await client.close()
    assert b"".join(read[1] for read in exchange.all_reads()) == piece * 200
    assert len(exchange.packed) > 50, "taken in parts of the size that may be held"


def descriptors():
    """Open files of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_many_requests_leave_nothing():
    """Without it a long run would grow: memory or descriptors kept for connections that are gone."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    answer = plain("200 OK", b"".join(GOOD), Content_Type="text/event-stream", Connection="close").head

    def serve():
        while True:
            connection, _ = listener.accept()
            with connection:
                if not connection.recv(65536):
                    return
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
    client = RawClient(Target(url=url), native.NativeReader)

    async def many(n):
        for first in range(0, n, 20):
            for exchange in await asyncio.gather(*[exchange_of(client, i) for i in range(first, first + 20)]):
                assert exchange.ending == "eof"
        gc.collect()

    await many(400)
    before, open_before = rss_bytes(), descriptors()
    await many(1200)
    grown = rss_bytes() - before
    assert not client._reader._connections
    assert descriptors() <= open_before + 1  # the one that the server is about to close
    await client.close()
    socket.create_connection(listener.getsockname()).close()
    thread.join()
    listener.close()
    assert grown < 1 << 20, f"{grown} bytes for 1,200 requests"


async def test_a_fork_does_not_end_the_thread():
    """Without it a child process that ends in order would wait for ever for a thread that only its parent has."""
    async with truth_server(stream(GOOD)) as server:
        client = RawClient(Target(url=server.url), native.NativeReader)
        assert (await exchange_of(client)).ending == "eof"
        child = os.fork()
        if child == 0:
            client._reader.c.pdd_close(client._reader.handle)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222  # it ends at once
        assert (await exchange_of(client)).ending == "eof", "and ours goes on"
        await client.close()


async def test_signals_come_to_python():
    """Without it Ctrl-C could be lost in a thread that knows nothing of it."""
    came = asyncio.Event()
    reader = native.NativeReader(asyncio.get_running_loop())
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, came.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(came.wait(), 10)
    asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
    reader.close()


# --- whether it is there


async def test_which_reader(monkeypatch, tmp_path):
    """Without it a missing native reader would be passed over in silence, or a wish for one of them not be heard."""
    loop = asyncio.get_running_loop()
    for value, kind in (("", native.NativeReader), ("native", native.NativeReader), ("python", Poller)):
        monkeypatch.setenv(compiled.VARIABLE, value)
        made = make_reader(loop)
        assert isinstance(made, kind)
        made.close()
    monkeypatch.setenv(compiled.VARIABLE, "fast")
    with pytest.raises(InputError, match="give native or python"):
        make_reader(loop)
    monkeypatch.setattr(compiled, "LIBRARY", tmp_path / "none.so")
    compiled.load.cache_clear()
    try:
        monkeypatch.setenv(compiled.VARIABLE, "native")
        with pytest.raises(WorldError, match="no native reader here"):
            make_reader(loop)
        monkeypatch.delenv(compiled.VARIABLE)
        made = make_reader(loop)
        assert made.name == "python"
        made.close()
    finally:
        compiled.load.cache_clear()


def test_a_library_of_another_source(monkeypatch, tmp_path):
    """Without it a checkout would go on with the reader of yesterday's source."""
    monkeypatch.setattr(compiled, "source_hash", lambda: "0" * 16)
    compiled.compile_library(tmp_path / "other.so")
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "LIBRARY", tmp_path / "other.so")
    compiled.load.cache_clear()
    try:
        assert compiled.why_missing() == "it was compiled from another version of its source"
    finally:
        compiled.load.cache_clear()


def test_without_a_compiler(monkeypatch, tmp_path):
    """Without it an install without a compiler would fail, or leave half a compiled."""
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(compiled.Missing, match="does not work"):
        compiled.compile_library(tmp_path / "x.so")
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(compiled.Missing, match="no C compiler"):
        compiled.compile_library(tmp_path / "x.so")
    assert not list(tmp_path.iterdir())
