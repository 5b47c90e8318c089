"""What docs/ shows works as it stands there."""

from __future__ import annotations

import re
import shlex
import shutil
import tomllib
from pathlib import Path

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


def test_ci_flags_exist():
    """The commands of the CI page take the flags they are given."""
    for words in commands("ci.md"):
        done = CliRunner().invoke(cli, [words[0], "--help"], standalone_mode=False)
        assert all(word in done.output for word in words if word.startswith("--"))


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
