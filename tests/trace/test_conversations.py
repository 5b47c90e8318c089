"""ShareGPT-like data sets and trajectories of agents."""

import json

import pytest

from pddbench.errors import TraceError
from pddbench.trace.content import messages_of
from pddbench.trace.conversations import read_sharegpt, read_sweagent
from pddbench.trace.hits import planned_hits
from pddbench.trace.read import detect_format


def put(path, value):
    path.write_text(json.dumps(value, indent=1))
    return path


def said(*texts):
    return [{"from": "human" if i % 2 == 0 else "gpt", "value": text} for i, text in enumerate(texts)]


SYSTEM = {"role": "system", "content": "s" * 40}


def test_every_reply_is_a_request(tmp_path):
    """A conversation of two replies is two requests, the second on top of the first."""
    trace = read_sharegpt(put(tmp_path / "s.json", [{"id": "c", "conversations": said("abcd", "ef", "gh", "ij")}]))
    found = [(r.request_id, r.session_id, r.parents, r.input_tokens, r.output_tokens, r.prefix_of) for r in trace.rows]
    assert found == [("0/c/0", "0/c", (), 5, 5, None), ("0/c/1", "0/c", ("0/c/0",), 15, 5, "0/c/0")]
    assert trace.rows[1].prefix_tokens == 10 and planned_hits(trace.rows).tolist() == [0, 5]
    assert trace.header.lengths == "estimated" and trace.header.counts == {"unknown_gaps": 1}
    assert any("no times are recorded" in text for text in trace.header.assumptions)


def test_shared_system_prompts_are_found_across_conversations(tmp_path):
    """They are most of what short chats share."""
    chats = [
        {"messages": [SYSTEM, {"role": "user", "content": q}, {"role": "assistant", "content": "a"}]} for q in "xy"
    ]
    trace = read_sharegpt(put(tmp_path / "s.json", chats))
    assert planned_hits(trace.rows).tolist() == [0, 14]
    assert [r.session_id for r in trace.rows] == ["0/0", "1/1"]


def test_what_makes_no_request_is_said(tmp_path):
    """Replies to nothing, questions without a reply, empty conversations: counted, none dropped in silence."""
    chats = [
        {"conversations": [{"from": "gpt", "value": "hello"}, *said("q", "a", "left")]},
        {"conversations": said("alone")},
        {"conversations": []},
    ]
    trace = read_sharegpt(put(tmp_path / "s.json", chats))
    assert len(trace.rows) == 1 and trace.rows[0].input_tokens == 6 + 5
    assert trace.header.counts == {
        "leading_replies": 1,
        "conversations_without_reply": 2,
        "unanswered_messages": 2,
    }
    with pytest.raises(TraceError, match="no reply of an assistant"):
        read_sharegpt(put(tmp_path / "e.json", [{"conversations": said("alone")}]))


def test_lines_and_array_are_the_same(tmp_path):
    """Data sets come in both forms."""
    chats = [{"id": str(i), "conversations": said("q" * i, "a")} for i in range(1, 4)]
    lines = tmp_path / "s.jsonl"
    lines.write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    array = put(tmp_path / "s.json", chats)
    assert detect_format(lines) == detect_format(array) == "sharegpt"
    assert read_sharegpt(lines).rows == read_sharegpt(array).rows


@pytest.mark.parametrize(
    ("chat", "field"),
    [
        ({"conversations": "x"}, "[1].conversations"),
        ({"conversations": [{"value": "no role"}]}, "[1].conversations[0]"),
        ({"title": "x"}, "[1]"),
        ("text", "[1]"),
    ],
)
def test_bad_conversations_are_named(tmp_path, chat, field):
    """In an array of 90,000 the number of the bad one is what is needed."""
    with pytest.raises(TraceError) as caught:
        read_sharegpt(put(tmp_path / "s.json", [{"conversations": said("q", "a")}, chat]))
    assert caught.value.field == field


def test_demonstrations_are_no_requests(tmp_path):
    """SWE-agent puts a worked example into the prompt; its replies were never generated."""
    demo = [{"role": "user", "content": "eg"}, {"role": "assistant", "content": "do", "is_demo": True}]
    history = [SYSTEM, *demo, {"role": "user", "content": "now"}, {"role": "assistant", "content": "ok"}]
    trace = read_sweagent(put(tmp_path / "x.traj", {"history": history, "info": {"exit": "done"}}))
    assert len(trace.rows) == 1 and messages_of(trace.content)["x/0"] == history[:4]
    assert trace.content[0].extra == {"info": {"exit": "done"}}


def test_tool_calls_are_tokens_and_kinds(tmp_path):
    """A reply of tool calls alone is not of length 0, and what follows a tool's result is no user's turn."""
    calls = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "ls", "arguments": "{}"}}]}
    history = [SYSTEM, calls, {"role": "tool", "content": "a b"}, {"role": "assistant", "content": "done"}]
    trace = read_sweagent(put(tmp_path / "x.json", history))
    assert [r.kind for r in trace.rows] == ["root", "tool"] and trace.rows[0].output_tokens > 4 + 10
    assert trace.rows[1].prefix_tokens == trace.rows[0].input_tokens + trace.rows[0].output_tokens


@pytest.mark.parametrize("name", ["function_calling_simple.traj", "mini-swe-agent.local.traj.json"])
def test_real_trajectories_keep_all_their_text(data, name):
    """The side file holds every prompt, message for message, and each is a prefix of the next."""
    path = data / "sweagent" / name
    history = json.loads(path.read_text())
    history = history["history"] if isinstance(history, dict) else history
    assert detect_format(path) == "sweagent"
    trace = read_sweagent(path)
    places = [i for i, message in enumerate(history) if message["role"] == "assistant"]
    assert list(messages_of(trace.content).values()) == [history[:place] for place in places]
    assert sum(len(item.messages) for item in trace.content) < len(history)
