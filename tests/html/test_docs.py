"""What docs/ shows works as it stands there."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pddbench.analyze.check import parse_checks
from pddbench.cli import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))


def commands(page):
    """Lines of shell blocks that call pddbench, continued ones joined."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line)[1:] for line in lines if line.strip().startswith("pddbench ")]


def test_the_way_to_an_own_endpoint(tmp_path, monkeypatch):
    """doctor, init and the dry run are typed as they stand; the last command would send to an endpoint."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces").mkdir()
    shutil.copy(ROOT / "traces/agentic-small.trace.jsonl.zst", tmp_path / "traces")
    steps = commands("own-endpoint.md")
    assert [step[0] for step in steps] == ["doctor", "init", "run"]
    for step in steps:
        done = CliRunner().invoke(cli, step, standalone_mode=False)
        assert done.return_value == 0, (step, done.exception)


def shell_blocks(text):
    """Contents of the fenced blocks that are shell: marked `sh`, or not marked at all."""
    lines, kind, block = text.splitlines(), None, []
    for line in lines:
        fence = re.fullmatch(r"\s*```(\w*)", line)
        if fence and kind is None:
            kind, block = fence[1], []
        elif fence:
            if kind in ("", "sh"):
                yield "\n".join(block)
            kind = None
        else:
            block.append(line)


def shown_commands():
    """(page, words) of every `pddbench` command in a shell block of README, docs, workloads, traces."""
    pages = [ROOT / "README.md", *PAGES, *ROOT.glob("*/README.md"), *(ROOT / "workloads").glob("*/README.md")]
    for page in pages:
        for block in shell_blocks(page.read_text()):
            for line in block.replace("\\\n", " ").splitlines():
                found = re.match(r"\s*(?:sudo )?(?:\.venv/bin/)?pddbench ([^#|>&]*)", line)
                if found:
                    yield page.relative_to(ROOT), shlex.split(found[1])


def parse(words):
    """Parse a command line as click does, down to the subcommand, and run nothing."""
    command, context, name = cli, None, "pddbench"
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not isinstance(command, click.Group):
            return
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize(
    ("page", "words"), [pytest.param(*one, id=f"{one[0]}:{' '.join(one[1])[:60]}") for one in shown_commands()]
)
def test_shown_commands_parse(page, words):
    """A command that is copied from a page must at least be one: every flag, argument and choice of it."""
    parse(words)


def test_python_of_the_jupyter_page_runs(monkeypatch):
    """The lines for a notebook are copied into one."""
    monkeypatch.chdir(ROOT)
    scope = {}
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/jupyter.md").read_text(), re.DOTALL):
        exec(block, scope)


def test_ci_thresholds_are_understood():
    """A threshold that a user copies must parse."""
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/ci.md").read_text(), re.DOTALL)
    assert len(parse_checks(tomllib.loads(text)["check"], ["pdd", "baseline"])) == 2


def test_links_lead_somewhere():
    """A dead link between the pages."""
    assert len(PAGES) >= 4
    for page in [*PAGES, ROOT / "README.md"]:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)


def steps(page, *left_out):
    """Command lines of a page's shell blocks as they are typed, but for those that begin with one of `left_out`."""
    lines = "\n".join(shell_blocks((ROOT / "docs" / page).read_text())).replace("\\\n", " ").splitlines()
    typed = [shlex.split(line.strip()) for line in lines]
    return [words[1:] for words in typed if words[:1] == ["pddbench"] and not " ".join(words[1:]).startswith(left_out)]


def type_them(lines):
    """Run each; every one must end well."""
    for words in lines:
        done = CliRunner().invoke(cli, words, standalone_mode=False)
        assert done.exception is None and done.return_value in (None, 0), (words, done.return_value, done.exception)


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that looks like the repository to who types relative paths, and can be written to."""
    monkeypatch.chdir(tmp_path)
    for name in ("traces", "workloads"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_the_tutorial_runs(checkout):
    """A new user types what stands there. (Live runs are typed in tests/run; here they would take minutes.)"""
    live = ("run workloads", "up ", "run mine.toml --limit")
    lines = steps("tutorial.md", *live)
    assert [words[0] for words in lines] == ["doctor", "trace", "simulate", "check", "compare", "init", "run"]
    type_them(lines)
    assert (checkout / "results/tutorial/report.html").exists()


def test_the_experiment_of_two_datacentres_is_accepted(checkout):
    """The file is copied and changed."""
    (text,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/two-datacentres.md").read_text(), re.DOTALL)
    (checkout / "two-dc.toml").write_text(text)
    type_them([["run", "two-dc.toml", "--dry-run"]])


def test_a_trace_written_by_the_example_is_one(checkout):
    """The script for a reader of one's own is copied too, and its hits must be those of the log."""
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/write-a-reader.md").read_text(), re.DOTALL)
    exec(script, {})
    type_them(steps("write-a-reader.md"))
    shown = CliRunner().invoke(cli, ["trace", "stats", "mine.trace.jsonl", "--json"]).output
    assert '"requests":4' in shown.replace(" ", "").replace("\n", "")


def test_every_key_of_an_experiment_is_explained():
    """A key whose meaning stands nowhere is set by guessing."""
    text = (ROOT / "docs/reference.md").read_text()
    part = text[text.index("## The experiment file") : text.index("## Thresholds")]
    assert not re.findall(r"^\| `(\w+)` .*\|\s*\|$", part, re.MULTILINE)
    assert "### [llamacpp]" in part and "### [emulator] changes" in part
