"""Random worlds by the thousand: nothing is lost, doubled, reordered or silently wrong; and planted bugs are caught."""

from __future__ import annotations

import math

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from storm import Storm

from pddbench.deploy.emulator import cluster_b, decode, handoff, kv, radix
from pddbench.wan import fluid

_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # a seed cannot be shrunk


@pytest.mark.parametrize("part", range(4))
def test_nothing_is_silently_wrong(part):
    """Breaks when any interleaving of transfer, hand-off and failure loses, doubles or reorders a token, KV bytes are
    not conserved, a cache holds more than it may, or the line carries more than its rate."""  # fmt: skip
    for seed in range(part * 400, part * 400 + 400):
        try:
            Storm(seed).run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@given(st.integers(2000, 2**40))
@settings(max_examples=60, deadline=None, phases=_PHASES)
def test_nothing_is_silently_wrong_anywhere_else(seed):
    """Breaks where the thousands above, always the same, do not look."""
    Storm(seed).run()


def lose_a_token(patch):
    """RLD hands over all ids but the last."""
    pack = handoff.pack
    patch.setattr(handoff, "pack", lambda ids: pack(ids[:-1]))


def send_a_token_twice(patch):
    """A round of catch-up forgets what was sent."""
    message = handoff.HandOffs._message

    def again(self, state, stream, count, final):
        out = message(self, state, stream, count, final)
        state.sent -= 1 if state.sent else 0
        return out

    patch.setattr(handoff.HandOffs, "_message", again)


def swap_tokens(patch):
    """Ids are handed over in another order."""
    pack = handoff.pack
    patch.setattr(handoff, "pack", lambda ids: pack(sorted(ids)))


def start_a_stream_twice(patch):
    """MD does not remember that it has had the ids."""
    hand_off = cluster_b.ClusterB._hand_off

    def remembered(self, message):
        held = self._held.get(message.rid)
        hand_off(self, message)
        if held is not None and message.final:
            held.ids = b""
            self._held[message.rid] = held

    patch.setattr(cluster_b.ClusterB, "_hand_off", remembered)


def ids_are_not_sent_again(patch):
    """Nobody waits for MD's answer to the ids."""
    patch.setattr(handoff.HandOffs, "_watch", lambda self, message, tries: None)


def keep_kv(patch):
    """A stream that leaves its batch keeps its KV memory."""
    leave = decode.Decoder._leave

    def kept(self, instance, stream):
        before = instance.kv
        leave(self, instance, stream)
        instance.kv = before

    patch.setattr(decode.Decoder, "_leave", kept)


def admit_everybody(patch):
    """KV memory has no bound: nobody is preempted, and nobody waits."""
    init = decode.Decoder.__init__

    def boundless(self, *args, **more):
        init(self, *args, **more)
        self._capacity = math.inf

    patch.setattr(decode.Decoder, "__init__", boundless)


def overfill_caches(patch):
    """A cache takes all that comes."""
    patch.setattr(radix.RadixCache, "_room", lambda self, wanted: wanted)


def miscount_a_cache(patch):
    """What is evicted is counted as still there."""
    trim = radix.RadixCache._trim

    def trimmed(self, run, stop):
        blocks = self.blocks
        trim(self, run, stop)
        self.blocks = blocks

    patch.setattr(radix.RadixCache, "_trim", trimmed)


def evict_what_is_on_its_way(patch):
    """KV under way is not protected from eviction."""
    patch.setattr(radix.RadixCache, "pin", lambda self, owner: None)
    patch.setattr(radix.RadixCache, "unpin", lambda self, owner: None)


def overload_the_line(patch):
    """Open flows all get their cap, however many they are."""
    share = fluid.FluidLink._share

    def greedy(self):
        share(self)
        self._open_rate = self._cap if self._open else 0.0

    patch.setattr(fluid.FluidLink, "_share", greedy)


def forget_what_was_sent(patch):
    """KV of a cancelled transfer is counted as never sent."""
    cancel = kv.KvSender.cancel

    def forgetful(self, transfer):
        before = self.sent_bytes
        gone = cancel(self, transfer)
        self.sent_bytes = before
        return gone

    patch.setattr(kv.KvSender, "cancel", forgetful)


def forget_what_kv_stands_on(patch):
    """KV on its way counts as there: nothing waits for it."""
    patch.setattr(radix.Directory, "carriers", lambda self, path, have: set())


PLANTED = {
    lose_a_token: "ids from .* came|came twice",
    send_a_token_twice: "ids from .* came",
    swap_tokens: "wrong tokens",
    start_a_stream_twice: "MD keeps a request that ended|came twice",
    ids_are_not_sent_again: "neither whole nor an error",
    keep_kv: "KV memory that nobody uses",
    admit_everybody: "more KV than there is memory",
    overfill_caches: "a cache above its capacity",
    miscount_a_cache: "counts other blocks than it holds",
    evict_what_is_on_its_way: "not there|believes to be gone|not at MD",
    overload_the_line: "more than the line can carry",
    forget_what_was_sent: "KV bytes are not kept",
    forget_what_kv_stands_on: "a transfer that ended is kept|not at MD",
}


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(monkeypatch, bug):
    """Breaks when the storms no longer see one of the faults that they are there for."""
    bug(monkeypatch)
    with pytest.raises((AssertionError, ValueError), match=PLANTED[bug]):
        for seed in range(200):
            Storm(seed).run()
