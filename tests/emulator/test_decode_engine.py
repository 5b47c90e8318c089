"""The engine in closed form against one that goes step by step and token by token, written for this test alone."""

from __future__ import annotations

import math
import random
from collections import deque
from types import SimpleNamespace

import pytest

from pddbench.deploy.emulator.decode import Decoder
from pddbench.deploy.emulator.prefill import Prefill, prefill_s
from pddbench.deploy.emulator.spec import Chip, RoleSpec
from pddbench.deploy.emulator.steps import steps_s, steps_until
from pddbench.deploy.emulator.streams import Stream
from pddbench.wan.clock import VirtualClock

CHIP = Chip("c", 0.4, 1.5e-5, 4e-10, 0.02, 0.001, 0.3, 1e-4, decode_c2_s=2e-8, prefill_step_s=0.02)


class Oracle:
    """One decode instance, step by step. `ops`: (time, what, rid, ...), sorted: `join` (context, limit, ids to extend),
    `take`, `leave`, `look`, and `extend` (ids of a stream that is elsewhere)."""  # fmt: skip

    def __init__(self, role, per_step, ops):
        self.role, self.per, self.ops = role, per_step, deque(ops)
        self.t, self.batch, self.waiting, self.extends, self.looks = 0.0, {}, [], [], set()
        self.tokens, self.taken, self.preemptions, self.peak_kv = {}, {}, 0, 0.0
        self.extended, self.looked = {}, {}
        while self.ops or self.batch or self.waiting or self.extends:
            self.turn()

    def turn(self):
        if not self.batch and not self.waiting and not self.extends:
            self.t = max(self.t, self.ops[0][0])
        self.read(self.t, set(), set())
        riding, self.extends = self.extends, []
        extra_s = sum(CHIP.extend_e1_s * tokens for _, tokens in riding) + self.admit()
        self.preempt()
        if self.batch or riding:
            self.step(extra_s)
        self.extended |= {rid: self.t for rid, _ in riding}

    def read(self, upto, gone, taken):
        while self.ops and self.ops[0][0] <= upto:
            _, what, rid, *rest = self.ops.popleft()
            waits = next((one for one in self.waiting if one.rid == rid), None)
            if what == "extend":
                self.extends.append((rid, *rest))
            elif what == "look":
                if waits is not None:
                    self.looked[rid] = waits.made
                elif rid in self.batch:
                    self.looks.add(rid)
            elif what == "join":
                context, limit, extend = rest
                self.tokens[rid] = []
                one = SimpleNamespace(rid=rid, context=context, limit=limit, extend=extend, made=0, lost=False)
                self.waiting.append(one)
            elif waits is not None:
                self.waiting.remove(waits)
                if what == "take":
                    self.taken[rid] = waits.made
            elif rid in self.batch:
                (taken if what == "take" else gone).add(rid)

    def kv(self):
        return sum(one.context + one.before + one.steps * self.per for one in self.batch.values())

    def room(self):
        return math.inf if self.role.kv_tokens is None else self.role.kv_tokens + 1e-6

    def admit(self):
        extra_s = 0.0
        while self.waiting and len(self.batch) < (self.role.max_batch or math.inf):
            one = self.waiting[0]
            need = self.kv() + one.context + one.made + self.per * (len(self.batch) + 1)
            if self.batch and need > self.room():
                break
            self.waiting.pop(0)
            extra_s += CHIP.extend_e1_s * one.extend
            one.extend = 0
            if one.lost:
                extra_s += prefill_s(CHIP, one.context + one.made, 0)
                one.lost = False
            one.before, one.steps = one.made, 0
            self.batch[one.rid] = one
        return extra_s

    def preempt(self):
        while len(self.batch) > 1 and self.kv() + self.per * len(self.batch) > self.room():
            one = self.batch.pop(next(reversed(self.batch)))
            one.lost = True
            self.waiting.insert(0, one)
            self.preemptions += 1

    def step(self, extra_s):
        n = len(self.batch)
        self.t += CHIP.decode_c0_s + CHIP.decode_c1_s * n + CHIP.decode_c2_s * self.kv() + extra_s
        gone, taken = set(), set()
        self.read(self.t, gone, taken)
        for one in self.batch.values():
            one.steps += 1
        self.peak_kv = max(self.peak_kv, self.kv())
        for rid, one in list(self.batch.items()):
            if rid in gone:
                del self.batch[rid]
                continue
            upto = min(one.limit, one.before + math.floor(one.steps * self.per + 1e-9))
            self.tokens[rid] += [self.t] * (upto - one.made)
            one.made = upto
            if one.made < one.limit and rid in self.looks:
                self.looked[rid] = one.made
            if one.made >= one.limit or rid in taken:
                del self.batch[rid]
            if rid in taken:
                self.taken[rid] = one.made
        self.looks = set()


def script(rng):
    """A random script of joins, leaves, departures, looks and extends on one instance with random bounds."""
    t, ops = 0.0, []
    kv_tokens, longest = rng.choice([(None, 5000), (5200, 5000), (12_000, 5000), (320, 200), (500, 200)])
    for rid in range(rng.randint(1, 14)):
        t += rng.expovariate(rng.choice([0.3, 3, 50]))
        ops.append((t, "join", rid, rng.randint(10, longest), rng.randint(1, 90), rng.choice([0, 0, 30, 200])))
        if rng.random() < 0.4:
            ops.append((t + rng.random() * 3, rng.choice(["take", "leave"]), rid))
        if rng.random() < 0.3:
            ops.append((t + rng.random() * 3, "look", rid))
        if rng.random() < 0.3:
            ops.append((t + rng.random() * 4, "extend", rid, rng.randint(1, 300)))
    role = RoleSpec(CHIP, 1, kv_tokens=kv_tokens, max_batch=rng.choice([None, None, 3]))
    return role, rng.choice([1.0, 1.0, 1.7, 3.0]), sorted(ops, key=lambda op: op[0])


def closed_form(role, per_step, ops, by_token):
    """The same script on the engine: times of tokens, what was taken, looked at and extended, the decoder."""
    clock, tokens, taken, stretches, extended, looked = VirtualClock(), {}, {}, [], {}, {}

    def on_step(step):
        for stream, _, _ in step:
            tokens[stream.rid].append(clock.now())

    decoder = Decoder(clock, role, on_step, lambda stream: None, None if by_token else stretches.append, per_step)

    def join(rid, context, limit, extend):
        tokens[rid] = []
        decoder.add(Stream(rid, rid, limit, () if by_token else 0, extend, context, by_token))

    def take(rid):
        decoder.take(rid, lambda stream: taken.setdefault(rid, stream.made))

    def extend(rid, ids):
        decoder.extend(ids, lambda: extended.setdefault(rid, clock.now()))

    def look(rid):
        decoder.look(rid, lambda stream: looked.setdefault(rid, stream.made))

    ways = {"join": join, "take": take, "leave": decoder.discard, "extend": extend, "look": look}
    for at, what, *rest in ops:
        clock.call_at(at, ways[what], *rest)
    clock.run()
    for stretch in stretches:
        steps = [math.ceil((i + 1) / per_step - 1e-9) - 1 for i in range(stretch.count)]
        assert len(tokens[stretch.rid]) == stretch.first
        tokens[stretch.rid] += [float(stretch.log.ends_s()[stretch.step + step]) for step in steps]
    return tokens, taken, extended, looked, decoder


@pytest.mark.parametrize("part", range(8))
def test_closed_form_is_step_by_step(part):
    """Without it, a jump over steps could end in another state than the steps: every simulated figure would be off."""
    preempted = 0
    for seed in range(part * 250, part * 250 + 250):
        role, per_step, ops = script(random.Random(seed))
        truth = Oracle(role, per_step, ops)
        for by_token in (False, True) if seed % 5 == 0 else (False,):
            tokens, taken, extended, looked, decoder = closed_form(role, per_step, ops, by_token)
            assert extended == pytest.approx(truth.extended, abs=1e-6), seed
            assert looked == truth.looked, seed
            assert {rid: len(times) for rid, times in tokens.items()} == {
                rid: len(times) for rid, times in truth.tokens.items()
            }, seed
            for rid, times in truth.tokens.items():
                assert tokens[rid] == pytest.approx(times, abs=1e-6), (seed, rid)
            # one that ended at the very step at which it was to be taken is handed out as finished
            assert truth.taken == taken, seed
            assert decoder.preemptions == truth.preemptions, seed
            assert decoder.peak_kv_tokens == pytest.approx(truth.peak_kv)
            assert role.kv_tokens is None or decoder.peak_kv_tokens <= role.kv_tokens + 1e-6
            assert not decoder._where and not any(one.load or one.batch for one in decoder._instances)
        preempted += truth.preemptions
    assert preempted > 20


def test_steps_and_time_are_inverse():
    """Without it, a stream would join a step too early or too late."""
    rng = random.Random(1)
    for _ in range(3000):
        first_s, growth_s, steps = rng.uniform(1e-3, 0.1), rng.choice([0.0, 1e-12, 1e-6, 1e-3]), rng.randint(1, 5000)
        end_s = steps_s(first_s, growth_s, steps)
        assert steps_until(first_s, growth_s, end_s) == steps
        assert steps_until(first_s, growth_s, end_s + 1e-6) == steps + 1
        assert steps_until(first_s, growth_s, end_s - 1e-6) == steps


def test_a_look_sees_the_stream_at_a_step_boundary():
    """Without it, catch-up would send ids that RLD had not made yet, or leave some out."""
    clock, seen = VirtualClock(), []
    decoder = Decoder(clock, RoleSpec(CHIP, 1), lambda step: None, lambda stream: None, lambda stretch: None)
    decoder.add(Stream(1, 1, 100, 0, by_token=False))
    step_s = CHIP.decode_c0_s + CHIP.decode_c1_s
    clock.call_at(10.5 * step_s, decoder.look, 1, lambda stream: seen.append((stream.made, clock.now())))
    clock.run()
    assert seen[0][0] == 11 and seen[0][1] == pytest.approx(11 * step_s, rel=1e-4)


def test_a_lost_instance_keeps_whole_steps_only():
    """Without it, ids handed on after a loss would hold one that its client never got, or lack one that it got."""
    for by_token in (True, False):
        clock, out = VirtualClock(), []
        decoder = Decoder(
            clock, RoleSpec(CHIP, 2), out.append, lambda stream: None, None if by_token else lambda stretch: None
        )
        for rid in range(4):
            decoder.add(Stream(rid, rid, 100, () if by_token else 0, by_token=by_token))
        clock.run(0.02 * 10.5)
        lost = decoder.lose_last()
        assert sorted(stream.rid for stream in lost) == [1, 3]
        assert {stream.rid: stream.made for stream in lost} == {1: 9, 3: 8}  # 21 ms alone, then 22 ms together
        assert decoder.loads == [2]


def chunked(chunk, packing, prompts, step_s=0.02):
    """Ends of prompts (arrival, fresh, prefix) on one prefill instance, and its steps."""
    clock, ends = VirtualClock(), {}
    chip = Chip("c", 0.0, 1.5e-5, 0.0, 0.02, 0.001, 0.3, 1e-4, prefill_step_s=step_s)
    prefill = Prefill(clock, RoleSpec(chip, 1), chunk_tokens=chunk, packing=packing)
    for rid, (at, fresh, prefix) in enumerate(prompts):
        clock.call_at(
            at,
            prefill.submit,
            rid,
            lambda _, f=fresh, p=prefix: (f, p),
            lambda _, rid=rid: ends.setdefault(rid, clock.now()),
        )
    clock.run()
    return ends, prefill.steps


def test_chunks_fill_their_budget():
    """Without it, tail chunks would cost whole steps although the next prompt could fill them, or the other way."""
    prompts = [(0.0, 1500, 0)] * 4
    ends, steps = chunked(1000, True, prompts)
    assert steps == 6 and ends[3] == pytest.approx(6 * 0.02 + 6000 * 1.5e-5)
    ends, steps = chunked(1000, False, prompts)
    assert steps == 8 and ends[3] == pytest.approx(8 * 0.02 + 6000 * 1.5e-5)
    ends, steps = chunked(0, True, prompts)
    assert steps == 4 and ends[3] == pytest.approx(6000 * 1.5e-5)
