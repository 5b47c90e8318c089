"""The native thread sends: at the time asked, whole, on a connection that is still open, or not at all."""

from __future__ import annotations

import asyncio
import errno
import socket
import threading
import time

import pytest
from replay_kit import body, plan, request, result, run
from replay_server import stream, truth_server
from replay_sockets import read_request, served
from replay_streams import last, text

from pddbench.replay import raw
from pddbench.replay.exchange import OWN_FAILURE, Exchange, Target
from pddbench.replay.frames import Answered, Handed, connect_wait_ns
from pddbench.replay.native import reader as native
from pddbench.replay.raw import RawClient

GOOD = [text("a"), text("b", "stop"), last(2)]
MS = 1_000_000
PAYLOAD = b"".join(GOOD)
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%b" % (len(PAYLOAD), PAYLOAD)


async def perform(client, number, data, after_ns):
    """One request that is due in `after_ns`."""
    now_ns = time.monotonic_ns()
    exchange = Exchange(number, now_ns, now_ns + after_ns)
    await client.perform(exchange, data, f"r{number}")
    return exchange


@pytest.fixture
async def client_for():
    """Makes clients with the native thread; closes them."""
    made = []

    def make(url):
        made.append(RawClient(Target(url=url, stall_timeout_s=20), native.NativeReader))
        return made[-1]

    yield make
    for client in made:
        await client.close()


async def test_at_its_time_whatever_the_interpreter_does(client_for):
    """Without it a busy interpreter would hold requests back, or they would leave when they are prepared."""
    arrived = []

    def turn(connection):
        arrived.append(read_request(connection)[1])
        connection.sendall(ANSWER)

    with served(turn) as url:
        task = asyncio.ensure_future(perform(client_for(url), 0, body(0), 100 * MS))
        await asyncio.sleep(0.02)
        time.sleep(1.0)  # noqa: ASYNC251  # the loop is stuck from before the time until long after it
        stuck_until_ns = time.monotonic_ns()
        exchange = await task
    assert exchange.ending == "eof"
    assert exchange.due_ns <= exchange.sent_ns <= arrived[0] < stuck_until_ns - 300 * MS


@pytest.mark.parametrize("unasked", [b"", b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n"])
async def test_an_idle_connection_that_is_closed_before_the_time(client_for, unasked):
    """Without it a request would be lost, or get an answer that was meant for nobody, when the server gives up an idle
    connection between its being chosen and its being used."""  # fmt: skip
    chosen, gone = threading.Event(), threading.Event()

    def closes(connection):
        read_request(connection)
        connection.sendall(ANSWER)
        chosen.wait(10)
        connection.sendall(unasked)

    def answers(connection):
        gone.set()
        read_request(connection)
        connection.sendall(ANSWER)

    with served(closes, answers) as url:
        client = client_for(url)
        assert (await perform(client, 0, body(0), 0)).ending == "eof"
        task = asyncio.ensure_future(perform(client, 1, body(1), 300 * MS))
        await asyncio.sleep(0.02)
        chosen.set()
        exchange = await task
    assert exchange.ending == "eof" and exchange.status == 200 and exchange.error is None
    assert not exchange.reused and gone.is_set()
    assert exchange.sent_ns >= exchange.due_ns


async def test_a_new_connection_that_is_closed_before_the_time(client_for):
    """Without it a server that takes connections and drops them would be asked for ever."""
    with served(lambda connection: None) as url:
        exchange = await perform(client_for(url), 0, body(0), 100 * MS)
    assert exchange.ending == "connection" and "closed the connection before it answered" in exchange.error
    assert exchange.sent_ns >= exchange.began_ns >= exchange.due_ns


async def test_nobody_listens(client_for):
    """Without it a server that is not there would be asked twice, or named as one that closed the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions"
    exchange = await perform(client_for(url), 0, body(0), 50 * MS)
    assert (exchange.ending, exchange.sent_ns) == ("connection", None)
    assert exchange.error.startswith("cannot connect to 127.0.0.1:") and exchange.error.endswith("Connection refused")
    assert time.monotonic_ns() >= exchange.due_ns


async def test_a_name_that_is_looked_up_late(client_for, monkeypatch):
    """Without it the time before a request was due would count as waiting for a connection, and our own lateness be
    negative."""  # fmt: skip

    async def slow(self):
        await asyncio.sleep(0.2)
        return [(socket.AF_INET, ("127.0.0.1", self._port))]

    monkeypatch.setattr(RawClient, "_resolve", slow)
    async with truth_server(stream(GOOD)) as server:
        exchange = await perform(client_for(server.url), 0, body(0), 50 * MS)
    assert exchange.ending == "eof"
    assert exchange.began_ns == exchange.due_ns and exchange.sent_ns - exchange.due_ns > 100 * MS


@pytest.mark.parametrize("later", [True, False])
async def test_no_descriptor_is_left_when_it_is_prepared(client_for, monkeypatch, later):
    """Without it a request would fail before it was due, and the turn after it would begin too early; or it would fail
    although a descriptor was free by then."""  # fmt: skip
    due_ns = time.monotonic_ns() + 60 * MS
    new_socket = raw._new_socket

    def scarce(family):
        if later and time.monotonic_ns() >= due_ns:
            return new_socket(family)
        raise raw._NotConnected(OSError(errno.EMFILE, "too many"))

    monkeypatch.setattr(raw, "_new_socket", scarce)
    async with truth_server(stream(GOOD)) as server:
        exchange = Exchange(0, time.monotonic_ns(), due_ns)
        await client_for(server.url).perform(exchange, body(0), "r0")
    assert exchange.end_ns >= due_ns
    if later:
        assert exchange.ending == "eof" and exchange.sent_ns >= exchange.began_ns >= due_ns
    else:
        assert (exchange.ending, exchange.sent_ns) == ("connection", None)
        assert exchange.error.endswith(f": {OWN_FAILURE}: Too many open files")


async def test_many_share_one_look_up_of_a_name(client_for, monkeypatch):
    """Without it each of many requests that are due at once would ask anew, a handful at a time, and their waiting for
    one another would count as the server's time to connect."""  # fmt: skip
    asked = []

    async with truth_server(stream(GOOD)) as server:
        port = int(server.url.split(":")[2].split("/")[0])

        async def look_up(host, *more, **_):
            asked.append(host)
            await asyncio.sleep(0.05)
            if len(asked) == 1:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
        client = client_for(f"http://a-name.example:{port}/v1/completions")
        failed = await asyncio.gather(*(perform(client, k, body(k), 0) for k in range(20)))
        assert asked == ["a-name.example"]
        assert {one.error for one in failed} == {
            f"cannot connect to a-name.example:{port}: Temporary failure in name resolution"
        }
        good = await asyncio.gather(*(perform(client, k, body(k), 0) for k in range(20)))
    assert asked == ["a-name.example"] * 2
    assert all(one.ending == "eof" and one.sent_ns >= one.due_ns for one in good)


async def test_our_lateness_after_a_look_up_is_ours(client_for, monkeypatch):
    """Without it many requests that waited for one look-up would count their waiting for one another as connecting,
    and the rule on late sends would not see it."""  # fmt: skip
    async with truth_server(stream(GOOD)) as server:
        port = int(server.url.split(":")[2].split("/")[0])
        loop = asyncio.get_running_loop()

        async def look_up(*_, **__):
            await asyncio.sleep(0.05)
            loop.call_soon(time.sleep, 0.3)  # before those who wait come to their turn
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(loop, "getaddrinfo", look_up)
        exchange = await perform(client_for(f"http://a-name.example:{port}/v1/completions"), 0, body(0), 0)
    assert exchange.ending == "eof"
    assert exchange.began_ns - exchange.due_ns > 290 * MS, "we came late"


@pytest.mark.skipif(not socket.has_ipv6, reason="Python was built without IPv6")
async def test_ipv6(client_for):
    """Without it a request could go to another address than the one that was given."""
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    got = []

    def serve():
        connection, _ = listener.accept()
        with connection:
            got.append(read_request(connection)[0])
            connection.sendall(ANSWER)

    thread = threading.Thread(target=serve)
    thread.start()
    port = listener.getsockname()[1]
    exchange = await perform(client_for(f"http://[::1]:{port}/v1/completions"), 0, body(0), 50 * MS)
    thread.join(20)
    listener.close()
    assert exchange.ending == "eof" and got == [body(0)]


def full_server():
    """A server whose queue is full: the next connection waits until there is room; it and what fills it."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    fillers = []
    for _ in range(2):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    time.sleep(0.05)
    return listener, fillers


async def test_a_connection_that_takes_time(client_for):
    """Without it the handshake would count as our own lateness, or not at all, and a stop could come too late."""
    listener, fillers = full_server()

    def serve():
        time.sleep(0.3)
        for _ in fillers:  # one of them at most was let in; the other's turn comes with ours
            connection, _ = listener.accept()
            served.append(connection)
            connection.settimeout(0.4)
            try:
                read_request(connection)
            except (TimeoutError, AssertionError):
                continue
            connection.sendall(ANSWER)
            return
        connection, _ = listener.accept()
        served.append(connection)
        connection.settimeout(5)
        read_request(connection)
        connection.sendall(ANSWER)

    served = []
    thread = threading.Thread(target=serve)
    thread.start()
    client = client_for(f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions")
    exchange = await perform(client, 0, body(0), 30 * MS)
    thread.join(20)
    for each in [*served, *fillers, listener]:
        each.close()
    assert exchange.ending == "eof", exchange.error
    assert exchange.due_ns <= exchange.began_ns < exchange.sent_ns
    handed = Handed(0, exchange.handed_ns, 0, 0, exchange.due_ns, 0, "", False)
    wait_ns = connect_wait_ns(
        handed, Answered(0, exchange.sent_ns, False, None, 200, "", "", began_ns=exchange.began_ns)
    )
    assert wait_ns > 200 * MS, "a handshake that had to be tried again"


async def test_no_connection_in_time(client_for):
    """Without it a server that takes no connection would be waited for until the end, or counted as silent."""
    listener, fillers = full_server()
    client = client_for(f"http://127.0.0.1:{listener.getsockname()[1]}/v1/completions")
    client._target = Target(url=client._target.url, stall_timeout_s=0.2)
    exchange = await perform(client, 0, body(0), 30 * MS)
    for each in [*fillers, listener]:
        each.close()
    assert (exchange.ending, exchange.sent_ns) == ("timeout", None)
    assert "no connection to 127.0.0.1" in exchange.error


async def test_a_request_larger_than_the_socket_takes(client_for):
    """Without it the end of a long prompt would be missing, or sent twice."""
    long = bytes(range(256)) * 80_000
    got = []

    def slow(connection):
        time.sleep(0.2)
        got.append(read_request(connection)[0])
        connection.sendall(ANSWER)

    with served(slow) as url:
        exchange = await perform(client_for(url), 0, long, 50 * MS)
    assert exchange.ending == "eof" and got == [long]


async def test_many_leave_in_order_of_their_times(client_for):
    """Without it a timer that was set for one request would be missed by those that come after it, or before it."""
    async with truth_server(stream(GOOD)) as server:
        client = client_for(server.url)
        afters = [(37 * k % 101) * MS + 20 * MS for k in range(101)]
        exchanges = await asyncio.gather(*(perform(client, k, body(k), after) for k, after in enumerate(afters)))
    assert all(exchange.ending == "eof" and exchange.sent_ns >= exchange.due_ns for exchange in exchanges)
    by_due = sorted(exchanges, key=lambda exchange: exchange.due_ns)
    assert [e.sent_ns for e in by_due] == sorted(e.sent_ns for e in exchanges)


async def test_each_leaves_once_and_not_before_its_time(client_for):
    """Without it one that was sent twice, never, or early with a stamp that says otherwise, would go unseen."""
    async with truth_server(stream(GOOD)) as server:
        client = client_for(server.url)
        for first in (0, 40):  # on new connections, then on those
            numbers = range(first, first + 40)
            done = await asyncio.gather(*(perform(client, k, body(k), (30 + k % 7) * MS) for k in numbers))
            assert [one.ending for one in done] == ["eof"] * 40
            assert all(server.of(f"r{one.index}").received_ns >= one.sent_ns >= one.due_ns for one in done)
        assert any(one.reused for one in done)
        await perform(client, 80, body(80), 50 * MS)  # a second one of them would have come by now
    assert sorted(seen.request_id for seen in server.seen) == sorted(f"r{k}" for k in range(81))


async def test_given_up_before_its_time_it_never_leaves(client_for):
    """Without it a run that is stopped would go on sending."""
    async with truth_server(stream(GOOD)) as server:
        client = client_for(server.url)
        assert (await perform(client, 0, body(0), 0)).ending == "eof"
        now_ns = time.monotonic_ns()
        given_up = Exchange(1, now_ns, now_ns + 60 * MS)
        task = asyncio.ensure_future(client.perform(given_up, body(1), "r1"))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        later = await perform(client, 2, body(2), 150 * MS)  # longer than the other had to wait
        assert (given_up.ending, given_up.sent_ns, later.ending) == ("cancelled", None, "eof")
        assert [seen.request_id for seen in server.seen] == ["r0", "r2"]


async def test_a_run_that_is_stopped_before_a_request_left(tmp_path):
    """Without it what was prepared and not sent would count as sent, and as lost by the server."""
    stop = asyncio.Event()
    requests = [request(0), *(request(k, start_ns=400 * MS + k * MS // 10) for k in range(1, 40))]
    loop = asyncio.get_running_loop()

    def stop_soon(t0_ns):
        """They are prepared by then, and not due."""
        loop.call_later((t0_ns - time.monotonic_ns()) / 1e9 + 0.392, stop.set)

    async with truth_server(stream(GOOD)) as server:
        end, spool = await run(plan(*requests), server.url, tmp_path, stop=stop, on_zero=stop_soon)
    sent = [i for i in range(40) if spool.request(i).not_sent is None]
    assert end.status == "interrupted" and (end.counts.sent, end.counts.not_sent) == (len(sent), 40 - len(sent))
    assert sorted(seen.request_id for seen in server.seen) == sorted(f"r{i}" for i in sent)
    for i in range(40):
        one = spool.request(i)
        assert (one.handed is None) == (i not in sent)
        if i not in sent:
            assert one.not_sent.reason == "interrupted" and (one.not_sent.due_ns or spool.t0_ns) >= spool.t0_ns
    assert result(spool, 0).outcome == "ok"


async def test_thousands_at_once(tmp_path):
    """Without it a burst would stop at the number that is sent in one turn."""
    async with truth_server(stream(GOOD)) as server:
        end, spool = await run(plan(*(request(i, start_ns=100 * MS) for i in range(1000))), server.url, tmp_path)
    assert (end.counts.sent, end.counts.failed) == (1000, 0)
    assert all(result(spool, i).outcome == "ok" for i in range(1000))
    assert all(spool.request(i).answered.sent_ns >= spool.request(i).handed.due_ns for i in range(1000))
