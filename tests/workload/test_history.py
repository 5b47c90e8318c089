"""Live history: the engine's own replies in later prompts, whatever their length, and nothing changed silently."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pddbench.errors import InputError
from pddbench.trace.hits import NEVER_NS, possible_hits
from pddbench.trace.model import Header, Row, Trace
from pddbench.workload.experiment import Workload
from pddbench.workload.history import Replies, Reply, sent_rows
from pddbench.workload.load import check as check_experiment
from pddbench.workload.load import convert
from pddbench.workload.plan import make_plan
from pddbench.workload.prompts import BodyWriter, PromptBook
from pddbench.workload.words import WORDS

REPLY_BASE = 1 << 20  # ids of replies lie above all that is drawn


@st.composite
def sessions(draw):
    """Up to 3 sessions of up to 8 turns; prompts share any earlier context, inside the session or not."""
    rows = []
    for i in range(draw(st.integers(1, 14))):
        session = draw(st.integers(0, 2))
        mine = [r.request_id for r in rows if r.session_id == f"s{session}"]
        parents = tuple(draw(st.lists(st.sampled_from(mine), min_size=1, max_size=2, unique=True))) if mine else ()
        donor = draw(st.integers(-1, i - 1))
        length = rows[donor].input_tokens + rows[donor].output_tokens if donor >= 0 else 0
        prefix = length if draw(st.booleans()) else draw(st.integers(0, length))
        rows.append(
            Row(
                f"r{i}", f"s{session}", 0, prefix + draw(st.integers(0 if prefix else 1, 9)), draw(st.integers(1, 9)),
                parents, 0.0, None, f"r{donor}" if donor >= 0 else None, prefix, "tool",
            )
        )  # fmt: skip
    return Trace(Header(), rows)


def live_plan(trace, **work):
    return make_plan(trace, Workload(trace="t", history="live", **work))


def answered(plan, lengths):
    """Replies of these lengths to all requests, their ids and words telling whose they are."""
    replies = Replies(plan)
    for index, n in enumerate(lengths):
        ids = [REPLY_BASE + 1000 * index + k for k in range(n)]
        replies.put(index, Reply(n, ids, [f" r{index}.{k}" for k in range(n)]))
    return replies


@given(sessions(), st.data())
@settings(max_examples=60, deadline=None)
def test_prompts_are_made_of_the_replies_that_came(trace, data):
    """Without it, lengths in the rows, bytes on the wire and possible hits would tell three different stories."""
    plan = live_plan(trace)
    n = len(plan.requests)
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=n, max_size=n))
    book = PromptBook(plan, "salt", (0, 1 << 19), answered(plan, lengths))
    rows = sent_rows(plan, lengths)
    prompts = [book.ids(i).tolist() for i in range(n)]
    contexts = [p + [REPLY_BASE + 1000 * i + k for k in range(lengths[i])] for i, p in enumerate(prompts)]
    for request, prefix, length, prompt in zip(
        plan.requests, rows.prefix_tokens, rows.input_tokens, prompts, strict=True
    ):
        assert len(prompt) == length
        if request.prefix_of >= 0:
            assert prompt[:prefix] == contexts[request.prefix_of][:prefix]
    times = list(range(0, 10 * n, 10))
    hits = possible_hits(rows, [r.prefix_of for r in plan.requests], times, times, plan.basis)
    for i in range(n):
        best = max((shared(prompts[i], contexts[j]) for j in range(i)), default=0)
        assert hits[i] == best


def shared(a, b):
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@given(sessions())
@settings(max_examples=60, deadline=None)
def test_replies_of_the_planned_length_give_the_planned_prompts_and_hits(trace):
    """Without it, pinned lengths would not be enough to replay the planned workload."""
    plan = live_plan(trace)
    rows = sent_rows(plan, [r.output_tokens for r in plan.requests])
    assert rows.input_tokens.tolist() == [r.input_tokens for r in plan.requests]
    times = list(range(0, 10 * len(plan.requests), 10))
    hits = possible_hits(rows, [r.prefix_of for r in plan.requests], times, times, plan.basis)
    assert [min(int(hit), r.input_tokens - 1) for hit, r in zip(hits, plan.requests, strict=True)] == [
        r.cached_tokens_planned for r in plan.requests
    ]


@given(sessions())
@settings(max_examples=60, deadline=None)
def test_no_prompt_needs_a_reply_that_it_does_not_wait_for(trace):
    """Without it, a branch would need the reply of another one that is still running."""
    plan = live_plan(trace)
    for request in plan.requests:
        before, todo = set(), list(request.parents)
        while todo:
            parent = todo.pop()
            before.add(parent)
            todo += plan.requests[parent].parents
        replies = Replies(plan)
        for index in before:
            replies.put(index, Reply(2, [1, 2], ["a", "b"]))
        PromptBook(plan, "salt", (0, 9), replies).ids(request.index)  # KeyError where another reply is needed


def test_a_reply_shared_across_sessions_is_cut_and_said():
    """Without it, the planned hits would promise tokens that nobody can send."""
    rows = [
        Row("a", "s", 0, 50, 10, start_s=0.0),
        Row("b", "t", 0, 80, 10, start_s=9.0, prefix_of="a", prefix_tokens=57),
        Row("c", "t", 1, 95, 10, ("b",), prefix_of="b", prefix_tokens=90),
    ]
    plan = live_plan(Trace(Header(), rows))
    assert [r.prefix_tokens for r in plan.requests] == [0, 50, 90]
    assert [r.cached_tokens_planned for r in plan.requests] == [0, 50, 90]
    assert plan.counts == {"cut_shared_replies": 1, "prompts_with_replies": 1, "unknown_gaps": 1}
    assert any("7 tokens of them are fresh" in note for note in plan.notes)
    recorded = make_plan(Trace(Header(), rows), Workload(trace="t"))
    assert [r.cached_tokens_planned for r in recorded.requests] == [0, 50, 80], "recorded replies never hit"


def test_a_trace_that_does_not_tell_where_replies_are_is_said_to_gain_nothing():
    """Without it, a user of block ids would believe that live replies were replayed."""
    rows = [Row("a", "s", 0, 64, 10, start_s=0.0), Row("b", "s", 1, 128, 10, ("a",), prefix_of="a", prefix_tokens=64)]
    assert any(
        "no prompt of this trace goes on from a reply" in note for note in live_plan(Trace(Header(), rows)).notes
    )
    assert not any("no prompt" in note for note in live_plan(Trace(Header(), TWO)).notes)


def test_a_reply_can_only_hit_once_it_is_complete():
    """Without it, a reply still being written would count as cached."""
    rows = sent_rows(live_plan(Trace(Header(), TWO)), [10, 10])
    early = possible_hits(rows, [-1, 0], [0, 5], [1, 9], "prompt+output", [NEVER_NS, 9])
    late = possible_hits(rows, [-1, 0], [0, 5], [1, 9], "prompt+output", [4, 9])
    assert (early.tolist(), late.tolist()) == ([0, 50], [0, 60])


TWO = [
    Row("a", "s", 0, 50, 10, start_s=0.0),
    Row("b", "s", 1, 70, 10, ("a",), prefix_of="a", prefix_tokens=60),
]


def chat_body(plan, replies, index, **overhead):
    book = PromptBook(plan, "salt", (0, len(WORDS)), replies)
    writer = BodyWriter(
        book, plan, model="m", chat=True, token_ids=False, fields={}, limit_field="max_tokens", min_tokens=False,
        **overhead,
    )  # fmt: skip
    return msgspec.json.decode(writer(index))["messages"]


def test_chat_prompts_are_conversations_with_the_reply_in_them():
    """Without it, a chat template would not see turns, and the shared prefix would end at the first reply."""
    plan = live_plan(Trace(Header(), TWO))
    replies = answered(plan, [10, 10])
    first = chat_body(plan, replies, 0, overhead_tokens=8, turn_overhead_tokens=5)
    second = chat_body(plan, replies, 1, overhead_tokens=8, turn_overhead_tokens=5)
    assert [m["role"] for m in second] == ["user", "assistant", "user"]
    assert second[0] == first[0] and len(first[0]["content"].split()) == 50 - 8
    assert second[1]["content"] == "".join(f" r0.{k}" for k in range(10))
    assert len(second[2]["content"].split()) == 10 - 5


def test_text_prompts_without_a_template_hold_the_reply_as_it_came():
    """`/v1/completions` takes one text: a reply that is re-spaced, or glued to a word, would be other tokens."""
    plan = live_plan(Trace(Header(), TWO))
    book = PromptBook(plan, "salt", (0, len(WORDS)), answered(plan, [10, 10]))
    writer = BodyWriter(
        book, plan, model="m", chat=False, token_ids=False, fields={}, limit_field="max_tokens", min_tokens=False
    )
    first, second = (msgspec.json.decode(writer(index))["prompt"] for index in (0, 1))
    reply = "".join(f" r0.{k}" for k in range(10))
    assert second.startswith(first + reply + " ")
    assert [len(text.split()) for text in (first, second)] == [50, 70]


def test_part_of_a_reply_is_part_of_its_chunks():
    """An edit that goes back into a reply keeps its beginning; ids exactly, text by whole chunks."""
    reply = Reply(8, list(range(8)), ["a", "b", "c", "d"])
    assert (reply.ids_until(3), reply.text_until(4), reply.text_until(8)) == ([0, 1, 2], "ab", "abcd")
    assert Reply(0, [], []).text_until(3) == ""


def test_replies_are_forgotten_with_their_session():
    """A day of traffic would keep every reply in memory."""
    rows = [*TWO, Row("z", "other", 0, 5, 5, start_s=0.0)]
    plan = live_plan(Trace(Header(), rows))
    replies = answered(plan, [10, 10, 5])
    for index in (0, 2, 1):
        replies.done(index)
    assert len(replies) == 0


EXPERIMENT = {
    "name": "x",
    "workload": {"trace": "t", "history": "live"},
    "arm": [{"name": "a", "base_url": "http://127.0.0.1:1/v1", "model": "m", "profile": "vllm"}],
}


def checked(**changes):
    data = {**EXPERIMENT, "workload": {**EXPERIMENT["workload"], **changes.pop("workload", {})}}
    data["arm"] = [{**EXPERIMENT["arm"][0], **changes}]
    experiment = convert(data, "x.toml")
    check_experiment(experiment, "x.toml")
    return experiment.workload


def test_live_history_always_abandons():
    """Without it, a turn after a failure would be sent without the reply it stands on."""
    assert checked().parent_failure == "abandon"
    assert Workload(trace="t").parent_failure == "continue"
    with pytest.raises(InputError, match="cannot continue after a failed request"):
        checked(workload={"on_parent_failure": "continue"})


def test_an_endpoint_without_reply_ids_is_refused_before_traffic():
    """Without it, the run would stop at the second turn of every session."""
    with pytest.raises(InputError, match="profile 'sglang' has no way to ask for the ids of a reply"):
        checked(profile="sglang")
    assert checked(profile="sglang", workload={"prompt": "text"}).history == "live"
