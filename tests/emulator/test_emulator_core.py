"""The deployments in virtual time: tokens exact under any timing, and the order of the arms physical."""

from __future__ import annotations

import msgspec
import pytest
from emulator_specs import build_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from pddbench.deploy.emulator.blocks import PathBook, block_hashes
from pddbench.deploy.emulator.cluster_b import NumberSet
from pddbench.deploy.emulator.messages import HandOff, KvArrived
from pddbench.deploy.emulator.policy import kv_bytes
from pddbench.deploy.emulator.radix import Directory, RadixCache
from pddbench.deploy.emulator.spec import RoleSpec
from pddbench.deploy.emulator.tokens import TokenChain, expected_tokens
from pddbench.deploy.emulator.virtual import VirtualDeployment
from pddbench.wan.transfer import transfer_s
from pddbench.workload.experiment import Workload


def one(spec, prompt_tokens=17_000, max_tokens=110, before=None):
    """The answer to a single prompt (after `before` had gone through, when given)."""
    world = VirtualDeployment(spec)
    if before is not None:
        world.submit(1, 0.0, before, 5)
        world.clock.run()
    ids = list(range(prompt_tokens))
    world.submit(2, world.clock.now(), ids, max_tokens)
    world.clock.run()
    answer = world.answers[2]
    assert answer.reply.complete
    assert answer.tokens == expected_tokens(answer.seed, max_tokens)
    return world, answer


REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 3),  # sent at
        st.integers(0, 2),  # family of prompts that share a beginning
        st.integers(1, 900),  # prompt tokens
        st.integers(1, 120),  # output tokens
        st.none() | st.floats(0, 6),  # the client leaves
    ),
    min_size=1,
    max_size=12,
)


@given(
    st.sampled_from(["baseline", "naive", "pdd"]),
    REQUESTS,
    st.sampled_from([0.0, 1.0, 15.0, 400.0]),
    st.sampled_from([0.5, 20.0, 10_000.0]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.05, 0.5]),
    st.sampled_from([1, 3]),
)
@settings(max_examples=200, deadline=None)
def test_tokens_are_exact_under_any_timing(kind, requests, one_way_ms, rate_mbit, drc, from_p, threshold_s, count):
    """Breaks when any interleaving of transfers, hand-offs, finishes and leavers loses, doubles or changes a token."""
    spec = build_spec(
        kind,
        wan={"one_way_ms": one_way_ms, "rate_mbit": rate_mbit},
        drc=drc,
        threshold_s=threshold_s,
        first_token_from_p=from_p and kind == "naive",
    )
    roles = {name: RoleSpec(role.chip, count) for name, role in spec.roles.items()}
    world = VirtualDeployment(msgspec.structs.replace(spec, roles=roles))
    for rid, (at, family, prompt, output, leaves) in enumerate(requests):
        world.submit(rid, at, [family * 1000 + i for i in range(prompt)], output)
        if leaves is not None:
            world.cancel(rid, at + leaves)
    world.clock.run()
    for rid, (*_, output, leaves) in enumerate(requests):
        answer = world.answers[rid]
        assert not answer.error
        assert answer.tokens == expected_tokens(answer.seed, output)[: len(answer.tokens)]
        if leaves is None:
            assert answer.reply.complete
            handoff = answer.reply.finish.handoff
            stages = [piece[0] for piece in answer.pieces]
            if handoff:
                k = handoff["token"]
                assert stages == ["rld"] * k + ["md"] * (output - k)
    nothing_left(world)


def nothing_left(world):
    """No request is kept after its end: a long run must not fill the memory."""
    assert not world.a._jobs
    assert world.a.kv is None or not world.a.kv.under_way
    assert world.a.kv is None or not any(directory.in_flight for directory in world.a.kv._directories)
    assert world.a.handoffs is None or not world.a.handoffs.under_way
    assert world.a.decoder is None or not world.a.decoder._where
    if world.b is not None:
        assert not world.b._held
        assert not world.b._answers
        assert not world.b._incomplete
        assert not world.b._dropped
        assert not world.b.decoder._where
        assert not world.link._flows


@pytest.mark.parametrize("change", ["lose", "double", "swap", "foreign"])
def test_a_wrong_hand_off_shows(change):
    """Breaks when MD goes on from its own knowledge instead of the ids it was handed: errors would not show."""
    ids = expected_tokens(77, 20)
    wrong = {
        "lose": ids[:7] + ids[8:],
        "double": ids[:7] + ids[6:],
        "swap": [*ids[:7], ids[8], ids[7], *ids[9:]],
        "foreign": [*ids[:7], ids[7] ^ 1, *ids[8:]],
    }[change]
    chain = TokenChain(77, wrong)
    after = [chain.next() for _ in range(20)]
    assert after != expected_tokens(77, 20 + len(wrong))[len(wrong) :]
    right = TokenChain(77, ids)
    assert [right.next() for _ in range(20)] == expected_tokens(77, 40)[20:]


def test_md_continues_from_the_ids_it_was_handed():
    """Breaks when cluster B ignores the hand-off's ids: here they are tampered with on the way, and it must show."""
    world = VirtualDeployment(build_spec("pdd"))
    deliver = world.to_b

    def tamper(message):
        if isinstance(message, HandOff) and message.ids:
            message.ids = bytes([message.ids[0] ^ 1]) + message.ids[1:]
        deliver(message)

    world.to_b = tamper
    world.submit(1, 0.0, list(range(3000)), 200)
    world.clock.run()
    answer = world.answers[1]
    k = answer.reply.finish.handoff["token"]
    expected = expected_tokens(answer.seed, 200)
    assert answer.tokens[:k] == expected[:k]
    assert answer.tokens[k:] != expected[k:]


def test_a_prefix_that_is_missing_at_md_fails_instead_of_guessing():
    """Breaks when B decodes on KV that it does not have (a mirror that promises too much)."""
    world = VirtualDeployment(build_spec("naive"))
    message = KvArrived(1, 1, "decode", 5, 4, 1, 0, "P-MD", 0.0, 100, 1, [], (12345, 7), [], b"")
    world.submit(1, 0.0, [1], 4)
    world.b.on_message(message)
    world.clock.run(0.1)
    assert "not at MD" in world.answers[1].error


def test_the_order_of_the_arms_is_physical():
    """Breaks when naive hides its transfer, or pdd pays for it: naive − baseline is the link's law, pdd is baseline."""
    _, baseline = one(build_spec("baseline"))
    naive_world, naive = one(build_spec("naive"))
    _, pdd = one(build_spec("pdd"))
    link = naive_world.spec.link
    n_bytes = kv_bytes(naive_world.spec.model, 17_000)
    fabric_s = n_bytes / (naive_world.spec.fabric_gbit * 1e9 / 8)
    assert naive.ttft_s - baseline.ttft_s == pytest.approx(
        transfer_s(link, n_bytes) + link.rtt_s / 2 - fabric_s, rel=0.01
    )
    assert naive.times_s[1] - baseline.times_s[1] == pytest.approx(naive.ttft_s - baseline.ttft_s)
    assert pdd.ttft_s == pytest.approx(baseline.ttft_s)


def test_first_token_from_p_moves_the_wait_to_the_second():
    """Breaks when the variant's second token does not wait for the KV: it would look as good as it cannot be."""
    _, naive = one(build_spec("naive"))
    _, early = one(build_spec("naive", first_token_from_p=True))
    assert early.pieces[0][0] == "p"
    assert early.ttft_s < naive.ttft_s - 5
    assert early.times_s[1] == pytest.approx(naive.times_s[0])


def test_pdd_hands_over_when_the_kv_is_there():
    """Breaks when eager tokens, seam or the closing figures do not fit the link and the chips."""
    world, answer = one(build_spec("pdd"), prompt_tokens=3000, max_tokens=200)
    finish, spec = answer.reply.finish, world.spec
    k = finish.handoff["token"]
    chip = spec.roles["RLD"].chip
    step_s = chip.decode_c0_s + chip.decode_c1_s
    wait_s = transfer_s(spec.link, kv_bytes(spec.model, 3000)) + spec.link.rtt_s / 2
    assert k == pytest.approx(wait_s / step_s, abs=2)
    assert finish.eager == k
    assert finish.kv["ns"] == pytest.approx(transfer_s(spec.link, finish.kv["bytes"]) * 1e9, rel=1e-6)
    seam_s = answer.times_s[k] - answer.times_s[k - 1]
    least_s = spec.link.rtt_s + chip.extend_e0_s + chip.extend_e1_s * k + step_s
    assert seam_s == pytest.approx(least_s, abs=1e-6)
    assert finish.handoff["bytes"] < 20 * k


def test_a_short_answer_ends_on_rld():
    """Breaks when a stream that finished before its KV arrived is handed over all the same."""
    _, answer = one(build_spec("pdd"), max_tokens=5)
    finish = answer.reply.finish
    assert (finish.pipeline, finish.eager, finish.handoff) == ("P-RLD-MD", 5, None)


def test_threshold_chooses_the_pipeline():
    """Breaks when routing does not compare the predicted transfer with the threshold."""
    spec = build_spec("pdd")
    ids = list(range(17_000))
    predicted_s = transfer_s(spec.link, kv_bytes(spec.model, 17_000 - 16_000))
    for threshold_s, pipeline in ((predicted_s * 1.01, "P-MD"), (predicted_s * 0.99, "P-RLD-MD")):
        _, answer = one(build_spec("pdd", threshold_s=threshold_s), before=ids[:16_000])
        assert answer.reply.finish.pipeline == pipeline


def test_kv_under_way_is_not_sent_twice_but_waited_for():
    """Breaks when KV in flight does not count as present (the line collapses) or is not waited for (wrong KV)."""
    world = VirtualDeployment(build_spec("naive"))
    ids = list(range(6400))
    world.submit(1, 0.0, ids, 3)
    world.submit(2, 0.9, [*ids, *range(90_000, 90_100)], 3)
    world.clock.run()
    first, second = (world.answers[rid] for rid in (1, 2))
    assert second.reply.finish.kv["bytes"] == kv_bytes(world.spec.model, 100)
    assert second.times_s[0] == first.times_s[0]  # both start when the first one's KV is there
    assert second.reply.complete


def test_a_request_on_kv_under_way_does_not_look_like_a_fast_one():
    """Breaks when the router predicts only a request's own bytes: P-MD would wait for somebody else's transfer."""
    world = VirtualDeployment(build_spec("pdd", threshold_s=0.6))
    ids = list(range(6400))
    world.submit(1, 0.0, ids, 3)
    world.submit(2, 0.9, [*ids, *range(90_000, 90_100)], 300)
    world.clock.run()
    assert transfer_s(world.spec.link, kv_bytes(world.spec.model, 100)) < 0.6
    assert world.answers[2].reply.finish.pipeline == "P-RLD-MD"


@pytest.mark.parametrize("kind", ["naive", "pdd"])
def test_drc_sends_only_what_md_does_not_have(kind):
    """Breaks when DRC sends hits again, or switching it off still saves them."""
    ids = list(range(17_000))
    for drc, tokens in ((True, 17_000 - 12_800), (False, 17_000)):
        world, answer = one(build_spec(kind, drc=drc), before=ids[:12_800])
        assert answer.reply.finish.kv["bytes"] == kv_bytes(world.spec.model, tokens)


@pytest.mark.parametrize(
    ("shared", "prompt", "hit"), [(640, 1000, 640), (650, 1000, 640), (640, 640, 576), (63, 100, 0)]
)
def test_served_hits_are_whole_blocks_below_the_last_token(shared, prompt, hit):
    """Breaks when the served hit is not the planned one, floored to the block and at most input − 1."""
    _, answer = one(build_spec("baseline"), prompt_tokens=prompt, max_tokens=3, before=list(range(shared)))
    assert answer.reply.finish.cached_tokens == hit


def test_prefill_time_is_the_chips_law():
    """Breaks when hits do not shorten prefill, or the queue before the instances is not first come, first served."""
    spec = build_spec("baseline")
    chip = spec.roles["P"].chip
    spec = msgspec.structs.replace(spec, roles={**spec.roles, "P": RoleSpec(chip, 1)})
    world = VirtualDeployment(spec)
    for rid in (1, 2):
        world.submit(rid, 0.0, [rid * 100_000 + i for i in range(1000)], 1)
    world.clock.run()
    alone_s = 0.395 + 1.47e-5 * 1000 + 1.91e-10 * 1000**2
    rest_s = kv_bytes(spec.model, 1000) / 25e9 + chip.decode_c0_s + chip.decode_c1_s
    assert world.answers[1].ttft_s == pytest.approx(alone_s + rest_s)
    assert world.answers[2].ttft_s == pytest.approx(2 * alone_s + rest_s)


def test_streams_spread_over_instances_and_share_steps():
    """Breaks when a batch does not slow its steps, or instances are not used evenly."""
    spec = build_spec("baseline")
    chip = spec.roles["D"].chip
    for count, batch in ((4, 1), (1, 4)):
        world = VirtualDeployment(msgspec.structs.replace(spec, roles={**spec.roles, "D": RoleSpec(chip, count)}))
        for rid in range(4):
            world.submit(rid, 0.0, [rid * 1000 + i for i in range(100)], 50)
        world.clock.run()
        times = world.answers[0].times_s
        assert times[20] - times[19] == pytest.approx(chip.decode_c0_s + batch * chip.decode_c1_s)


def test_a_client_that_leaves_frees_the_line_and_the_cache_promise():
    """Breaks when a cancelled transfer goes on, or its blocks still count as present at MD."""
    world = VirtualDeployment(build_spec("naive"))
    ids = list(range(17_000))
    world.submit(1, 0.0, ids, 10)
    world.cancel(1, 1.5)
    world.submit(2, 3.0, ids, 10)
    world.clock.run()
    assert not world.answers[1].tokens
    assert world.answers[2].reply.finish.kv["bytes"] == kv_bytes(world.spec.model, 17_000)
    assert world.link.delivered_bytes < 1.3 * kv_bytes(world.spec.model, 17_000)
    nothing_left(world)


def test_kv_that_others_rely_on_is_not_cancelled():
    """Breaks when a leaver takes along KV that another request was promised."""
    world = VirtualDeployment(build_spec("naive"))
    ids = list(range(6400))
    world.submit(1, 0.0, ids, 10)
    world.submit(2, 0.9, [*ids, 5, 6, 7], 10)
    world.cancel(1, 1.8)
    world.clock.run()
    assert not world.answers[1].tokens
    assert world.answers[2].reply.complete
    nothing_left(world)


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=40), min_size=2, max_size=6))
def test_caches_find_the_longest_common_prefix(prompts):
    """Breaks when chained hashes, paths or the radix tree miss a shared block, or find one that is not."""
    book, cache = PathBook(), RadixCache()
    *before, last = prompts
    for prompt in before:
        cache.insert(book.path(block_hashes(prompt, 4)[0]), 0.0)
    common = 0
    for prompt in before:
        same = 0
        while same < min(len(prompt), len(last)) and prompt[same] == last[same]:
            same += 1
        common = max(common, same // 4)
    assert cache.match(book.path(block_hashes(last, 4)[0]), 0.0) == common
    first = prompts[0]
    assert (block_hashes(first, 4)[1] == block_hashes(last, 4)[1]) == (first == last)


def test_kv_under_way_is_carried_once():
    """Breaks when two transfers carry the same block, or a cancelled one stays promised."""
    directory = Directory(RadixCache())
    assert directory.start(1, [(0, 0, 3)], 0, 0.0) == (set(), [(0, 0, 3)])
    longer = [(0, 0, 3), (1, 3, 4)]
    assert directory.match(longer, 0.0) == 3
    assert directory.start(2, longer, 3, 0.0) == ({1}, [(1, 3, 4)])
    assert not directory.cancel(1)
    assert directory.cancel(2)
    assert directory.cancel(1)
    assert directory.match(longer, 0.0) == 0
    assert not directory.in_flight


@given(st.permutations(range(1, 30)))
def test_number_set_stays_small(numbers):
    """Breaks when arrived transfers pile up, or one is forgotten."""
    seen = NumberSet()
    for count, number in enumerate(numbers, 1):
        assert number not in seen
        seen.add(number)
        assert all(n in seen for n in numbers[:count])
    assert not seen._above


def test_virtual_time_is_repeatable():
    """Breaks when anything random or real slips into the core."""
    runs = []
    for _ in range(2):
        _, answer = one(build_spec("pdd"))
        runs.append((answer.times_s, answer.tokens))
    assert runs[0] == runs[1]


def test_served_hits_are_the_planned_ones_on_a_whole_trace():
    """Breaks when the emulator's caches and the trace's own arithmetic of prefixes disagree on any request."""
    from pddbench.trace.hits import planned_hits
    from pddbench.trace.synth import agentic_small
    from pddbench.workload.plan import make_plan
    from pddbench.workload.prompts import PromptBook

    trace = agentic_small(sessions=6, seed=3)
    plan = make_plan(trace, Workload(trace="", arrival="trace"))
    book = PromptBook(plan, "salt", (1000, 30000))
    world = VirtualDeployment(build_spec("pdd"))
    for request in plan.requests:
        world.submit(request.index, world.clock.now(), book.ids(request.index), 2)
        world.clock.run()
    block = world.spec.block_tokens
    hits = planned_hits(trace.rows, "prompt")
    for request, hit in zip(plan.requests, hits, strict=True):
        served = world.answers[request.index].reply.finish.cached_tokens
        assert served == min(int(hit), request.input_tokens - 1) // block * block
    assert sum(hits) > 0
