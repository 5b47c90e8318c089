"""Random small worlds in virtual time, with every mechanism, bound, loss and delay, and what must hold in all of them.

One seed is one world. The properties are those that a client or an accountant could check from outside: tokens, KV
bytes, what the link carried between any two events, what is kept in memory.
"""

from __future__ import annotations

import random

import msgspec
from emulator_specs import build_spec

from pddbench.deploy.emulator.messages import HandOff
from pddbench.deploy.emulator.spec import RoleChange
from pddbench.deploy.emulator.tokens import expected_tokens
from pddbench.deploy.emulator.virtual import VirtualDeployment

_SWITCHES = {
    "chunk_tokens": [64, 500],
    "chunk_packing": [True, False],
    "tokens_per_step": [1.6, 3.0],
    "rld_cache": [False],
    "drc": [False],
    "placement": ["prefix", "session", "least_loaded"],
    "md_placement": ["prefix"],
    "threshold_tokens": [0, 300],
    "policy": ["three"],
    "relay_tokens": [0, 300],
    "route_by": ["md", "p"],
    "singular": ["oracle", "predictor"],
    "singular_tokens": [400],
    "singular_output_tokens": [40],
    "count_in_flight": [False],
    "kv_flows": [4],
    "kv_warm": [True],
    "kv_streaming": [True],
    "cancel_finished": [True],
    "switch_load": [1.5],
    "ids_late_s": [0.3, 7.0],
}
_BOUNDS = {"count": [1, 1, 2, 4], "kv_tokens": [1160, 1400, 2000], "max_batch": [1, 3], "cache_tokens": [0, 640, 1500],
           "cache_ttl_s": [0.5, 2.0]}  # fmt: skip


def drawn(rng, table, chance):
    """Some of the switches of a table, each with one of its values."""
    return {name: rng.choice(values) for name, values in table.items() if rng.random() < chance}


class Storm:
    """The world of a seed: `run()` it, and everything that must hold is asserted on the way and at its end."""

    def __init__(self, seed):
        rng = self.rng = random.Random(seed)
        kind = rng.choice(["baseline", "naive", *["pdd"] * 5])
        wan = {
            "one_way_ms": rng.choice([0.0, 1.0, 15.0, 400.0]),
            "rate_mbit": rng.choice([0.5, 50.0, 200.0, 500.0, 10_000.0]),
        }
        spec = build_spec(
            kind,
            wan=wan,
            threshold_s=rng.choice([0.0, 0.0, 0.05, 0.5]),
            handoff=rng.choice(["one_shot", "catch_up", "catch_up", "dynamic", "direct_kv"]),
            catch_up_tokens=rng.choice([1, 5, 20]),
            **drawn(rng, _SWITCHES, 0.15),
        )
        roles = {name: msgspec.structs.replace(role, **drawn(rng, _BOUNDS, 0.35)) for name, role in spec.roles.items()}
        changes = [
            RoleChange(rng.uniform(0, 6), rng.choice(list(roles)), rng.choice([-2, -1, 1]))
            for _ in range(rng.choice([0, 0, 0, 1, 3]))
        ]
        self.spec = msgspec.structs.replace(spec, roles=roles, changes=tuple(changes))
        self.faults = rng.choice([0.0, 0.0, 0.3, 0.8])  # share of hand-off messages lost, late or doubled
        self.world = VirtualDeployment(self.spec)
        self.requests = []
        for rid in range(rng.randint(1, 10)):
            output, leaves = rng.randint(1, 250), rng.random() < 0.15
            at = rng.uniform(0, 3)
            family = rng.randint(0, 2)
            prompt = [family * 1000 + i for i in range(rng.randint(1, 900))]
            self.world.submit(rid, at, prompt, output)
            if leaves:
                self.world.cancel(rid, at + rng.uniform(0, 6))
            self.requests.append((output, leaves))

    def run(self):
        """Everything that must hold, does."""
        self._disturb_ids()
        self._watch()
        self.world.clock.run()
        for rid, (output, leaves) in enumerate(self.requests):
            self._check_answer(rid, output, leaves)
        self._nothing_left()
        self._check_kv()
        self._both_ends_agree()

    def _disturb_ids(self):
        """Ids handed over get lost, come late or twice; the KV behind them (direct_kv) comes with the link's bytes."""
        deliver = self.world.to_b

        def to_b(message):
            if not isinstance(message, HandOff) or message.kv_bytes or self.rng.random() >= self.faults:
                deliver(message)
                return
            for delay_s in self.rng.choice([[], [self.rng.uniform(0, 9)], [0.0, self.rng.uniform(0, 9)]]):
                again = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=HandOff)
                self.world.clock.call_at(self.world.clock.now() + delay_s, deliver, again)

        self.world.to_b = to_b

    def _check_answer(self, rid, output, leaves):
        """Exact and whole, or exact as far as it goes and an error; one cannot have an error without a cause."""
        answer = self.world.answers[rid]
        assert answer.tokens == expected_tokens(answer.seed, output)[: len(answer.tokens)], f"{rid}: wrong tokens"
        assert answer.times_s == sorted(answer.times_s), f"{rid}: time runs backwards"
        assert answer.reply.complete or answer.error or leaves, f"{rid}: neither whole nor an error"
        if answer.error and not leaves:
            known = self.spec.changes or "KV" in answer.error or (self.faults and "ids" in answer.error)
            assert known, answer.error

    def _nothing_left(self):
        """No request is kept after its end, and no KV memory."""
        a, b = self.world.a, self.world.b
        assert not a._jobs, "a request that ended is kept"
        for decoder in (a.decoder, b.decoder if b else None):
            if decoder is not None:
                assert not decoder._where, "a stream that ended is kept"
                assert all(one.kv == 0 and not one.load for one in decoder._alive), "KV memory that nobody uses"
                most = decoder._role.kv_tokens
                assert most is None or decoder.peak_kv_tokens <= most + 1e-6, "more KV than there is memory"
        if b is not None:
            flying = a.kv.under_way or any(directory.in_flight for directory in a.kv._directories)
            assert not flying and not self.world.link._flows, "a transfer that ended is kept"
            assert a.handoffs is None or not a.handoffs.under_way, "a hand-off that ended is kept"
            assert not (b._held or b._answers or b._incomplete or b._dropped), "MD keeps a request that ended"

    def _check_kv(self):
        """Bytes of KV: what A says it sent, what the line carried, what B got."""
        a, b, link = self.world.a, self.world.b, self.world.link
        if b is None:
            return
        slack = 4 * len(self.requests)
        assert abs(link.delivered_bytes - a.kv_sent_bytes) <= slack + 1e-6 * a.kv_sent_bytes, "KV bytes are not kept"
        assert b.kv_received_bytes <= self.arrived_bytes + slack, "B got KV that nobody sent"
        if not self.spec.kv_streaming:  # else the first of a cancelled transfer's two flows may have arrived
            assert abs(self.arrived_bytes - b.kv_received_bytes) <= slack, "B got another number of KV bytes"

    def _both_ends_agree(self):
        """MD's blocks are those that A's directory says."""
        a, b = self.world.a, self.world.b
        if b is None or not self.spec.drc:
            return
        for number, directory in enumerate(a.kv._directories):
            store = b._store(-1 if a.kv._pooled else number)
            runs = directory.cache._runs
            assert all(store.has(owner, run.stop - 1) for owner, run in runs.items()), "promised, and not there"
            if self.spec.count_in_flight:
                extra = [owner for owner, stop in store._stop.items() if owner not in runs or stop > runs[owner].stop]
                assert not extra, "MD keeps what A believes to be gone"

    def _watch(self):
        """Look at caches and the line after every event."""
        clock, link = self.world.clock, self.world.link
        call_at = clock.call_at
        self.arrived_bytes = self.gone_bytes = 0.0
        self.last_s = self.last_bytes = 0.0
        if link is not None:
            self._account(link)

        def seen(fn):
            def call(*args):
                fn(*args)
                self._look()

            return call

        clock.call_at = lambda t, fn, *args: call_at(t, seen(fn), *args)
        clock._heap = [(t, order, seen(fn), args) for t, order, fn, args in clock._heap]

    def _account(self, link):
        """Bytes of flows that are no longer on the line: arrived, or sent before they were cancelled."""
        send, cancel = link.send, link.cancel

        def counted_send(flow, n_bytes, on_arrived):
            def arrived():
                self.arrived_bytes += n_bytes
                on_arrived()

            send(flow, n_bytes, arrived)

        def counted_cancel(flow):
            self.gone_bytes += link.sent_bytes(flow)
            cancel(flow)

        link.send, link.cancel = counted_send, counted_cancel

    def _look(self):
        now, link = self.world.clock.now(), self.world.link
        caches = list(self.world.a.prompts._caches)
        if self.world.a.kv is not None:
            caches += [directory.cache for directory in self.world.a.kv._directories]
        for cache in caches:
            held = sum(run.stop - run.start for run in cache._runs.values())
            assert cache.blocks == held, "a cache counts other blocks than it holds"
            assert cache.capacity is None or cache.blocks <= cache.capacity, "a cache above its capacity"
        if link is None:
            return
        carried = self.arrived_bytes + self.gone_bytes + sum(link.sent_bytes(flow) for flow in link._flows)
        slack = 2 + len(link._flows) + link._rate * 4e-9
        assert carried >= self.last_bytes - slack, "bytes came back"
        assert carried - self.last_bytes <= link._rate * (now - self.last_s) + slack, "more than the line can carry"
        if now > self.last_s:
            self.last_s, self.last_bytes = now, carried
