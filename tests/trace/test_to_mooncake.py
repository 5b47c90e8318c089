"""Traces written as Mooncake: what it can say is the same when read again, what it cannot is told."""

import json
import random

import pytest

from pddbench.errors import InputError
from pddbench.trace.content import messages_of, read_content_file, side_path, write_content
from pddbench.trace.contexts import contexts
from pddbench.trace.hits import donor_indices, planned_hits
from pddbench.trace.model import Content, Header, Row, Trace
from pddbench.trace.mooncake import read_mooncake
from pddbench.trace.to_mooncake import mooncake_lines, write_mooncake
from pddbench.trace.weka import read_weka


def random_rows(seed, n=60):
    """Roots with a start and any donor, any share of its context."""
    rng = random.Random(seed)
    rows = []
    for i in range(n):
        inputs, outputs = rng.randrange(0, 200), rng.randrange(0, 60)
        donor = rng.choice(rows) if rows and rng.random() < 0.8 else None
        shared = rng.randrange(0, min(inputs, donor.input_tokens + donor.output_tokens) + 1) if donor else 0
        name = donor.request_id if donor else None
        rows.append(Row(f"r{i}", f"r{i}", 0, inputs, outputs, (), i * 0.25, None, name, shared))
    return rows


def tokens_of(rows):
    """Every prompt written out, a token being (the row that brought it, its place)."""
    found = []
    for row, path in zip(rows, contexts(rows, donor_indices(rows)), strict=True):
        found.append([(part.owner, at) for part in path for at in range(part.start, part.end)][: row.input_tokens])
    return found


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("block", [1, 7, 16, 512])
def test_ids_are_equal_exactly_where_prompts_are(seed, block):
    """An id too many or too few in common is another hit rate."""
    rows = random_rows(seed)
    lines, prompts = mooncake_lines(rows, block), tokens_of(rows)
    seen = {}
    for line, prompt in zip(lines, prompts, strict=True):
        assert len(line.hash_ids) == -(-len(prompt) // block)
        for i, block_id in enumerate(line.hash_ids):
            assert seen.setdefault(block_id, tuple(prompt[: (i + 1) * block])) == tuple(prompt[: (i + 1) * block])
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize("seed", range(5))
def test_blocks_of_one_token_lose_no_hit(tmp_path, seed):
    """Read again, the hits are the planned ones to the token."""
    rows = random_rows(seed)
    lost = write_mooncake(Trace(Header(), rows), tmp_path / "m.jsonl", 1)
    again = read_mooncake(tmp_path / "m.jsonl", 1)
    assert planned_hits(again.rows).tolist() == planned_hits(rows).tolist()
    assert not any("parts of a block" in text or "order" in text for text in lost)


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_is_told_to_the_token(tmp_path, seed):
    """'Some sharing is lost' would hide that it may be nearly all."""
    rows = random_rows(seed)
    lost = write_mooncake(Trace(Header(), rows), tmp_path / "m.jsonl", 16)
    kept = int(planned_hits(read_mooncake(tmp_path / "m.jsonl", 16).rows).sum())
    planned = int(planned_hits(rows).sum())
    assert f"hits in parts of a block of 16: {planned - kept:,} of {planned:,} tokens" in lost


def test_sessions_order_replies_and_text_are_told(tmp_path):
    """Everything that Mooncake has no field for."""
    rows = [
        Row("a", "s", 0, 10, 5, (), 2.0),
        Row("b", "s", 1, 20, 5, ("a",), 1.0005, 0.0, "a", 15, "tool"),
        Row("c", "c", 0, 30, 5, (), 0.5, None, "b", 25),
    ]
    lost = write_mooncake(Trace(Header(), rows, [Content("a", [])]), tmp_path / "m.jsonl", 1)
    text = " / ".join(lost)
    for part in ("gaps of 1 requests", "tool", "hits in replies: 10 tokens", "order of the rows", "text, roles"):
        assert part in text
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [line["timestamp"] for line in lines] == [500, 1000.5, 2000]


def test_a_request_without_a_start_is_refused(tmp_path):
    """Mooncake has no gaps; a start that is made up is a workload nobody recorded."""
    rows = [Row("a", "s", 0, 10, 5, (), 0.0), Row("b", "s", 1, 20, 5, ("a",), None, 3.0)]
    with pytest.raises(InputError, match="'b' has no recorded start"):
        write_mooncake(Trace(Header(), rows), tmp_path / "m.jsonl")
    assert not list(tmp_path.iterdir())


def test_real_traces_come_back(tmp_path, data):
    """Of a Mooncake file nothing is lost; a WEKA session keeps its hits in blocks of its own size."""
    first = read_mooncake(data / "mooncake" / "conversation_first1500.jsonl")
    assert write_mooncake(first, tmp_path / "m.jsonl") == []
    again = read_mooncake(tmp_path / "m.jsonl")
    assert [(r.start_s, r.input_tokens, r.output_tokens) for r in again.rows] == [
        (r.start_s, r.input_tokens, r.output_tokens) for r in first.rows
    ]
    assert planned_hits(again.rows).tolist() == planned_hits(first.rows).tolist()
    weka = read_weka(data / "weka" / "trace_0142.json")
    write_mooncake(weka, tmp_path / "w.jsonl", 64)
    assert planned_hits(read_mooncake(tmp_path / "w.jsonl", 64).rows).sum() == 1_814_784


@pytest.mark.parametrize(
    ("name", "side"),
    [
        ("a.trace.parquet", "a.content.jsonl.zst"),
        ("a.trace.jsonl.zst", "a.content.jsonl.zst"),
        ("a.b.trace.jsonl", "a.b.content.jsonl.zst"),
        ("a.jsonl.gz", "a.content.jsonl.zst"),
    ],
)
def test_name_of_the_side_file(tmp_path, name, side):
    """It must be found from any form of the trace."""
    assert side_path(tmp_path / name) == tmp_path / side


def test_side_file_comes_back_as_it_was(tmp_path):
    """Text that changes on the way is other tokens."""
    content = [
        Content("a", [{"role": "user", "content": "ü\n\u2028", "n": 1.5}], {"role": "assistant", "content": None}),
        Content("b", ["x"], None, "a", 2, [{"name": "t"}], {"k": [1]}),
    ]
    write_content(content, tmp_path / "s.content.jsonl.zst")
    again = read_content_file(tmp_path / "s.content.jsonl.zst")
    assert again == content
    assert messages_of(again)["b"] == [content[0].messages[0], content[0].reply, "x"]
    with pytest.raises(InputError, match="cannot be written"):
        write_content(content, tmp_path / "none" / "s.content.jsonl.zst")
