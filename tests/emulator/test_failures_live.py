"""What a client of the real processes sees when ids or a role fail: exact tokens, or an error; as in virtual time."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import msgspec
import pytest
from emulator_specs import build_spec

from pddbench.deploy.emulator.blocks import block_hashes
from pddbench.deploy.emulator.launch import launch
from pddbench.deploy.emulator.spec import RoleChange
from pddbench.deploy.emulator.tokens import expected_tokens, word
from pddbench.runner.role_changes import role_changes

pytestmark = pytest.mark.slow
SPEED = 4.0
TOKENS = 200


def spec_of(roles=None, **more):
    """A pdd deployment whose KV needs about a second of model time."""
    spec = build_spec("pdd", speed=SPEED, threshold_s=0.0, **more)
    changed = {name: msgspec.structs.replace(role, **(roles or {}).get(name, {})) for name, role in spec.roles.items()}
    return msgspec.structs.replace(spec, roles=changed)


class Answer:
    """A streamed answer, read to its end; `on_token(n)` is called for each token."""

    def __init__(self, ids):
        self.ids, self.words, self.stages, self.error = ids, [], [], ""

    async def read(self, session, running, on_token=None):
        """Until the stream ends."""
        body = {"prompt": self.ids, "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
        async with session.post(f"{running.base_url}/completions", json=body) as reply:
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line.removeprefix(b"data: "))
                if "error" in event:
                    self.error = event["error"]["message"]
                elif event["choices"]:
                    self.words.append(event["choices"][0]["text"])
                    self.stages.append(event["pdd"]["stage"])
                    if on_token is not None:
                        await on_token(len(self.words))
        return self

    def check(self, spec):
        """Exact and whole, or exact as far as it goes and an error."""
        seed = block_hashes(self.ids, spec.block_tokens)[1]
        expected = list(map(word, expected_tokens(seed, TOKENS)))
        assert self.words == expected[: len(self.words)]
        assert len(self.words) == TOKENS or self.error, "neither whole nor an error"
        return self


def prompt(number):
    """3,000 ids that no other prompt begins with."""
    return [number * 10_000 + i for i in range(3000)]


async def serve(spec, work):
    """Run `work(running, session)` on a deployment, all of which is alive at its end."""
    with await asyncio.to_thread(launch, spec) as running:
        async with aiohttp.ClientSession() as session:
            out = await work(running, session)
        running.check()
    return out


async def change(session, running, role, count):
    """Instances of a role are lost or added now."""
    async with session.post(f"{running.url}/roles", json={"role": role, "count": count}) as reply:
        assert reply.status == 200, await reply.text()


@pytest.mark.parametrize("fault", [{"ids_late_s": 2.0}, {"ids_lost": 2}, {"ids_lost": 1}, {"MD": {"kv_tokens": 3500}}])
async def test_ids_late_or_lost_and_a_full_md(fault):
    """Without it, what is proven of a virtual hand-off could fail over sockets: a stream that waits for ever."""
    roles = {name: fields for name, fields in fault.items() if name == "MD"}
    spec = spec_of({"MD": {"count": 1} | roles.get("MD", {})}, **({} if roles else fault))

    async def work(running, session):
        return await asyncio.gather(*(Answer(prompt(n)).read(session, running) for n in range(2)))

    for answer in await serve(spec, work):
        answer.check(spec)
        if fault == {"ids_lost": 1}:
            assert "did not answer to the ids" in answer.error and set(answer.stages) == {"rld"}
        else:
            assert not answer.error and set(answer.stages) == {"rld", "md"}


@pytest.mark.parametrize("role", ["RLD", "MD", "P"])
async def test_a_role_goes_and_comes_back_in_the_middle(role):
    """Without it, a lost role could hang clients, or give them tokens of nobody's answer."""
    spec = spec_of()
    count = spec.roles[role].count

    async def work(running, session):
        async def lose(tokens):
            if tokens == (100 if role == "MD" else 10):
                await change(session, running, role, -count)

        first = await Answer(prompt(1)).read(session, running, lose)
        second = await Answer(prompt(2)).read(session, running)
        await change(session, running, role, count)
        return first, second, await Answer(prompt(3)).read(session, running)

    first, second, third = await serve(spec, work)
    for answer in (first, second, third):
        answer.check(spec)
    assert not third.error and len(third.words) == TOKENS, "the role is back"
    if role == "MD":
        assert "gone" in first.error and first.stages[-1] == "md"
        assert not second.error and set(second.stages) == {"rld"}
    elif role == "RLD":
        assert not first.error and set(first.stages) == {"rld", "md"}
        assert not second.error and set(second.stages) == {"md"}
    else:
        assert not first.error and "no instance of P is left" in second.error


async def test_a_change_is_remembered():
    """An instance that was lost during a run left no trace in its manifest."""
    spec = msgspec.structs.replace(spec_of(), changes=(RoleChange(0.001, "RLD", 1), RoleChange(900.0, "RLD", -1)))

    async def work(running, session):
        await change(session, running, "MD", -1)
        return await asyncio.to_thread(running.roles)

    told = await serve(spec, work)
    found = role_changes(spec.changes, told.posted, 0.0, told.now_s)
    assert [(each["role"], each["count"], each["asked_by"], each["reached"]) for each in found] == [
        ("RLD", 1, "changes", True), ("MD", -1, "POST /roles", True), ("RLD", -1, "changes", False)
    ]  # fmt: skip
    assert 0 < found[1]["at_s"] <= told.now_s


async def test_a_change_that_cannot_be_is_refused():
    """Without it, a typo would change nothing in silence, or end a cluster."""

    async def work(running, session):
        for body in ({"role": "X", "count": 1}, {"role": "MD", "count": 0}, {"role": "MD"}, [1]):
            async with session.post(f"{running.url}/roles", json=body) as reply:
                assert reply.status == 400 and "MD" in (await reply.json())["error"]["message"]

    await serve(spec_of(), work)
