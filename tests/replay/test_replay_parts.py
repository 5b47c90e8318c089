"""The small parts: pacer, schedule, bodies, URLs, headers, frames."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_kit import MS, plan, request

from pddbench.errors import InputError
from pddbench.replay import frames, pace
from pddbench.replay.bodies import BodyStore
from pddbench.replay.exchange import Target, endpoint_url
from pddbench.replay.headers import request_headers, secrets_of
from pddbench.replay.schedule import Schedule


@pytest.fixture(params=["timerfd", "loop"])
def timers(request, monkeypatch):
    """Both kinds of timer."""
    if request.param == "loop":
        monkeypatch.setattr(pace._Timer, "create", staticmethod(lambda: None))
    return request.param


async def test_pacer_calls_in_order_and_never_early(timers):
    """Without it requests could leave before they are due, or in another order."""
    pacer = pace.Pacer(asyncio.get_running_loop())
    start, seen = time.monotonic_ns(), []
    done = asyncio.Event()
    for k in (30, 10, 20, 10):
        pacer.call_at(start + k * MS, lambda k=k: seen.append((k, time.monotonic_ns())))
    pacer.call_at(start + 15 * MS, lambda: seen.append("cancelled")).cancel()
    pacer.call_at(start + 40 * MS, done.set)
    await done.wait()
    early_by = 1_100_000 if timers == "loop" else 0  # the fallback is as exact as the loop's own clock
    assert [k for k, _ in seen] == [10, 10, 20, 30]
    assert all(t >= start + k * MS - early_by for k, t in seen)
    await pacer.until(start)
    await pacer.until(time.monotonic_ns() + 5 * MS)
    pacer.close()


async def test_pacer_survives_a_callback_that_fails(timers):
    """Without it one error would stop the whole schedule."""
    loop = asyncio.get_running_loop()
    errors = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    pacer, done = pace.Pacer(loop), asyncio.Event()
    now = time.monotonic_ns()
    pacer.call_at(now + MS, lambda: 1 / 0)
    pacer.call_at(now + 2 * MS, done.set)
    await asyncio.wait_for(done.wait(), 30)
    assert len(errors) == 1
    pacer.close()


async def test_until_can_be_cancelled(timers):
    """Without it a stopped run would keep a timer, or wake a dead future."""
    pacer = pace.Pacer(asyncio.get_running_loop())
    task = asyncio.ensure_future(pacer.until(time.monotonic_ns() + 10**12))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await pacer.until(time.monotonic_ns() + MS)
    pacer.close()


@given(st.data())
def test_every_request_of_a_dag_is_released_once_after_its_parents(data):
    """Without it a request could be sent twice, never, or before a parent."""
    n = data.draw(st.integers(1, 12))
    requests = [
        request(i, parents=tuple(data.draw(st.sets(st.integers(0, i - 1), max_size=3)))) if i else request(0)
        for i in range(n)
    ]
    schedule = Schedule(plan(*requests), range(n), 1.0)
    waiting, ended, clock = list(schedule.roots), [], 0
    while waiting:
        index = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        assert set(requests[index].parents) <= set(ended)
        ended.append(index)
        clock += 10
        for child, times in schedule.release(index, clock):
            assert times.ready_ns == clock <= times.due_ns
            waiting.append(child)
    assert sorted(ended) == list(range(n))


def test_a_failed_parent_takes_all_that_depend_on_it():
    """Without it an abandoned session could leave requests waiting for ever."""
    requests = [request(0), request(1, parents=(0,)), request(2, parents=(1,)), request(3), request(4, parents=(2, 3))]
    schedule = Schedule(plan(*requests), range(5), 1.0)
    assert schedule.drop(0) == [1, 2, 4]
    assert schedule.release(3, 5) == []


def test_roots_are_sent_by_start_not_by_place():
    """Without it a trace that is not sorted would be sent late."""
    requests = [request(0, start_ns=30), request(1, start_ns=10), request(2, start_ns=20), request(3, start_ns=10)]
    assert list(Schedule(plan(*requests), range(4), 1.0).roots) == [1, 3, 2, 0]


def settle(store, *indices):
    """Wait until bodies are made."""
    deadline = time.monotonic() + 60
    while not store.ready(list(indices)):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_bodies_are_made_ahead_soonest_first():
    """Without it a long prompt would be encoded on the send path."""
    made, gate = [], threading.Event()

    def body(index):
        gate.wait()
        made.append(index)
        return b"%d" % index

    store = BodyStore(body)
    now = time.monotonic_ns()
    store.expect(7)
    store.expect(5)
    store.expect(2, now + 2 * MS)
    store.expect(1, now + MS)
    store.expect(9, now + 3600_000 * MS)
    gate.set()
    settle(store, 1, 2, 5, 7)
    made.remove(7)  # may have begun before the others were known
    assert made == [1, 2, 5]
    assert store.take(1)[::2] == (b"1", False)
    assert store.take(9)[::2] == (b"9", True)
    assert store.late == 1
    store.expect(2, now)
    store.forget(5)
    store.close()
    assert made == [1, 2, 5, 9], "nothing is made twice"


def test_a_body_that_cannot_be_made_is_raised_to_its_taker():
    """Without it an error in the thread would be lost, or end the thread for all others."""
    store = BodyStore(lambda index: b"%d" % (10 // index))
    store.expect(0, 0)
    store.expect(2, 0)
    settle(store, 0, 2)
    assert store.take(2)[0] == b"5"
    with pytest.raises(ZeroDivisionError):
        store.take(0)
    store.close()


def test_bodies_are_bounded_in_memory(monkeypatch):
    """Without it prompts of a thousand waiting sessions would fill the memory."""
    monkeypatch.setattr("pddbench.replay.bodies.MAX_BYTES", 1000)
    store = BodyStore(lambda index: b"x" * 400)
    for index in range(10):
        store.expect(index, index)
    settle(store, *range(10))
    assert len(store._made) == 3
    assert [store.take(index)[0] for index in range(10)] == [b"x" * 400] * 10
    store.close()


@pytest.mark.parametrize(
    ("base", "endpoint", "url"),
    [
        ("http://h:1/v1", "/v1/completions", "http://h:1/v1/completions"),
        ("http://h:1", "/v1/completions", "http://h:1/v1/completions"),
        ("http://h:1/", "v1/chat/completions", "http://h:1/v1/chat/completions"),
        ("https://h/api/v1/", "/v1/chat/completions", "https://h/api/v1/chat/completions"),
        ("https://h/api", "/v1/completions", "https://h/api/v1/completions"),
        ("https://h/v1/completions", "/v1/completions", "https://h/v1/completions"),
        ("https://h/x?api-version=2", "/v1/completions", "https://h/x/v1/completions?api-version=2"),
        ("h:8000", "/v1/completions", "http://h:8000/v1/completions"),
        ("http://[::1]:5/v1", "/v1/completions", "http://[::1]:5/v1/completions"),
    ],
)
def test_endpoint_urls(base, endpoint, url):
    """Without it /v1 would be doubled, or a path in front of it lost."""
    assert endpoint_url(base, endpoint) == url


@pytest.mark.parametrize("base", ["ftp://h/v1", "http:///v1", "http://h:port/v1", "http://h:99999/v1", ""])
def test_urls_that_cannot_be_used(base):
    """Without it a wrong URL would fail in the middle of a run."""
    with pytest.raises(InputError, match="base URL"):
        endpoint_url(base, "/v1/completions")


def test_headers_and_secrets(monkeypatch):
    """Without it a missing key would be found by the server, or a header's secret not be known as one."""
    target = Target(
        url="http://h", api_key_env="PDDBENCH_TEST_KEY", headers={"X-Api-Token": "abcdef", "X-Team": "blue"}
    )
    monkeypatch.delenv("PDDBENCH_TEST_KEY", raising=False)
    with pytest.raises(InputError, match="PDDBENCH_TEST_KEY"):
        request_headers(target)
    monkeypatch.setenv("PDDBENCH_TEST_KEY", "sk-1234")
    headers = request_headers(target)
    assert headers["Accept-Encoding"] == "identity"
    assert {"sk-1234", "abcdef", "blue"} <= set(secrets_of(target, headers))
    assert "application/json" not in secrets_of(target, headers)
    assert {"long word", "k=1234"} <= set(secrets_of(Target(url="http://u:long%20word@h/v1?k=1234"), {}))
    for bad in ({"X Y": "1"}, {"X": "a\r\nb: c"}):
        with pytest.raises(InputError, match="characters that cannot be sent"):
            request_headers(Target(url="http://h", headers=bad))


def test_frames_survive_packing():
    """Without it a frame could come back as another kind."""
    for frame in (
        frames.Handed(3, 1, 2, 3, 4, 5, "h", True),
        frames.Reads(7, [(1, b"x"), (2, b"y", 3)]),
        frames.Ended(1, 2, "eof", None),
        frames.Closed("complete"),
    ):
        raw = frames.pack(frame)
        length, kind, index = frames.HEAD.unpack_from(raw)
        assert (length, index) == (len(raw) - frames.HEAD.size, getattr(frame, "index", frames.NO_INDEX))
        assert frames.unpack(kind, raw[frames.HEAD.size :]) == frame
