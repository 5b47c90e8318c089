"""action.yml and the workflows: their shell does what GitHub will make of it. (GitHub itself is not here.)"""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [ROOT / "action.yml", *sorted((ROOT / ".github/workflows").glob("*.yml"))]


def scripts(file):
    """The `run:` blocks of a file, by the id or name of their step."""
    found = {}
    for step in re.split(r"\n *- (?=id:|name:|uses:|run:|shell:|if:)", file.read_text()):
        label = re.search(r"^ *(?:id|name): *(.+)$", step, re.MULTILINE)
        block = re.search(r"^( *)run: \|\n((?:\1  .*\n|\s*\n)*)", step + "\n", re.MULTILINE)
        if block:
            found[label[1] if label else f"step {len(found)}"] = textwrap.dedent(block[2])
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_the_shell_is_valid(file):
    """A quote that is missing shows only after a push."""
    for name, text in scripts(file).items():
        assert "${{" not in text, (
            f"{name}: an expression inside a script can be code of whoever opened the pull request"
        )
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr


@pytest.fixture
def runner(tmp_path):
    """Runs a step of action.yml as GitHub does, with a pddbench that notes its words and ends as it is told."""
    stub = tmp_path / "temp/pddbench/bin/pddbench"
    stub.parent.mkdir(parents=True)
    stub.write_text(
        '#!/bin/bash\nprintf "%s\\n" "$@" > "$WORDS"\n'
        'if [ "$1" = run ]; then mkdir -p "$OUT/requests"; exit "$RUN_CODE"; fi\n'
        'mkdir -p "$OUT/ci"; echo "# page" > "$OUT/ci/summary.md"; exit "$REPORT_CODE"\n'
    )
    stub.chmod(0o755)

    def step(name, **more):
        for file in ("words", "output", "page"):
            (tmp_path / file).write_text("")
        env = {"PATH": os.environ["PATH"], "RUNNER_TEMP": str(tmp_path / "temp"), "WORDS": str(tmp_path / "words"),
               "GITHUB_OUTPUT": str(tmp_path / "output"), "GITHUB_STEP_SUMMARY": str(tmp_path / "page"),
               "OUT": "out dir", "EXPERIMENT": "my file.toml", "ARGUMENTS": "", "BASELINE": "", "TOLERANCE": "10%",
               "RUN_CODE": "0", "REPORT_CODE": "0", "RAN": "0", **more}  # fmt: skip
        text = scripts(ROOT / "action.yml")[name]
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        words, output, page = ((tmp_path / file).read_text() for file in ("words", "output", "page"))
        return done.returncode, words.splitlines(), dict(line.split("=", 1) for line in output.splitlines()), page

    return step


def test_arguments_are_words_and_never_code(runner):
    """`with: arguments` may come from a pull request's file: it must not be expanded, and lines are blanks."""
    code, words, output, _ = runner("run", ARGUMENTS="--yes\n--max-cost 3 $(touch pwned) *.toml")
    assert code == 0
    assert words == [
        "run",
        "my file.toml",
        "--out",
        "out dir",
        "--yes",
        "--max-cost",
        "3",
        "$(touch",
        "pwned)",
        "*.toml",
    ]
    assert output == {"code": "0", "report": "out dir/report.html", "summary": "out dir/ci/summary.json"}
    assert runner("run")[1] == ["run", "my file.toml", "--out", "out dir"]


@pytest.mark.parametrize(("ran", "reported", "want"), [(0, 0, 0), (99, 99, 99), (98, 98, 98), (99, 0, 99), (0, 99, 99)])
def test_the_job_ends_as_the_run_did_and_has_its_page(runner, ran, reported, want):
    """A breach must fail the job after the page was written, not before."""
    code, _, output, _ = runner("run", RUN_CODE=str(ran))
    assert (code, output["code"]) == (0, str(ran))
    code, words, output, page = runner("answer", RAN=str(ran), REPORT_CODE=str(reported))
    assert (code, output["code"], page) == (want, str(want), "# page\n")
    assert words == ["report", "out dir", "--ci", "out dir/ci"]


@pytest.mark.parametrize("code", [1, 2, 130])
def test_a_run_that_was_none_fails_at_once(runner, code):
    """A wrong file is no benchmark result."""
    assert runner("run", RUN_CODE=str(code))[0] == code


def test_a_baseline_counts_where_there_is_one(runner, tmp_path):
    """The first run of a repository has nothing to be compared with."""
    runner("run")
    assert "--baseline" not in runner("answer", BASELINE="absent.json")[1]
    (tmp_path / "old one.json").write_text("{}")
    words = runner("answer", BASELINE="old one.json")[1]
    assert words[-4:] == ["--baseline", "old one.json", "--tolerance", "10%"]
