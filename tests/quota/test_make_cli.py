"""The commands: make, fit, recount, curve."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from pddbench.cli.trace import trace as group
from pddbench.errors import InputError
from pddbench.trace.hits import planned_hits
from pddbench.trace.quota.generate import generate, generate_rows, header
from pddbench.trace.quota.presets import NAMES, chat, pdd_agentic, weka_like
from pddbench.trace.quota.spec import load_spec
from pddbench.trace.quota.write import write_rows
from pddbench.trace.read import read_trace


def run(*args: object):
    return CliRunner().invoke(group, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "x.trace.jsonl.zst"


def test_a_preset_becomes_a_file_that_the_reader_takes(out):
    """The writer streams without checks of the whole; the reader checks every rule."""
    assert (
        "300 requests" in run("synth", "--preset", "pdd-agentic", "--requests", 300, "--seed", 4, "--out", out).stdout
    )
    assert read_trace(out) == generate(pdd_agentic(), 300, 4)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"])
def test_every_form_holds_the_same(tmp_path, suffix, monkeypatch):
    """Batches are an inside matter of the writer."""
    monkeypatch.setattr("pddbench.trace.quota.write._BATCH_ROWS", 64)
    path, spec = tmp_path / f"x.trace{suffix}", chat()
    assert write_rows(header(spec, 200, 1), generate_rows(spec, 200, 1), path) == 200
    assert read_trace(path) == generate(spec, 200, 1)


def test_a_plan_that_fails_leaves_no_file(out):
    """Half a trace under the right name would be replayed."""
    args = ["synth", "--preset", "pdd-agentic", "--requests", 300, "--mean-hit", 0.99, "--out", out]
    with pytest.raises(InputError, match=r"mean 0\.99 needs"):
        run(*args)
    assert list(out.parent.iterdir()) == []


def test_options_change_the_plan(out):
    """A histogram of one's own is the point of the command."""
    options = (
        "--edges",
        "0,0.5,1",
        "--shares",
        "0.4,0.6",
        "--mean-hit",
        0.55,
        "--mean-input",
        9000,
        "--block-tokens",
        8,
    )
    options += ("--mean-output", 100, "--singular", 0, "--session-rate", 2, "--sessions", 20)
    run("synth", "--preset", "chat", "--requests", 500, *options, "--out", out)
    trace = read_trace(out)
    shares = planned_hits(trace.rows) / [row.input_tokens for row in trace.rows]
    assert ((shares >= 0.5).sum(), len({row.session_id for row in trace.rows})) == (300, 20)
    assert abs(shares.mean() - 0.55) < 0.001
    assert abs(sum(row.input_tokens for row in trace.rows) / 500 / 9000 - 1) < 0.02
    assert all(row.input_tokens % 8 == 0 for row in trace.rows)
    assert trace.header.extra["spec"]["arrival"]["session_rate"] == 2


def test_what_was_fitted_makes_a_trace_like_it(tmp_path, out):
    """The way from one's own trace to as many requests of its kind as needed."""
    run("synth", "--preset", "pdd-agentic", "--requests", 1500, "--out", out)
    (tmp_path / "spec.toml").write_text(run("fit", out).stdout)
    again = tmp_path / "again.trace.jsonl"
    run("synth", "--spec", tmp_path / "spec.toml", "--requests", 3000, "--seed", 9, "--out", again)
    one, two = (json.loads(run("stats", path, "--json").stdout) for path in (out, again))
    assert [2 * bucket["count"] for bucket in one["buckets"]] == [bucket["count"] for bucket in two["buckets"]]
    assert abs(one["mean_hit"] - two["mean_hit"]) < 0.001
    for name in ("input_quantiles", "output_quantiles"):
        assert abs(one[name]["mean"] / two[name]["mean"] - 1) < 0.02
        assert abs(one[name]["p90"] / two[name]["p90"] - 1) < 0.15
    assert abs(one["kinds"]["singular"] / one["requests"] - two["kinds"]["singular"] / two["requests"]) < 0.002


@pytest.mark.parametrize("name", ["mooncake/conversation_first1500.jsonl", "weka", "weka/trace_0571.json"])
def test_real_traces_can_be_fitted(data, tmp_path, out, name):
    """A fit that only works on our own traces is of no use."""
    (tmp_path / "spec.toml").write_text(run("fit", data / name).stdout)
    run("synth", "--spec", tmp_path / "spec.toml", "--requests", 2000, "--out", out)
    one, two = (json.loads(run("stats", path, "--json").stdout) for path in (data / name, out))
    assert abs(one["mean_hit"] - two["mean_hit"]) < 0.001
    assert abs(one["input_quantiles"]["mean"] / two["input_quantiles"]["mean"] - 1) < 0.02
    for a, b in zip(one["buckets"], two["buckets"], strict=True):
        assert abs(a["share"] - b["share"]) <= 1 / 2000


def test_the_specification_can_be_printed_and_used(tmp_path, out):
    """A preset is where most own plans start."""
    text = run("synth", "--preset", "weka-like", "--print-spec").stdout
    (tmp_path / "spec.toml").write_text(text)
    assert load_spec(tmp_path / "spec.toml") == weka_like()
    assert run("synth", "--spec", tmp_path / "spec.toml", "--print-spec").exit_code == 0
    assert 'name = "weka-like"' in text and "[low_kinds]" in text


def test_the_oracle_counts_in_the_plans_own_buckets(out):
    """The user checks the promise with one command."""
    run("synth", "--preset", "chat", "--requests", 400, "--out", out)
    found = json.loads(run("oracle", out, "--block-size", 1, "--json").stdout)
    assert found["counts"] == [132, 60, 108, 80, 20]
    assert "hit from 25.00% to 50.00%: 60" in run("oracle", out, "--block-size", 1).stdout
    assert len(json.loads(run("oracle", out, "--edges", "0,0.9,1", "--json").stdout)["counts"]) == 2


def test_a_block_size_shows_how_it_distorts_the_plan(out):
    """An engine with large blocks serves another histogram than the plan's."""
    run("synth", "--preset", "pdd-agentic", "--requests", 400, "--out", out)
    report = json.loads(run("stats", out, "--block-size", 512, "--json").stdout)
    recount = json.loads(run("oracle", out, "--block-size", 512, "--json").stdout)
    assert [bucket["count"] for bucket in report["blocks"]["prompt"]["buckets"]] == recount["counts"]
    assert report["blocks"]["prompt"]["mean_hit"] < report["mean_hit"]
    assert "in blocks of 512 tokens" in run("stats", out, "--block-size", 512).stdout


def test_curves_are_shown_for_people_and_machines(out):
    """Sizes in tokens mean little to whoever buys memory in GB."""
    run("synth", "--preset", "pdd-agentic", "--requests", 300, "--out", out)
    curves = json.loads(run("cache-curve", out, "--json").stdout)
    weighted = curves["capacity"]["token_weighted_hit"]
    assert weighted == sorted(weighted) and abs(curves["capacity"]["mean_hit"][-1] - 0.9) < 0.001
    shown = run("cache-curve", out, "--kv-bytes", 70272).stdout
    assert "GB" in shown and "time to live" in shown


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--preset", "chat", "--spec", "x"], "either --preset NAME or --spec FILE"),
        ([], "either --preset"),
        (["--preset", "chta"], "did you mean 'chat'"),
        (["--spec", "missing.toml"], "missing.toml: cannot be read"),
        (["--preset", "chat", "--hit", "0.5"], "--hit goes with"),
        (["--preset", "fixed-64k-h90", "--hit", "1.5"], "is not a share"),
        (["--preset", "chat", "--shares", "a,b"], "is not a list of numbers"),
        (["--preset", "chat", "--edges", "0,2"], "must rise from 0 to 1"),
        (["--preset", "agentic-small", "--requests", "5"], "--requests does not go with"),
        (["--preset", "hit-sweep", "--mean-hit", "0.5"], "--mean-hit does not go with"),
        (["--preset", "hit-sweep", "--requests", "50"], "at least 102 requests"),
        (["--preset", "chat", "--requests", "3", "--sessions", "5"], "at least as many requests"),
    ],
)
def test_what_cannot_be_is_one_sentence(out, args, message):
    """Every wrong option ends in exit 2 and a sentence, before anything is written."""
    with pytest.raises(InputError, match=message):
        run("synth", *args, "--out", out)
    assert not out.exists()


def test_a_specification_with_a_wrong_key_names_it(tmp_path, out):
    """A typing error in a TOML file must not become a default."""
    path = tmp_path / "spec.toml"
    for text, message in (
        ("mean_hits = 1", "mean_hits"),
        ("= 1", "is not TOML"),
        ('[input]\nkind = "x"', r"\$\.input"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=rf"spec\.toml: .*{message}"):
            run("synth", "--spec", path, "--out", out)


def test_the_help_names_what_there_is():
    """`--help` is where a newcomer looks first."""
    shown = run("--help").stdout
    assert all(name in shown for name in ("synth", "fit", "oracle", "cache-curve", "observe"))
    with pytest.raises(InputError) as error:
        run("synth", "--preset", "zzz", "--out", "y.trace.jsonl")
    assert all(name in str(error.value) for name in (*NAMES, "agentic-small"))
