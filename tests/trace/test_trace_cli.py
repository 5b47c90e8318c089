"""`pddbench trace` as a user runs it."""

import json

import pytest
from click.testing import CliRunner

from pddbench.cli import main
from pddbench.cli.trace import trace as group
from pddbench.trace.content import messages_of, read_content_file
from pddbench.trace.read import FORMATS, read_trace
from pddbench.trace.synth import agentic_small

LINE = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'


def run(*args):
    result = CliRunner().invoke(group, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(capsys, *args):
    """Exit code and the one sentence of a command that fails, through the real entry point."""
    with pytest.raises(SystemExit) as caught:
        main(["trace", *(str(arg) for arg in args)])
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    return caught.value.code, err


@pytest.fixture
def mooncake(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text(LINE * 3)
    return path


def test_stats_for_people_names_bases_and_assumptions(mooncake):
    """A hit rate without its basis and a unit that was assumed in silence mislead."""
    out = run("stats", mooncake)
    for text in (
        "3 requests in 3 sessions",
        "prompt+output",
        "token-weighted hit",
        "mean hit per request",
        "milliseconds",
    ):
        assert text in out
    assert "1,200" in out and "[99.5,100] %" in out


def test_stats_for_machines_is_json_alone(mooncake):
    """A note on stdout would break every script."""
    found = json.loads(run("stats", mooncake, "--json"))
    assert (found["requests"], found["input_tokens"], found["hit_tokens"]) == (3, 1800, 1200)
    assert found["prompt_output"]["basis"] == "prompt+output"


def test_validate_says_what_it_found(mooncake):
    """Success is a sentence with counts, for a machine JSON."""
    assert "valid, 3 requests in 3 sessions (mooncake)" in run("validate", mooncake)
    assert json.loads(run("validate", mooncake, "--json"))["valid"] is True


def test_convert_there_and_to_the_other_form(tmp_path, mooncake):
    """Conversion keeps rows, assumptions and the identity of the source."""
    first, second = tmp_path / "a.trace.parquet", tmp_path / "b.trace.jsonl.zst"
    assert "written, 3 requests" in run("convert", mooncake, first)
    run("convert", first, second)
    assert read_trace(mooncake) == read_trace(first) == read_trace(second)


def test_existing_output_needs_force(tmp_path, mooncake, capsys):
    """An old trace is not overwritten by a repeated command."""
    out = tmp_path / "a.trace.jsonl"
    out.write_text("old")
    code, text = fails(capsys, "convert", mooncake, out)
    assert code == 2 and "--force" in text and out.read_text() == "old"
    run("convert", mooncake, out, "--force")
    assert len(read_trace(out).rows) == 3


def test_synth_is_the_generator(tmp_path):
    """The command in traces/README.md makes the file that lies beside it."""
    out = tmp_path / "s.trace.jsonl.zst"
    run("synth", "--preset", "agentic-small", "--sessions", 7, "--seed", 9, "--out", out)
    assert read_trace(out) == agentic_small(7, 9)


def test_failures_are_one_sentence_and_exit_2(tmp_path, mooncake, capsys):
    """Each is a mistake a user makes; none may end in a traceback or another code."""
    broken = tmp_path / "broken.jsonl"
    broken.write_text(LINE * 16 + LINE[:30] + "\n" + LINE)
    for args, text in (
        (("stats", tmp_path / "none"), "no such file"),
        (("validate", broken), "broken.jsonl:17: "),
        (("stats", mooncake, "--format", "parquet"), "unknown trace format 'parquet'"),
        (("convert", mooncake, tmp_path / "a.csv"), "unknown suffix"),
        (("convert", mooncake, tmp_path / "no" / "a.jsonl"), "does not exist"),
        (("synth", "--preset", "agentic-smal", "--out", tmp_path / "a.jsonl"), "did you mean 'agentic-small'"),
    ):
        code, said = fails(capsys, *args)
        assert code == 2 and text in said


def test_every_command_has_help():
    """An undocumented option is found by reading code."""
    for name, command in group.commands.items():
        assert command.help, name
        assert all(getattr(option, "help", "x") for option in command.params if option.param_type_name == "option"), (
            name
        )


CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, {"role": "user", "content": "r"}]


@pytest.fixture
def trajectory(tmp_path):
    path = tmp_path / "x.traj"
    path.write_text(json.dumps({"history": [*CHAT, {"role": "assistant", "content": "b"}]}))
    return path


def test_text_goes_to_the_side_file_and_on(tmp_path, trajectory):
    """Text that a conversion drops cannot be had again from the canonical file."""
    first, second = tmp_path / "a.trace.parquet", tmp_path / "b.trace.jsonl.zst"
    assert "a.content.jsonl.zst: written, the text of 2 requests" in run("convert", trajectory, first)
    assert "b.content.jsonl.zst" in run("convert", first, second)
    kept = read_content_file(tmp_path / "b.content.jsonl.zst")
    assert messages_of(kept) == {"x/0": CHAT[:1], "x/1": CHAT}
    run("convert", second, tmp_path / "b.trace.jsonl")  # the same name: the side file is already its own
    assert read_content_file(tmp_path / "b.content.jsonl.zst") == kept


def test_an_old_side_file_is_not_replaced_in_passing(tmp_path, trajectory, capsys):
    """It may be the only copy of another trace's text."""
    (tmp_path / "a.content.jsonl.zst").write_text("old")
    code, text = fails(capsys, "convert", trajectory, tmp_path / "a.trace.jsonl")
    assert code == 2 and "a.content.jsonl.zst" in text and "--force" in text
    run("convert", trajectory, tmp_path / "a.trace.jsonl", "--force")
    assert len(read_content_file(tmp_path / "a.content.jsonl.zst")) == 2


def test_convert_to_mooncake_says_what_is_lost(tmp_path, mooncake, trajectory, capsys):
    """Sessions, gaps and text have no place there; a user must not learn it from the results."""
    out = run("convert", mooncake, tmp_path / "o.mooncake.jsonl", "--block-tokens", 64)
    assert "lost:" in out and "in blocks of 64 tokens" in out
    again = read_trace(tmp_path / "o.mooncake.jsonl", block_tokens=64)
    assert [row.input_tokens for row in again.rows] == [600] * 3
    assert "lost: nothing" in run("convert", mooncake, tmp_path / "o.any", "--to", "mooncake")
    code, text = fails(capsys, "convert", trajectory, tmp_path / "p.mooncake.jsonl")
    assert code == 2 and "no recorded start" in text and not (tmp_path / "p.mooncake.jsonl").exists()


def test_block_size_of_the_source(tmp_path, capsys):
    """Where the file does not say it, it can be said; where there are no blocks, it is no use."""
    path = tmp_path / "m.jsonl"
    path.write_text(LINE.replace("600", "20") * 2)
    assert json.loads(run("stats", path, "--json", "--source-block-tokens", 10))["hit_tokens"] == 20
    azure = tmp_path / "a.csv"
    azure.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5,1\n")
    code, text = fails(capsys, "validate", azure, "--source-block-tokens", 16)
    assert code == 2 and "is azure" in text


def test_help_names_every_format():
    """A format that help does not name is not found."""
    found = CliRunner().invoke(group, ["stats", "--help"]).stdout
    assert all(name in found.replace("\n", " ") for name in FORMATS)
