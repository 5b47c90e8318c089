"""What the README shows works as it stands there."""

import re
import shlex

import pytest
from run_kit import ROOT, pddbench

from pddbench import exitcodes
from pddbench.cli import _COMMANDS

README = (ROOT / "README.md").read_text()


def test_the_experiment_is_accepted(tmp_path):
    """Without it, the first file a user copies may be refused."""
    (text,) = re.findall(r"```toml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "mine.toml").write_text(text.replace('"traces/', f'"{ROOT}/traces/'))
    done = pddbench("run", tmp_path / "mine.toml", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "6 runs" in done.stdout


@pytest.mark.parametrize("command", re.findall(r"^\.venv/bin/pddbench (replay (?:.*\\\n)*.*)", README, re.MULTILINE))
def test_the_replay_is_accepted(command):
    """Without it, the flags shown may not exist."""
    words = shlex.split(command.replace("\\\n", " "))
    done = pddbench(*words, "--dry-run")
    assert done.returncode == 0, done.stderr


def test_every_command_and_exit_code_is_told():
    """Without it, a command or exit code may be missing from the README."""
    listed = README[README.index("## Commands and exit codes") :]
    assert all(f"`{name}" in listed for name in _COMMANDS)
    codes = [getattr(exitcodes, name) for name in dir(exitcodes) if name.isupper() and not name.startswith("_")]
    assert all(re.search(rf"\b{code}\b", listed) for code in codes)
