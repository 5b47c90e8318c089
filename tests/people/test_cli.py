"""The command line as a person meets it: help with examples, suggestions, completion, a reference that is true."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pddbench.cli import cli
from pddbench.cli.examples import EXAMPLES
from pddbench.cli.reference import leaves, reference
from pddbench.cli.reference_notes import NOTES

ROOT = Path(__file__).parents[2]
LEAVES = {" ".join(path): command for path, command in leaves(cli, ())}
# commands of which nothing is read by a machine: they write the files they are asked for, or run another command
NO_JSON = {"init", "hlog export", "swimlane", "trace convert", "trace fit", "trace observe", "trace synth",
           "wan apply", "wan clear", "wan exec"}  # fmt: skip


def parse(words):
    """Parse a command line as click does, down to the subcommand, and run nothing."""
    command, context, name = cli, None, "pddbench"
    while True:
        context = command.make_context(name, list(words), parent=context)
        if not isinstance(command, click.Group):
            return
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_shows_examples_that_parse(name):
    """Examples are what people copy. A command has them in the common table, or in its own epilog."""
    shown = " ".join(CliRunner().invoke(cli, [*name.split(), "--help"]).output.split())
    examples = EXAMPLES.get(name) or re.findall(r"pddbench [^\n]+", LEAVES[name].epilog or "")
    assert examples, "give it a line in pddbench/cli/examples.py"
    for example in examples:
        assert " ".join(example.split()) in shown
        assert example.startswith(f"pddbench {name}")
        parse(shlex.split(example.partition(" > ")[0])[1:])


def test_no_example_is_of_a_command_that_is_gone():
    """The table is apart from the commands."""
    assert set(EXAMPLES) <= set(LEAVES)


@pytest.mark.parametrize("name", sorted(set(LEAVES) - NO_JSON))
def test_machines_can_read_it(name):
    """Whatever a script may want must not be scraped from a table."""
    assert any("--json" in parameter.opts for parameter in LEAVES[name].params)


def test_the_reference_is_made_from_the_code():
    """A page that says what was true last month is worse than none."""
    written = (ROOT / "docs/reference.md").read_text()
    assert written == reference().rstrip("\n") + "\n", "python -m pddbench.cli.reference > docs/reference.md"


def test_notes_are_of_keys_that_exist():
    """A note on a key that is gone is a lie that no compiler finds."""
    from pddbench.workload import experiment as ex

    tables = {"(top)": ex.Experiment, "[workload]": ex.Workload, "[slo]": ex.Slo, "[wan]": ex.Wan, "[cost]": ex.Cost,
              "[emulator]": ex.EmulatorOptions, "[emulator] changes": ex.RoleChange, "[llamacpp]": ex.LlamaCppOptions,
              "[[arm]]": ex.Arm, "[[arm]] roles.NAME": ex.Role}  # fmt: skip
    assert set(NOTES) == set(tables)
    for name, notes in NOTES.items():
        assert set(notes) <= set(tables[name].__struct_fields__), name


@pytest.mark.parametrize(("words", "meant"), [("rum", "run"), ("trace stat", "stats"), ("wan prob", "probe"),
                                              ("run --ou x e.toml", "--out"),
                                              ("check --bseline x d", "--baseline")])  # fmt: skip
def test_a_misspelt_name_is_answered_with_the_right_one(words, meant):
    """One letter must not cost a look into the manual."""
    done = CliRunner().invoke(cli, words.split())
    assert done.exit_code == 2 and meant in done.output


@pytest.mark.parametrize(("words", "want"), [("pddbench re", "report"), ("pddbench trace s", "synth"),
                                             ("pddbench run --re", "--repeats"), ("pddbench up n", "naive"),
                                             ("pddbench check d --allow send", "send_lag")])  # fmt: skip
def test_the_shell_completes(words, want):
    """What docs/cli.md says: names of commands, options, choices and rules."""
    env = {**os.environ, "_PDDBENCH_COMPLETE": "bash_complete", "COMP_WORDS": words,
           "COMP_CWORD": str(len(words.split()) - 1)}  # fmt: skip
    script = str(Path(sys.executable).parent / "pddbench")
    done = subprocess.run([script], env=env, capture_output=True, text=True)
    assert f"plain,{want}" in done.stdout.splitlines()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(shell):
    """The line of docs/cli.md must yield something for each of them."""
    script = str(Path(sys.executable).parent / "pddbench")
    done = subprocess.run(
        [script], env={**os.environ, "_PDDBENCH_COMPLETE": f"{shell}_source"}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "_PDDBENCH_COMPLETE" in done.stdout


def test_up_tells_a_script_where_it_is():
    """A script that starts an endpoint needs its port."""
    command = [sys.executable, "-m", "pddbench", "up", "baseline", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        facts = json.loads(process.stdout.readline())
        assert facts["arm"] == "baseline" and facts["base_url"].startswith("http://127.0.0.1:")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 143
