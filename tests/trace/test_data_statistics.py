"""Every file of public data against counts made here by other means: plain loops over the files as they lie."""

import csv
import io
import json
import math

import pytest

from pddbench.trace.read import read_trace
from pddbench.trace.stats import trace_stats


def quantile(values, q):
    return sorted(values)[math.ceil(q * len(values)) - 1]


def check(stats, requests, sessions, inputs, outputs):
    assert (stats.requests, stats.sessions) == (requests, sessions)
    for found, q, values in (
        (stats.input_tokens, stats.input_quantiles, inputs),
        (stats.output_tokens, stats.output_quantiles, outputs),
    ):
        assert found == sum(values)
        assert (q.p50, q.p90, q.p99, q.max) == (*(quantile(values, p) for p in (0.5, 0.9, 0.99)), max(values))


def cells(path):
    return list(csv.DictReader(io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")))


def block_hits(rows, block):
    """Hit tokens of (input, ids) rows: ids of a prefix that was there before; ids beyond the input are no tokens."""
    seen, total = {}, 0  # id -> what followed it
    for length, ids in rows:
        at, known = seen, 0
        for block_id in ids[: math.ceil(length / block)]:
            known += block_id in at
            at = at.setdefault(block_id, {})
        total += min(length, block * known)
    return total


MOONCAKE = ["mooncake/conversation_first1500", "mooncake/synthetic_first600", "synthetic/mooncake_traps"]


@pytest.mark.parametrize("name", [*MOONCAKE, "aiperf/precise_schedule", "aiperf/production_trace"])
def test_mooncake(data, name):
    """Sizes and hits of Mooncake and AIPerf files."""
    path = data / f"{name}.jsonl"
    lines = [json.loads(line) for line in path.read_text().split("\n") if line]
    lines.sort(key=lambda line: line["timestamp"])
    stats = trace_stats(read_trace(path))
    check(stats, len(lines), len(lines), *([x[f] for x in lines] for f in ("input_length", "output_length")))
    assert stats.hit_tokens == block_hits([(x["input_length"], x.get("hash_ids", [])) for x in lines], 512)
    assert stats.span_s == pytest.approx((lines[-1]["timestamp"] - lines[0]["timestamp"]) / 1000)


def weka_requests(entries, zero=0.0):
    for entry in entries:
        if entry.get("type") == "subagent":
            first = min((inner["t"] for inner in entry["requests"]), default=0)
            yield from weka_requests(entry["requests"], 0.0 if first >= zero + entry["t"] else zero + entry["t"])
        else:
            yield zero + entry["t"], entry


WEKA = ["0026", "0142", "0202", "0217", "0277", "0291", "0326", "0553", "0571", "0707"]


@pytest.mark.parametrize("name", [f"weka/trace_{number}" for number in WEKA] + ["synthetic/weka_traps"])
def test_weka(data, name):
    """Sizes and hits of kv-cache-tester sessions, sub-agents by their start."""
    path = data / f"{name}.json"
    document = json.loads(path.read_text())
    found = sorted(weka_requests(document["requests"]), key=lambda item: item[0])
    stats = trace_stats(read_trace(path))
    check(stats, len(found), 1, *([x[f] for _, x in found] for f in ("in", "out")))
    assert stats.hit_tokens == block_hits([(x["in"], x["hash_ids"]) for _, x in found], document["block_size"])
    assert stats.span_s == pytest.approx(found[-1][0] - found[0][0], abs=1e-5)


@pytest.mark.parametrize(
    "name",
    ["azure/AzureLLMInferenceTrace_code", "azure/AzureLLMInferenceTrace_conv_first6000", "synthetic/azure_traps"],
)
def test_azure(data, name):
    """Sizes and span of the Azure files; no prompt shares anything."""
    lines = cells(data / f"{name}.csv")
    stats = trace_stats(read_trace(data / f"{name}.csv"))
    tokens = ([int(x[f]) for x in lines] for f in ("ContextTokens", "GeneratedTokens"))
    check(stats, len(lines), len(lines), *tokens)

    def seconds(text):
        hours, minutes, rest = text.split(" ")[1].split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(rest)

    times = [seconds(x["TIMESTAMP"]) for x in lines]
    assert stats.span_s == pytest.approx(max(times) - min(times), abs=1e-5)
    assert stats.hit_tokens == stats.prompt_output.hit_tokens == 0


def test_burstgpt(data):
    """Sizes and sessions of BurstGPT."""
    path = data / "synthetic" / "burstgpt_traps.csv"
    lines = cells(path)
    sessions = len({x["Session ID"] or f"line {i}" for i, x in enumerate(lines)})
    stats = trace_stats(read_trace(path))
    check(stats, len(lines), sessions, *([int(x[f]) for x in lines] for f in ("Request tokens", "Response tokens")))
    assert stats.counts["failed_requests"] == sum(x["Response tokens"] == "0" for x in lines)


def test_bailian(data):
    """Sizes, chains and hits of Bailian."""
    path = data / "synthetic" / "bailian_traps.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    known = {x["chat_id"] for x in lines}
    stats = trace_stats(read_trace(path))
    roots = sum(x["parent_chat_id"] not in known for x in lines)
    check(stats, len(lines), roots, *([x[f] for x in lines] for f in ("input_length", "output_length")))
    assert stats.hit_tokens == block_hits([(x["input_length"], x["hash_ids"]) for x in lines], 16) == 48


def test_tracelab_rounds(data):
    """Sizes of TraceLab; with replies cached, the hits are those that the provider reported, first rounds apart."""
    path = data / "tracelab" / "round_trace.sanitized.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    stats = trace_stats(read_trace(path))
    sizes = ([x[f] for x in lines] for f in ("input_tokens_total", "output_tokens"))
    check(stats, len(lines), len({x["session_id"] for x in lines}), *sizes)
    assert stats.prompt_output.hit_tokens == sum(x["prefix_tokens"] for x in lines if x["round_index"])
    assert stats.counts["hit_tokens_without_donor"] == sum(x["prefix_tokens"] for x in lines if not x["round_index"])


@pytest.mark.parametrize("name", ["multi_session_large", "session_workload_example"])
def test_tracelab_csv(data, name):
    """Sizes of the replay files; the span is that of the arrivals."""
    path = data / "tracelab" / f"{name}.csv"
    lines = cells(path)
    stats = trace_stats(read_trace(path))
    inputs = [int(x["prefix_len"]) + int(x["input_len"]) for x in lines]
    check(stats, len(lines), len({x["session_id"] for x in lines}), inputs, [int(x["output_len"]) for x in lines])
    arrivals = [float(x.get("arrival_time", 0)) / 1000 for x in lines]
    assert stats.span_s == pytest.approx(max(arrivals) - min(arrivals))
    shared = sum(int(x["prefix_len"]) for x in lines)
    assert stats.prompt_output.hit_tokens + stats.counts.get("hit_tokens_without_donor", 0) >= shared
    if name == "multi_session_large":
        assert stats.prompt_output.hit_tokens == shared


def guess(message):
    text = message["content"] + (
        json.dumps(message["tool_calls"], separators=(",", ":"), sort_keys=True) if message.get("tool_calls") else ""
    )
    return math.ceil(len(text.encode()) / 4) + 4


OTEL = ["fan_in_dependencies", "multi_agent_research", "parallel_requests", "prefix_sharing_example", "simple_chain"]


@pytest.mark.parametrize("name", OTEL)
def test_otel(data, name):
    """Sizes by usage or by bytes / 4 + 4 a message; hits are messages that began an earlier prompt."""
    path = data / "otel" / f"{name}.json"
    spans = sorted(json.loads(path.read_text())["spans"], key=lambda span: span["start_time"])
    inputs, outputs, hits, seen = [], [], 0, {}
    for span in spans:
        told = span["attributes"]
        prompt = json.loads(told["gen_ai.input.messages"])
        total = told.get("gen_ai.usage.prompt_tokens", sum(map(guess, prompt)))
        inputs.append(total)
        reply = {"content": told.get("gen_ai.output.text", "")}
        outputs.append(told.get("gen_ai.usage.completion_tokens", guess(reply)))
        keys = [tuple((m["role"], m["content"]) for m in prompt[: k + 1]) for k in range(len(prompt))]
        hits += max((seen[key] for key in keys if key in seen), default=0)
        for k, key in enumerate(keys):
            whole = k == len(keys) - 1
            seen.setdefault(key, total if whole else sum(map(guess, prompt[: k + 1])))
    sessions = {span["attributes"].get("exgentic.session.id", span["trace_id"]) for span in spans}
    stats = trace_stats(read_trace(path))
    check(stats, len(spans), len(sessions), inputs, outputs)
    assert stats.hit_tokens == hits
    assert (stats.lengths == "exact") == (name == "prefix_sharing_example")


@pytest.mark.parametrize("name", ["function_calling_simple.traj", "mini-swe-agent.local.traj.json"])
def test_trajectories(data, name):
    """Sizes by bytes / 4 + 4 a message; every prompt but the first begins with the one before."""
    document = json.loads((data / "sweagent" / name).read_text())
    messages = document["history"] if isinstance(document, dict) else document
    replies = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    inputs = [sum(map(guess, messages[:i])) for i in replies]
    stats = trace_stats(read_trace(data / "sweagent" / name))
    check(stats, len(replies), 1, inputs, [guess(messages[i]) for i in replies])
    assert stats.hit_tokens == sum(inputs[:-1])


NO_TRACES = {
    "LICENSE",
    "LICENSE-APACHE",
    "LICENSE-DATASET.md",
    "LICENSE.mini-swe-agent.md",
    "README.md",
    "agentic_code_gen_1k_sessions_200k_ctx_manifest.json",
    "weka_requests.parquet",
    "m-large-chunk-0-trace.csv",
    "m-large-chunk-106-dataset.json",
    "qhc_plan_400.jsonl",
    "qhc_plan_400.expected.json",
}


def test_no_file_is_left_out(data):
    """A file that nobody looks at is where a reader fails first."""
    files = sorted(path for path in data.rglob("*") if path.is_file())
    readable = [path for path in files if path.name not in NO_TRACES]
    assert len(readable) == 32
    for path in readable:
        trace = read_trace(path)
        assert trace.rows and trace.header.assumptions, path
