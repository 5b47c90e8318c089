"""The three arms as real processes, over real HTTP."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import aiohttp
import pytest
from emulator_specs import build_spec

from pddbench.deploy.emulator.blocks import block_hashes
from pddbench.deploy.emulator.launch import launch
from pddbench.deploy.emulator.tokens import expected_tokens, word
from pddbench.errors import InputError, WorldError
from pddbench.runner.signals import Waiter

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["baseline", "naive", "pdd"])
def deployment(request):
    """A running arm, ten times faster than real."""
    with launch(build_spec(request.param, speed=10.0)) as running:
        yield running


async def stream(session, deployment, ids, max_tokens, **more):
    """(status, events) of a streamed completion."""
    body = {"prompt": ids, "max_tokens": max_tokens, "stream": True, "ignore_eos": True, **more}
    async with session.post(f"{deployment.base_url}/completions", json=body) as reply:
        raw = await reply.read()
    events = [event.removeprefix(b"data: ") for event in raw.split(b"\n\n") if event.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    return [json.loads(event) for event in events[:-1]]


def check_answer(spec, ids, n, events):
    """Text exact, indices complete, closing figures there."""
    seed = block_hashes(ids, spec.block_tokens)[1]
    choices = [event for event in events if event["choices"]]
    assert "".join(event["choices"][0]["text"] for event in choices) == "".join(map(word, expected_tokens(seed, n)))
    assert [event["pdd"]["index"] for event in choices] == list(range(n))
    assert choices[-1]["choices"][0]["finish_reason"] == "length"
    assert events[-1]["usage"]["prompt_tokens"] == len(ids)
    assert events[-1]["usage"]["completion_tokens"] == n
    return events[-1]


async def test_streams_are_exact_and_hits_are_served(deployment):
    """Breaks when a live arm loses or changes tokens under concurrency, or its caches do not hit."""
    spec = deployment.spec
    prompts = [[start * 10_000 + i for i in range(500 + 100 * start)] for start in range(12)]
    usage = {"stream_options": {"include_usage": True}}
    async with aiohttp.ClientSession() as session:
        first = await asyncio.gather(*(stream(session, deployment, ids, 60, **usage) for ids in prompts))
        longer = [[*ids, *range(70)] for ids in prompts]
        second = await asyncio.gather(*(stream(session, deployment, ids, 5, **usage) for ids in longer))
    for ids, events in zip(prompts, first, strict=True):
        last = check_answer(spec, ids, 60, events)
        pipelines = {"baseline": {"P-D"}, "naive": {"P-MD"}, "pdd": {"P-MD", "P-RLD-MD"}}[spec.arm]
        assert last["pdd"]["pipeline"] in pipelines
        if spec.arm != "baseline":
            kv = last["pdd"]["kv"]
            assert kv["ns"] is None or kv["wire_bytes"] == pytest.approx(kv["bytes"] / spec.kv_scale, abs=1)
    if spec.arm == "pdd":
        assert any(events[-1]["pdd"]["handoff"] for events in first)
    for ids, longer_ids, events in zip(prompts, longer, second, strict=True):
        last = check_answer(spec, longer_ids, 5, events)
        assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids) // 64 * 64


async def test_whole_replies_models_health_and_metrics(deployment):
    """Breaks when anybody's OpenAI client, or a probe, does not find what it expects."""
    async with aiohttp.ClientSession() as session:
        body = {"messages": [{"role": "user", "content": "hello there"}], "max_completion_tokens": 3}
        async with session.post(f"{deployment.base_url}/chat/completions", json=body) as reply:
            whole = await reply.json()
        assert len(whole["choices"][0]["message"]["content"].split()) == 3
        assert whole["usage"]["total_tokens"] == 2 + 7 + 3 + 3
        async with session.get(f"{deployment.base_url}/models") as reply:
            entry = (await reply.json())["data"][0]
        assert entry["pdd"]["emulated"] == deployment.spec.arm
        async with session.get(f"{deployment.url}/health") as reply:
            assert reply.status == 200
        async with session.get(f"{deployment.url}/metrics") as reply:
            assert 'pddbench_emulator_requests_total{outcome="ok"}' in await reply.text()
    names = {(process, metric) for process, metric, _ in await asyncio.to_thread(deployment.stats)}
    assert {("router", "late_p99_ns"), ("a", "late_p99_ns"), ("a", "cpu_s")} <= names


async def test_bad_requests_and_paths(deployment):
    """Breaks when an error is not OpenAI's JSON with the right status."""
    async with aiohttp.ClientSession() as session:

        async def status(method, path, data=None):
            async with session.request(method, f"{deployment.url}{path}", data=data) as reply:
                assert "message" in (await reply.json())["error"]
                return reply.status

        assert await status("POST", "/v1/completions", b"{nope") == 400
        assert await status("POST", "/v1/chat/completions", b"{}") == 400
        assert await status("GET", "/v2/models") == 404
        assert await status("GET", "/v1/completions") == 405
        assert await status("POST", "/v1/completions", io.BytesIO(bytes((64 << 20) + 1))) == 413


async def test_a_client_that_disconnects_takes_its_work_along(deployment):
    """Breaks when the emulator goes on decoding for nobody: its load would not be the workload's."""

    def figures():
        return {(process, metric): value for process, metric, value in deployment.stats()}

    before = await asyncio.to_thread(figures)
    async with aiohttp.ClientSession() as session:
        body = {"prompt": list(range(900_000, 900_900)), "max_tokens": 100_000, "stream": True}
        async with session.post(f"{deployment.base_url}/completions", json=body) as reply:
            async for line in reply.content:
                if line.startswith(b"data:"):
                    break
    for _ in range(100):
        after = await asyncio.to_thread(figures)
        if after[("router", "in_flight")] == 0:
            break
        await asyncio.sleep(0.05)
    assert after[("router", "requests_cancelled")] == before.get(("router", "requests_cancelled"), 0) + 1
    await asyncio.sleep(0.2)  # cancels reach cluster B one way of the link later
    tokens = [sum(value for (_, metric), value in (await asyncio.to_thread(figures)).items() if metric == "tokens")]
    await asyncio.sleep(0.2)
    tokens += [sum(value for (_, metric), value in (await asyncio.to_thread(figures)).items() if metric == "tokens")]
    assert tokens[0] == tokens[1]


async def test_bundled_chunks_keep_every_token():
    """Breaks when tokens held back for a full chunk are lost at the seam or at the end."""
    spec = build_spec("pdd", speed=20.0, tokens_per_chunk=8)
    with launch(spec) as running:
        async with aiohttp.ClientSession() as session:
            ids = list(range(2000))
            events = await stream(session, running, ids, 100)
    seed = block_hashes(ids, spec.block_tokens)[1]
    assert "".join(event["choices"][0]["text"] for event in events) == "".join(map(word, expected_tokens(seed, 100)))
    assert len(events) < 20
    assert events[-1]["pdd"]["pipeline"] == "P-RLD-MD"
    assert events[-1]["pdd"]["index"] == 99


def processes_of(parent):
    """Command lines of a process's children."""
    out = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                if int(stat[1]) == parent and stat[0] != "Z":
                    out.append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return out


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def up(*arguments):
    """`pddbench up` as a process that has announced itself."""
    process = subprocess.Popen(
        [sys.executable, "-m", "pddbench", "up", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_up_ends_by_signal_and_leaves_nothing(number, code):
    """Breaks when a killed pddbench leaves emulator processes behind, or a signal's exit code is not the contract's."""
    process, line = up("pdd", "--speed", "5")
    assert "http://127.0.0.1:" in line
    children = processes_of(process.pid)
    assert len(children) == 3
    os.kill(process.pid, number)
    process.communicate()
    assert process.returncode == code
    deadline = time.monotonic() + 10
    while any(map(alive, children)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(alive, children))


def test_a_port_in_use_is_one_sentence():
    """Breaks when a taken port ends in a traceback or another exit code than 2."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        process, _ = up("baseline", "--port", str(taken.getsockname()[1]))
        _, errors = process.communicate()
    assert process.returncode == 2
    assert "is in use" in errors
    assert len(errors.strip().splitlines()) == 1
    with pytest.raises(InputError, match="cannot listen"), launch(build_spec("baseline", host="203.0.113.1")):
        pass


def test_a_part_that_dies_is_noticed():
    """Breaks when a deployment goes on without one of its clusters."""
    with launch(build_spec("pdd")) as running:
        os.kill(running.info["pids"]["b"], signal.SIGKILL)
        deadline = time.monotonic() + 10
        with pytest.raises(WorldError, match="cluster B ended"):
            while time.monotonic() < deadline:
                running.check()
                time.sleep(0.02)


MIXED = {
    "catch_up": {"handoff": "catch_up", "catch_up_tokens": 30, "chunk_tokens": 512, "placement": "prefix"},
    "direct_kv": {"handoff": "direct_kv", "kv_streaming": True, "md_placement": "prefix", "tokens_per_step": 2.0},
}


@pytest.mark.parametrize("name", MIXED)
async def test_other_hand_offs_are_exact_live(name):
    """Breaks when a mechanism that is right in virtual time is not over real sockets."""
    usage = {"stream_options": {"include_usage": True}}
    prompts = [[start * 10_000 + i for i in range(3000)] for start in range(4)]
    with launch(build_spec("pdd", speed=10.0, threshold_s=0.0, **MIXED[name])) as running:
        async with aiohttp.ClientSession() as session:
            answers = await asyncio.gather(*(stream(session, running, ids, 150, **usage) for ids in prompts))
            longer = await stream(session, running, [*prompts[0], *range(70)], 40, **usage)
        check_answer(running.spec, [*prompts[0], *range(70)], 40, longer)
        for ids, events in zip(prompts, answers, strict=True):
            handoff = check_answer(running.spec, ids, 150, events)["pdd"]["handoff"]
            assert handoff["mode"] == name and handoff["token"] > 10
            assert handoff["rounds"] > 1 or name != "catch_up"
        running.check()


def test_a_signal_ends_it_whenever_it_comes():
    """A handler that waits for a lock which its own thread holds never returns: `up` would hang for ever."""
    waiter = Waiter()
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert waiter.wait(30.0) and waiter.exit_code == 143
        os.kill(os.getpid(), signal.SIGINT)
        assert waiter.wait(30.0) and waiter.exit_code == 143, "the first one counts"
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
