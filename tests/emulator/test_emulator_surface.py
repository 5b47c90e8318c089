"""Bodies, chunks, frames, timers and presets of the emulator, without processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pddbench.deploy.emulator import liveclock, openai
from pddbench.deploy.emulator.liveclock import Lateness, LiveClock
from pddbench.deploy.emulator.messages import Finish, Tokens, encode
from pddbench.deploy.emulator.reply import Reply
from pddbench.deploy.emulator.tokens import words_to_ids
from pddbench.deploy.emulator.wire import Wire
from pddbench.deploy.presets import CHIPS, MODELS, ROLES, emulator_spec
from pddbench.errors import InputError
from pddbench.workload.experiment import Arm, Cost, EmulatorOptions, Experiment, Role, Workload


def parse(body, chat=False):
    return openai.parse(json.dumps(body).encode() if not isinstance(body, bytes) else body, chat)


def test_prompts_as_ids_words_and_chat_count_the_same_tokens():
    """Breaks when a word is not one token, or a chat's template is not a constant around each message."""
    assert len(parse({"prompt": "one two  three\nfour"}).ids) == 4
    assert parse({"prompt": [5, 6, 7]}).ids.tolist() == [5, 6, 7]
    chat = parse({"messages": [{"role": "user", "content": "one two"}]}, chat=True)
    assert len(chat.ids) == 2 + 7 + 3
    longer = parse(
        {"messages": [{"role": "user", "content": "one two"}, {"role": "user", "content": [{"text": "x"}]}]}, chat=True
    )
    assert longer.ids[:9].tolist() == chat.ids[:9].tolist()
    assert len(longer.ids) == 3 + 14 + 3


def test_an_emulated_answer_is_counted_as_it_was_made():
    """Breaks when sending an answer back gives another number of tokens than it had."""
    from pddbench.deploy.emulator.tokens import expected_tokens, text_of

    assert len(words_to_ids(text_of(expected_tokens(1, 50)))) == 50


@pytest.mark.parametrize(
    ("body", "chat", "says"),
    [
        (b"{", False, "cannot be read"),
        (b"\xff\xfe", False, "cannot be read"),
        ({"max_tokens": 3}, False, "prompt"),
        ({"prompt": ["a", "b"]}, False, "one list of token ids"),
        ({"prompt": ""}, False, "empty"),
        ({"prompt": []}, False, "empty"),
        ({"prompt": [-1]}, False, "token ids"),
        ({"prompt": [2**31]}, False, "token ids"),
        ({"prompt": [2**70]}, False, "token ids"),
        ({"prompt": [1.5]}, False, "one list of token ids"),
        ({"prompt": [1, None]}, False, "one list of token ids"),
        (b'{"prompt": [1,,2]}', False, "cannot be read"),
        (b'{"prompt": [1 2]}', False, "cannot be read"),
        ({"prompt": "a", "max_tokens": 0}, False, "max_tokens"),
        ({"prompt": "a", "max_tokens": "3"}, False, r"\$.max_tokens"),
        ({"prompt": "a", "n": 2}, False, "n = 1"),
        ({"prompt": "a", "echo": True}, False, "echo"),
        ({"messages": []}, True, "empty"),
        ({"messages": [{"content": "x"}]}, True, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, True, "text parts"),
    ],
)
def test_bad_bodies_are_one_sentence(body, chat, says):
    """Breaks when a body that cannot be served is served, or ends in a traceback."""
    with pytest.raises(openai.BadRequest, match=says) as caught:
        parse(body, chat)
    assert "\n" not in str(caught.value)


def test_limits_by_their_two_names():
    """Breaks when `max_completion_tokens` is not understood, or unset limits are not the documented ones."""
    assert parse({"prompt": "a", "max_tokens": 5}).max_tokens == 5
    assert parse({"prompt": "a", "max_completion_tokens": 6, "max_tokens": 5}).max_tokens == 6
    assert parse({"prompt": "a"}).max_tokens == 16


FINISH = Finish(1, 64, "P-RLD-MD", 1, {"mode": "one_shot", "token": 1, "rounds": 1, "bytes": 9}, None)


@pytest.mark.parametrize("chat", [False, True])
def test_chunks_are_openai_with_the_pdd_extension(chat):
    """Breaks when a chunk is not what OpenAI clients read, or the extension is not as DESIGN §8 has it."""
    body = {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    request = parse({**body, "max_tokens": 2, "stream": True}, chat)
    chunks = openai.Chunks(request, "id-1", "m", 5)
    events = [chunks.tokens([("rld", 0, 7)]), chunks.tokens([("md", 1, 8)], None, True), chunks.usage(request, FINISH)]
    first, last, usage = (json.loads(event.removeprefix(b"data: ")) for event in events)
    assert first["object"] == ("chat.completion.chunk" if chat else "text_completion")
    text = first["choices"][0]["delta"]["content"] if chat else first["choices"][0]["text"]
    assert text == " w7"
    assert first["pdd"] == {"stage": "rld", "index": 0}
    assert (first["choices"][0]["finish_reason"], last["choices"][0]["finish_reason"]) == (None, "length")
    assert usage["choices"] == []
    assert usage["usage"]["prompt_tokens_details"]["cached_tokens"] == 64
    assert usage["pdd"] == {"pipeline": "P-RLD-MD", "eager": 1, "handoff": FINISH.handoff, "kv": None}
    together = json.loads(chunks.tokens([("md", 0, 7), ("md", 1, 8)], FINISH, True).removeprefix(b"data: "))
    assert together["pdd"] == {"stage": "md", "index": 1, **usage["pdd"]}


@pytest.mark.parametrize("chat", [False, True])
def test_token_ids_come_along_only_when_asked_for(chat):
    """Breaks when live history cannot repeat a reply, or when every client pays for ids that it did not ask for."""
    body = {"messages": [{"role": "user", "content": "x"}]} if chat else {"prompt": "x"}
    for asked in (False, True):
        request = parse({**body, "max_tokens": 2, "return_token_ids": asked}, chat)
        chunks = openai.Chunks(request, "id-1", "m", 5)
        event = json.loads(chunks.tokens([("md", 0, 7), ("md", 1, 8)]).removeprefix(b"data: "))
        whole = json.loads(openai.whole(request, "id-1", "m", 5, [7, 8], FINISH))
        for answer in (event, whole):
            assert answer["choices"][0].get("token_ids") == ([7, 8] if asked else None)
    text = whole["choices"][0]["message"]["content"] if chat else whole["choices"][0]["text"]
    assert text == " w7 w8"


@given(st.permutations(range(8)))
def test_replies_come_out_in_order(order):
    """Breaks when MD's first token overtakes RLD's last on the way to the client."""
    reply = Reply(8)
    out = [piece for index in order for piece in reply.accept("d", index, index)]
    assert [index for _, index, _ in out] == list(range(8))
    with pytest.raises(ValueError, match="twice"):
        reply.accept("d", 3, 3)


SPLITS = st.lists(st.integers(1, 300), min_size=1, max_size=20)


@given(st.lists(st.one_of(st.integers(0, 2000), st.text(max_size=20)), max_size=8), SPLITS)
def test_frames_survive_any_split(items, sizes):
    """Breaks when a frame or its filler is cut at an unlucky byte."""
    got = []
    wire = Wire(lambda _, message: got.append(message), lambda: None)
    raw, filler = b"", 0
    for item in items:
        if isinstance(item, int):
            raw += b"\0\0\0\0" + item.to_bytes(4, "big") + bytes(item)
            filler += item
        else:
            body = encode(Tokens(item, [(1, 2, 3)]))
            raw += len(body).to_bytes(4, "big") + b"\0\0\0\0" + body
    for cut in itertools.cycle(sizes):
        if not raw:
            break
        wire.data_received(raw[:cut])
        raw = raw[cut:]
    assert [message.stage for message in got] == [item for item in items if isinstance(item, str)]
    assert wire.filler_received_bytes == filler


@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_lateness_quantiles_are_within_their_bucket(values, q):
    """Breaks when the gate on the emulator's own lateness reads a wrong figure."""
    late = Lateness()
    for value in values:
        late.add(value)
    exact = sorted(values)[max(0, -(-int(q * 100) * len(values) // 100) - 1)]
    assert exact <= late.quantile_ns(q) <= exact * 1.07 + 1
    assert late.max_ns == max(values)


@pytest.mark.parametrize("timerfd", [True, False])
async def test_live_time_never_runs_backwards(monkeypatch, timerfd):
    """Breaks when an event from outside is handled before timers that were due earlier."""
    if not timerfd:
        monkeypatch.setattr(liveclock, "_TimerFd", liveclock._LoopTimer)  # as on a host without timerfd
    clock = LiveClock(asyncio.get_running_loop(), 10.0, time.monotonic_ns())
    seen = []
    for i in range(20):
        clock.call_at(0.05 * i, lambda i=i: seen.append((clock.now(), i)))
    for _ in range(10):
        await asyncio.sleep(0.01)
        time.sleep(0.002)  # noqa: ASYNC251  (timers pile up)
        clock.enter(lambda: seen.append((clock.now(), -1)))
    await asyncio.sleep(0.1)
    assert [now for now, _ in seen] == sorted(now for now, _ in seen)
    assert [now for now, i in seen if i >= 0] == [0.05 * i for i in range(20)]


def spec_of(arm=None, **experiment):
    arm = arm or Arm(name="x", emulated="pdd")
    return emulator_spec(arm, Experiment(name="e", workload=Workload(trace=""), arm=[arm], **experiment))


def test_presets_and_overrides():
    """Breaks when an arm's own settings do not win over the experiment's, or these over the presets."""
    arm = Arm(name="x", emulated="pdd", speed=3, drc=False, roles={"RLD": Role(chip="B", count=2)})
    spec = spec_of(arm, emulator=EmulatorOptions(speed=2, kv_scale=7))
    assert (spec.speed, spec.kv_scale, spec.drc) == (3, 7, False)
    assert (spec.roles["RLD"].chip, spec.roles["RLD"].count) == (CHIPS["B"], 2)
    assert spec.roles["P"].count == ROLES["pdd"]["P"][1]
    assert spec.model == MODELS["deepseek-v3-fp8"]
    assert CHIPS["A"].prefill_a_s + CHIPS["A"].prefill_b_s * 131072 + CHIPS["A"].prefill_c_s * 131072**2 / 2 == (
        pytest.approx(5.57, rel=0.05)
    )


@pytest.mark.parametrize(
    ("arm", "experiment", "says"),
    [
        ({"base_url": "http://x"}, {}, "not an emulated one"),
        ({"emulated": "pdd", "roles": {"MDD": Role(chip="A", count=1)}}, {}, "did you mean 'MD'"),
        ({"emulated": "pdd", "roles": {"MD": Role(chip="C", count=1)}}, {}, "unknown chip 'C'"),
        ({"emulated": "pdd", "roles": {"MD": Role(chip="A", count=0)}}, {}, "count = 0"),
        ({"emulated": "pdd"}, {"cost": Cost(chips={"A": 2.0})}, "chip 'B' has no price"),
        ({"emulated": "pdd"}, {"emulator": EmulatorOptions(model="deepseek-v3-fp9")}, "did you mean 'deepseek-v3-fp8'"),
        ({"emulated": "pdd", "speed": 0.0}, {}, "speed = 0"),
        ({"emulated": "pdd", "kv_scale": 0.5}, {}, "kv_scale"),
        ({"emulated": "pdd", "block_tokens": 0}, {}, "block_tokens"),
        ({"emulated": "pdd", "threshold_s": -1.0}, {}, "threshold_s"),
        ({"emulated": "pdd", "first_token_from_p": True}, {}, "naive only"),
    ],
)
def test_arms_that_cannot_be_built(arm, experiment, says):
    """Breaks when a misspelt role, chip or model, or a figure out of range, is replaced in silence."""
    given_arm = Arm(name="x", **({"emulated": None} | arm if "base_url" in arm else arm))
    with pytest.raises(InputError, match=says):
        spec_of(given_arm, **experiment)


def test_help_of_up_states_the_real_defaults():
    """Breaks when a default changes in the experiment's types and the command's help keeps the old one."""
    import re

    from pddbench.cli.up import up

    options = {param.name: param for param in up.params}
    defaults = EmulatorOptions()
    for name in ("speed", "kv_scale", "threshold_s", "model", "block_tokens", "tokens_per_chunk"):
        shown = re.search(r"\[default: (.+?)\]", options[name].help).group(1)
        assert shown in (str(getattr(defaults, name)), f"{getattr(defaults, name)}".removesuffix(".0"))
