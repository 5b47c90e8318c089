"""Emulated deployments over real packets: KV crosses as bytes, tokens stay exact, and only KV and control cross."""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
import three_arms

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "emulator"))

from emulator_specs import build_spec
from traces_left import Marked, host_devices, named_namespaces

from pddbench.deploy.emulator.blocks import block_hashes
from pddbench.deploy.emulator.launch import launch
from pddbench.deploy.emulator.tokens import expected_tokens, word
from pddbench.wan.link import wire_link
from pddbench.wan.probe import probe
from pddbench.wan.transfer import transfer_s

pytestmark = [pytest.mark.usefixtures("tun_works"), pytest.mark.slow]


@pytest.fixture(scope="module", params=["naive", "pdd"])
def deployment(request):
    """An arm over user-space packets; its link is measured when it starts."""
    spec = build_spec(request.param, speed=4.0, wan_backend="tun", wan={"one_way_ms": 20.0, "rate_mbit": 2000.0})
    with launch(spec) as running:
        yield running


async def ask(session, deployment, ids, max_tokens, leave_after=None):
    """Events of a streamed completion; `leave_after`: the client goes after so many seconds."""
    body = {"prompt": ids, "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    async with session.post(f"{deployment.base_url}/completions", json=body) as reply:
        if leave_after is not None:
            await asyncio.sleep(leave_after)
            return []
        raw = await reply.read()
    events = [event.removeprefix(b"data: ") for event in raw.split(b"\n\n") if event.startswith(b"data: ")]
    assert events[-1] == b"[DONE]"
    return [json.loads(event) for event in events[:-1]]


def figures(deployment):
    return {(process, metric): value for process, metric, value in deployment.stats()}


def text(events):
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


async def test_kv_crosses_the_link_as_bytes_and_tokens_stay_exact(deployment):
    """Breaks when KV is computed and not sent, or tokens are lost where one stage hands over to another."""
    spec, before = deployment.spec, deployment.guard.link.counters()
    prompts = [[start * 10_000 + i for i in range(500 + 1000 * start)] for start in range(4)]
    async with aiohttp.ClientSession() as session:
        answers = await asyncio.gather(*(ask(session, deployment, ids, 150) for ids in prompts))
    for ids, events in zip(prompts, answers, strict=True):
        seed = block_hashes(ids, spec.block_tokens)[1]
        assert text(events) == "".join(map(word, expected_tokens(seed, 150)))
    kv = [events[-1]["pdd"]["kv"] for events in answers]
    crossed = deployment.guard.link.counters()["a_to_b"]["bytes"] - before["a_to_b"]["bytes"]
    sent = sum(each["bytes"] for each in kv) / spec.kv_scale
    assert sent < crossed < 1.15 * sent + 100_000, "headers and control, not more"
    found = figures(deployment)
    assert found["b", "kv_received_wire_bytes"] == found["a", "kv_sent_wire_bytes"] == pytest.approx(sent, abs=4)
    if spec.arm == "pdd":
        assert any(events[-1]["pdd"]["handoff"] for events in answers)


async def test_a_transfer_takes_the_time_that_tcp_takes(deployment):
    """Breaks when KV is late or early by more than the law: waits, and the router's choice, would be wrong."""
    spec = deployment.spec
    output = 5 if spec.arm == "naive" else 150  # a relay that ends first leaves the transfer untold
    law = wire_link(spec.link, spec.kv_scale, spec.speed)
    async with aiohttp.ClientSession() as session:
        for tokens in (1000, 6000):
            best = float("inf")
            for again in range(3):  # the least of a few: others work on this machine too
                ids = [(tokens * 7 + again * 100_000 + i) % 1_000_003 for i in range(tokens)]
                kv = (await ask(session, deployment, ids, output))[-1]["pdd"]["kv"]
                best = min(best, kv["ns"] / 1e9 / spec.speed)
            assert best == pytest.approx(transfer_s(law, kv["wire_bytes"]), rel=0.25), (tokens, kv)


async def test_a_client_that_leaves_takes_its_transfer_along(deployment):
    """Breaks when KV of abandoned requests goes on to fill the line, or a cut connection ends the deployment."""
    before = figures(deployment)["a", "kv_sent_wire_bytes"]
    ids = [5_000_000 + i for i in range(60_000)]  # 2.4 GB: seconds on this line
    async with aiohttp.ClientSession() as session:
        await ask(session, deployment, ids, 50, leave_after=0.8)
        await asyncio.sleep(0.5)
        sent = figures(deployment)["a", "kv_sent_wire_bytes"] - before
        assert sent < 0.9 * 60_000 * spec_bytes(deployment)
        events = await ask(session, deployment, list(range(7_000_000, 7_001_000)), 20)
    assert len([event for event in events if event["choices"]]) == 20
    deployment.check()


async def test_clients_that_leave_at_any_moment_leave_nothing_running(deployment):
    """Breaks when word of a client that left overtakes its KV: cluster B would decode for nobody, for ever."""
    draw = random.Random(1)
    async with aiohttp.ClientSession() as session:
        leaving = (
            ask(session, deployment, list(range(n * 10_000, n * 10_000 + 400)), 5000, draw.uniform(0.05, 0.7))
            for n in range(800, 824)
        )
        await asyncio.gather(*leaving)
        for _ in range(50):
            before = figures(deployment)
            await asyncio.sleep(0.2)
            after = figures(deployment)
            if all(before.get((side, "tokens")) == after.get((side, "tokens")) for side in "ab"):
                break
        else:
            pytest.fail("tokens are still made for clients that have left")
    assert after["router", "in_flight"] == 0


def spec_bytes(deployment):
    """Wire bytes of a token's KV."""
    return deployment.spec.model.kv_token_bytes / deployment.spec.kv_scale


async def test_the_link_is_in_the_facts(deployment):
    """Breaks when a manifest cannot say over which link, with which congestion control, a run went."""
    facts = deployment.end_link(load=False)
    json.dumps(facts)
    assert facts["backend"] == "tun" and facts["congestion_control"] == "cubic"
    assert [each["name"] for each in facts["before"]["findings"]] == ["rtt median", "delay a_to_b", "throughput"]
    assert facts["beside"]["probes"] >= 1 and facts["after"]["findings"]
    assert facts["directions"]["a_to_b"]["delay_ms"] == 5.0, "20 ms at speed 4"


def test_three_arms_over_the_best_that_works_here(tmp_path):
    """`run --wan auto` would take the model where packets work, or its packets not slow the KV that crosses."""
    best = "netem" if probe("netem").works else "tun"
    done = three_arms.run(tmp_path, "auto")
    three_arms.check(done, tmp_path, best)
    assert "chosen by auto" in " ".join(done.stdout.split("\n\n")[0].split())


def test_sigkill_of_a_deployment_at_ten_random_moments_leaves_nothing():
    """A killed run must leave no process, namespace or device on somebody's machine."""
    before, draw = (host_devices(), named_namespaces()), random.Random()
    words = ["-m", "pddbench", "up", "pdd", "--wan", "tun", "--speed", "4"]
    owners = [Marked(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(10)]
    moments = sorted((time.monotonic() + draw.uniform(0.3, 9.0), n) for n in range(10))
    for at, n in moments:  # they start, measure their links and serve at the same time
        while time.monotonic() < at:
            owners[n].alive()
        owners[n].popen.kill()
        owners[n].popen.wait()
    for owner in owners:
        assert owner.left() == []
    assert (host_devices(), named_namespaces()) == before


def test_ctrl_c_ends_a_deployment_without_a_word_from_its_helpers():
    """Ctrl-C reaches the whole group: a measuring process that dies by it would look like a broken link."""
    words = ["-m", "pddbench", "up", "pdd", "--wan", "tun", "--speed", "4", "--rate-mbit", "1000"]
    owner = Marked(words, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = [owner.popen.stdout.readline() for _ in range(5)]
    assert said[2].startswith("WAN: tun, user-space packets: national, changed") and said[3].startswith(
        "measured before"
    )
    owner.alive()
    os.killpg(owner.popen.pid, signal.SIGINT)
    _, errors = owner.popen.communicate(timeout=60)
    assert owner.popen.returncode == 130 and errors == ""
    assert owner.left() == []
