"""Every mechanism of the emulated deployments, in virtual time: tokens exact, bytes conserved, bounds kept."""

from __future__ import annotations

import msgspec
import pytest
from emulator_specs import build_spec
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from test_emulator_core import nothing_left

from pddbench.deploy.emulator.blocks import block_hashes
from pddbench.deploy.emulator.policy import kv_bytes
from pddbench.deploy.emulator.prefill import prefill_s
from pddbench.deploy.emulator.spec import RoleChange
from pddbench.deploy.emulator.virtual import CountedDeployment, VirtualDeployment


def with_roles(spec, **roles):
    """A spec with fields of its roles changed."""
    changed = {name: msgspec.structs.replace(role, **roles.get(name, {})) for name, role in spec.roles.items()}
    return msgspec.structs.replace(spec, roles=changed)


PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking whole worlds takes minutes

REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 3),  # sent at
        st.integers(0, 2),  # family of prompts that share a beginning
        st.integers(1, 900),  # prompt tokens
        st.integers(1, 120),  # output tokens
        st.none() | st.floats(0, 6),  # the client leaves
    ),
    min_size=1,
    max_size=10,
)
MECHANISMS = st.fixed_dictionaries(
    {},
    optional={
        "chunk_tokens": st.sampled_from([64, 500]),
        "chunk_packing": st.booleans(),
        "tokens_per_step": st.sampled_from([1.6, 3.0]),
        "rld_cache": st.booleans(),
        "placement": st.sampled_from(["prefix", "session", "least_loaded"]),
        "md_placement": st.just("prefix"),
        "threshold_tokens": st.sampled_from([0, 300]),
        "policy": st.just("three"),
        "relay_tokens": st.sampled_from([0, 300]),
        "route_by": st.sampled_from(["md", "p"]),
        "singular": st.sampled_from(["oracle", "predictor"]),
        "singular_tokens": st.just(400),
        "singular_output_tokens": st.just(40),
        "count_in_flight": st.booleans(),
        "kv_flows": st.just(4),
        "kv_warm": st.booleans(),
        "kv_streaming": st.booleans(),
        "cancel_finished": st.booleans(),
        "handoff": st.sampled_from(["catch_up", "dynamic", "direct_kv"]),
        "catch_up_tokens": st.sampled_from([1, 5]),
        "switch_load": st.just(1.5),
    },
)
BOUNDS = st.fixed_dictionaries(
    {},
    optional={
        "count": st.integers(1, 4),
        "kv_tokens": st.integers(1020, 2500),
        "max_batch": st.integers(1, 3),
        "cache_tokens": st.integers(0, 1500),
        "cache_ttl_s": st.sampled_from([0.5, 2.0]),
    },
)
CHANGES = st.lists(
    st.tuples(st.floats(0, 6), st.sampled_from(["P", "RLD", "MD", "D"]), st.sampled_from([-2, -1, 1])), max_size=3
)
WORLD = (
    st.sampled_from(["baseline", "naive", "pdd", "pdd", "pdd"]),
    REQUESTS,
    st.sampled_from([0.0, 1.0, 15.0, 400.0]),
    st.sampled_from([0.5, 20.0, 10_000.0]),
    st.sampled_from([0.0, 0.05, 0.5]),
    MECHANISMS,
    st.dictionaries(st.sampled_from(["P", "RLD", "MD", "D"]), BOUNDS),
    CHANGES,
)


def world_spec(kind, one_way_ms, rate_mbit, threshold_s, mechanisms, bounds, changes):
    """A deployment with the drawn mechanisms."""
    spec = build_spec(
        kind, wan={"one_way_ms": one_way_ms, "rate_mbit": rate_mbit}, threshold_s=threshold_s, **mechanisms
    )
    spec = with_roles(spec, **{name: bounds.get(name, {}) for name in spec.roles})
    happen = tuple(RoleChange(at, role, count) for at, role, count in changes if role in spec.roles)
    return msgspec.structs.replace(spec, changes=happen)


@given(*WORLD)
@settings(max_examples=150, deadline=None, phases=PHASES)
def test_counting_tokens_is_making_them(kind, requests, one_way_ms, rate_mbit, threshold_s, mech, bounds, changes):
    """Breaks when jumping over steps gives other times, pipelines or bytes than every token would."""
    spec = world_spec(kind, one_way_ms, rate_mbit, threshold_s, mech, bounds, changes)
    made, counted = VirtualDeployment(spec), CountedDeployment(spec, lambda rid: None)
    for rid, (at, family, prompt, output, leaves) in enumerate(requests):
        at += rid * 1.234567e-4  # ties are decided by the order of events, which may differ
        ids = [family * 1000 + i for i in range(prompt)]
        made.submit(rid, at, ids, output)
        path = made._book.path(block_hashes(ids, 64)[0])
        counted.clock.call_at(at, counted.submit, rid, prompt, output, path, path[0][0] if path else 0)
        if leaves is not None:
            made.cancel(rid, at + leaves)
            counted.clock.call_at(at + leaves, counted.cancel, rid)
    made.clock.run()
    counted.clock.run()
    nothing_left(counted)
    for rid, (*_, leaves) in enumerate(requests):
        one, two = made.answers[rid], counted.outcomes[rid]
        assert one.error == two.error
        if leaves is not None or one.error:
            continue
        times_s, stages = counted.token_times_s(rid)
        assert list(times_s) == pytest.approx(one.times_s, abs=1e-6)
        assert [stage for stage, count in stages for _ in range(count)] == [piece[0] for piece in one.pieces]
        assert one.reply.finish == two.finish


def counted(spec, requests):
    """A deployment after it has served (time, prompt tokens, output tokens) requests that share nothing."""
    world = CountedDeployment(spec, lambda rid: None)
    for rid, (at, prompt, output) in enumerate(requests):
        path = [(rid, 0, prompt // 64)]
        world.clock.call_at(at, world.submit, rid, prompt, output, path, rid)
    world.clock.run()
    return world


@pytest.mark.parametrize("kind", ["baseline", "naive", "pdd"])
def test_a_long_answer_costs_no_more_events_than_a_short_one(kind):
    """Breaks when virtual time goes token by token again: an hour of a deployment would take hours."""
    events = []
    for output in (1000, 100_000):
        world = counted(build_spec(kind), [(0.0, 65_536, output)])
        events.append(next(world.clock._order))
        assert len(world.token_times_s(0)[0]) == output
    assert events[0] == events[1] < 40


def test_a_busy_deployment_costs_events_by_the_request():
    """Breaks when an event of one stream costs as much as there are others."""
    few, many = (
        next(counted(build_spec("pdd"), [(0.5 * i, 6400, 1000) for i in range(n)]).clock._order) / n for n in (50, 400)
    )
    assert many < 1.5 * few < 60


def test_saturated_prefill_is_its_fluid_bound():
    """Breaks when idle instances stand beside a queue, or work is done twice: capacity would be wrong."""
    spec = with_roles(build_spec("baseline"), P={"count": 3}, D={"count": 40})
    world = counted(spec, [(0.0, 20_000, 1)] * 60)
    one_s = prefill_s(spec.roles["P"].chip, 20_000, 0)
    ends = sorted(float(world.token_times_s(rid)[0][-1]) for rid in range(60))
    assert ends[-1] == pytest.approx(60 / 3 * one_s, rel=0.01)


def test_saturated_decode_is_its_fluid_bound():
    """Breaks when a batch is not full although streams wait, or a step makes more tokens than it has streams."""
    spec = with_roles(build_spec("baseline"), P={"count": 200}, D={"count": 2, "max_batch": 8})
    world = counted(spec, [(0.0, 640, 500)] * 160)
    chip = spec.roles["D"].chip
    bound = 2 * 8 / (chip.decode_c0_s + 8 * chip.decode_c1_s)
    took_s = max(float(world.token_times_s(rid)[0][-1]) for rid in range(160))
    assert 160 * 500 / took_s == pytest.approx(bound, rel=0.02)


def test_a_saturated_line_is_its_fluid_bound():
    """Breaks when transfers get more than the line has, or leave part of it idle."""
    spec = build_spec("naive", wan={"one_way_ms": 15.0, "rate_mbit": 2000.0, "flow_rate_mbit": 1000.0})
    world = counted(spec, [(0.0, 20_000, 2)] * 40)
    n_bytes = 40 * kv_bytes(spec.model, 20_000)
    first_s = prefill_s(spec.roles["P"].chip, 20_000, 0)
    took_s = max(outcome.ended_s for outcome in world.outcomes.values()) - first_s
    assert n_bytes / took_s <= spec.link.rate_bytes_s
    assert n_bytes / took_s == pytest.approx(spec.link.rate_bytes_s, rel=0.05)


def test_saturated_chunked_prefill_is_its_fluid_bound():
    """Breaks when a step of chunked prefill is not full although prompts wait, or its own cost is lost."""
    spec = with_roles(build_spec("baseline", chunk_tokens=2048), P={"count": 2}, D={"count": 40})
    world = counted(spec, [(0.0, 20_000, 1)] * 40)
    chip = spec.roles["P"].chip
    work_s = 40 * (prefill_s(chip, 20_000, 0)) + 40 * 20_000 / 2048 * chip.prefill_step_s
    ends = sorted(float(world.token_times_s(rid)[0][-1]) for rid in range(40))
    assert ends[-1] >= work_s / 2 * 0.999
    assert ends[-1] == pytest.approx(work_s / 2, rel=0.02)


def test_decode_that_kv_memory_limits_is_its_fluid_bound():
    """Breaks when KV memory stands empty although streams wait, or a step pays for more than it holds."""
    spec = with_roles(build_spec("baseline"), P={"count": 200}, D={"count": 2, "kv_tokens": 6 * 1280})
    world = counted(spec, [(0.0, 1024, 256)] * 120)
    chip, decoder = spec.roles["D"].chip, world.a.decoder
    took_s = max(float(world.token_times_s(rid)[0][-1]) for rid in range(120))
    most = 6 * 1280 / 1024  # streams that fit while they are short

    def rate(batch):
        return 2 * batch / (chip.decode_c0_s + batch * chip.decode_c1_s)

    assert 0.9 * rate(6) <= 120 * 256 / took_s <= rate(most)
    assert 0.9 * 6 * 1280 <= decoder.peak_kv_tokens <= 6 * 1280


@pytest.mark.parametrize("role", ["MD", "RLD"])
def test_a_saturated_role_of_pdd_is_its_fluid_bound(role):
    """Breaks when MD or RLD makes more, or clearly fewer, tokens than its batches allow: a capacity would be wrong."""
    roles = {"P": {"count": 200}, "MD": {"count": 400}, "RLD": {"count": 400}} | {role: {"count": 2, "max_batch": 8}}
    how = {"threshold_s": 1e9} if role == "MD" else {"policy": "three", "relay_tokens": 0, "threshold_s": 0.0}
    spec = with_roles(build_spec("pdd", wan={"one_way_ms": 1.0, "rate_mbit": 1e6}, **how), **roles)
    world = counted(spec, [(0.0, 640, 500)] * 160)
    pipeline = "P-MD" if role == "MD" else "P-RLD"
    assert {outcome.finish.pipeline for outcome in world.outcomes.values()} == {pipeline}
    chip = spec.roles[role].chip
    bound = 2 * 8 / (chip.decode_c0_s + 8 * chip.decode_c1_s)
    took_s = max(float(world.token_times_s(rid)[0][-1]) for rid in range(160)) - prefill_s(spec.roles["P"].chip, 640, 0)
    assert 160 * 500 / took_s <= bound * 1.001
    assert 160 * 500 / took_s == pytest.approx(bound, rel=0.02)


def test_a_hit_costs_the_line_only_what_is_new():
    """Breaks when a saturated line carries what MD has already: its capacity in requests would be too low by far."""
    spec = build_spec("naive", wan={"one_way_ms": 1.0, "rate_mbit": 1000.0})
    world = CountedDeployment(spec, lambda rid: None)
    root = (0, 0, 900)
    world.clock.call_at(0.0, world.submit, 0, 57_600, 2, [root], 0)
    for rid in range(1, 41):
        world.clock.call_at(1000.0, world.submit, rid, 64_000, 2, [root, (rid, 900, 1000)], rid)
    world.clock.run()
    new_bytes = 40 * kv_bytes(spec.model, 6400)
    took_s = max(outcome.ended_s for outcome in world.outcomes.values()) - 1000.0
    took_s -= prefill_s(spec.roles["P"].chip, 6400, 57_600)
    assert spec.link.rate_bytes_s * 0.93 <= new_bytes / took_s <= spec.link.rate_bytes_s * 1.001
