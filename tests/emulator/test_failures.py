"""What a client sees when a hand-off or a role fails: exact tokens, or an error; never a silently wrong stream."""

from __future__ import annotations

import msgspec
import pytest
from emulator_specs import build_spec
from test_emulator_core import nothing_left

from pddbench.deploy.emulator.messages import HandOff
from pddbench.deploy.emulator.spec import RoleChange
from pddbench.deploy.emulator.tokens import expected_tokens
from pddbench.deploy.emulator.virtual import VirtualDeployment


def world(**changes):
    """A pdd deployment whose KV needs about a second, and one request of 200 tokens."""
    roles = changes.pop("roles", {})
    spec = build_spec("pdd", **changes)
    changed = {name: msgspec.structs.replace(role, **roles.get(name, {})) for name, role in spec.roles.items()}
    made = VirtualDeployment(msgspec.structs.replace(spec, roles=changed))
    made.submit(1, 0.0, list(range(3000)), 200)
    return made


def intercept(made, change):
    """Let `change(message)` say what becomes of each hand-off: a list of (delay, message)."""
    deliver = made.to_b

    def to_b(message):
        if not isinstance(message, HandOff):
            deliver(message)
            return
        for delay_s, passed in change(message):
            made.clock.call_at(made.clock.now() + delay_s, deliver, passed)

    made.to_b = to_b


def exact(made, rid=1, n=200):
    """The answer is complete and right."""
    answer = made.answers[rid]
    assert not answer.error and answer.tokens == expected_tokens(answer.seed, n)
    nothing_left(made)
    return answer


@pytest.mark.parametrize("mode", ["one_shot", "catch_up"])
def test_late_ids_only_delay(mode):
    """Without it, ids that a queue held up would end a stream, or MD would guess."""
    on_time, late = world(handoff=mode, catch_up_tokens=20), world(handoff=mode, catch_up_tokens=20)
    intercept(late, lambda message: [(2.0, message)])
    on_time.clock.run()
    late.clock.run()
    delay_s = exact(late).times_s[-1] - exact(on_time).times_s[-1]
    assert delay_s > 1.5 or mode == "catch_up"  # in catch-up RLD works on meanwhile


def test_lost_ids_are_sent_again():
    """Without it, one lost message would leave a client waiting for ever."""
    made, lost = world(), []

    def lose_first(message):
        lost.append(message)
        return [(0.0, message)] if len(lost) > 1 else []

    intercept(made, lose_first)
    made.clock.run()
    answer = exact(made)
    assert len(lost) == 2
    k = answer.reply.finish.handoff["token"]
    assert answer.times_s[k] - answer.times_s[k - 1] > made.spec.ids_timeout_s


def test_ids_that_come_twice_count_once():
    """Without it, a repeated hand-off would start a second stream of the same answer."""
    made = world()
    intercept(made, lambda message: [(0.0, message), (0.5, message), (20.0, message)])
    made.clock.run()
    exact(made)


def test_ids_that_never_arrive_end_in_an_error():
    """Without it, the client would wait until its own timeout."""
    made = world()
    intercept(made, lambda message: [])
    made.clock.run()
    answer = made.answers[1]
    assert "did not answer to the ids" in answer.error
    assert answer.tokens == expected_tokens(answer.seed, 200)[: len(answer.tokens)]
    nothing_left(made)


@pytest.mark.parametrize("at_s", [0.2, 0.9, 1.4, 1.65, 2.5])
def test_the_only_rld_goes(at_s):
    """Without it, a stream whose RLD died would end, although MD gets its KV and the ids are known."""
    made = world(changes=(RoleChange(at_s, "RLD", -1),))
    made.clock.run()
    answer = exact(made)
    stages = [piece[0] for piece in answer.pieces]
    assert stages == sorted(stages, key=["rld", "md"].index)


def test_another_rld_takes_over():
    """Without it, a second RLD instance would be no help to the streams of one that died."""
    made = world(roles={"RLD": {"count": 2}}, changes=(RoleChange(0.9, "RLD", -1), RoleChange(1.0, "RLD", -1)))
    made.submit(2, 0.0, list(range(50_000, 53_000)), 200)
    made.clock.run()
    exact(made, 1)
    exact(made, 2)


def test_md_goes():
    """Without it, a stream whose MD died could go on with wrong tokens, or hang; new ones end on RLD."""
    made = world(changes=(RoleChange(3.0, "MD", -4),))
    made.submit(2, 3.5, list(range(50_000, 53_000)), 100)
    made.clock.run()
    first, second = made.answers[1], made.answers[2]
    assert "gone" in first.error and first.tokens == expected_tokens(first.seed, 200)[: len(first.tokens)]
    assert not second.error and second.reply.finish.pipeline == "P-RLD"
    nothing_left(made)


def test_a_full_md_makes_streams_wait():
    """Without it, KV memory at MD would be without bounds, or streams beyond it would fail."""
    made = world(roles={"MD": {"count": 1, "kv_tokens": 3500}})
    made.submit(2, 0.1, list(range(50_000, 53_000)), 200)
    made.clock.run()
    one, two = exact(made, 1), exact(made, 2)
    assert made.b.decoder.peak_kv_tokens <= 3500
    seam = two.reply.finish.handoff["token"]
    assert two.times_s[seam] > one.times_s[-1]


def test_what_can_never_fit_is_refused():
    """Without it, a prompt larger than the KV memory would wait for ever."""
    made = world(roles={"MD": {"kv_tokens": 3100}})
    made.clock.run()
    assert "3200 tokens of KV, more than an instance of MD has (3100)" in made.answers[1].error
    nothing_left(made)


def test_p_goes_and_comes_back():
    """Without it, prompts on a lost P would vanish, or a new instance would not take any."""
    made = world(roles={"P": {"count": 2}}, changes=(RoleChange(0.1, "P", -1), RoleChange(5.0, "P", 1)))
    made.submit(2, 0.05, list(range(50_000, 53_000)), 50)
    made.clock.run()
    exact(made, 1)
    exact(made, 2, 50)
    gone = world(changes=(RoleChange(0.1, "P", -4),))
    gone.submit(2, 0.5, list(range(10)), 5)
    gone.clock.run()
    assert all("no instance of P is left" in gone.answers[rid].error for rid in (1, 2))
