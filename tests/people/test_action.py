"""action.yml and the workflows: their shell does what GitHub will make of it. (GitHub itself is not here.)"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from ruamel.yaml import YAML

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


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("vendor.github-workflows", FILES[1:]),
        ("vendor.github-actions", FILES[:1]),
        ("vendor.compose-spec", [ROOT / "dashboards/compose.yml"]),
    ],
)
def test_the_files_are_what_their_readers_expect(schema, files):
    """A key that is misspelt is ignored or refused on a hosted runner, where nobody of us looks."""
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def job(file, name):
    """What each step of a job runs, in order."""
    steps = YAML(typ="safe").load(ROOT / ".github/workflows" / file)["jobs"][name]["steps"]
    return [step["run"] for step in steps if "run" in step]


def stubs(folder, **programs):
    """Programs on a PATH of their own."""
    (folder / "bin").mkdir()
    for name, text in programs.items():
        file = folder / "bin" / name
        file.write_text(f'#!/bin/bash\necho {name} "$@" >> "$LOG"\n{text}\n')
        file.chmod(0o755)


def run_job(texts, folder, **env):
    """Each step as a runner makes it; the code of the first that fails, and what was called."""
    env = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "LOG": str(folder / "log"),
           "GITHUB_STEP_SUMMARY": str(folder / "page"), **env}  # fmt: skip
    for text in texts:
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            return done.returncode, (folder / "log").read_text().splitlines()
    return 0, (folder / "log").read_text().splitlines()


@pytest.mark.parametrize("code", [0, 99])
def test_the_benchmark_job_runs_through(tmp_path, code):
    """Paths between steps (run folder, page, baseline) must be the same in all of them, and a breach fails the job."""
    stubs(tmp_path, make="")
    program = tmp_path / ".venv/bin/pddbench"
    program.parent.mkdir(parents=True)
    program.write_text(
        '#!/bin/bash\necho pddbench "$@" >> "$LOG"\n'
        'case "$1" in run) mkdir -p "$4/requests"; echo {} > "$4/summary.json";;\n'
        f'report) mkdir -p "$4"; echo "# page" > "$4/summary.md"; exit {code};; esac\n'
    )
    program.chmod(0o755)
    for _ in range(2):  # the second time there is a baseline
        found, called = run_job(job("benchmark.yml", "quickstart"), tmp_path)
        assert found == code and (tmp_path / "page").read_text().startswith("# page")
    assert called[:2] == ["make venv", "pddbench doctor"]
    assert any("--baseline baseline/summary.json" in line for line in called) == (code == 0)


def test_the_netem_job_gets_its_module(tmp_path):
    """A runner's kernel without the module must get the package, and the link is made as root."""
    stubs(tmp_path, make="", sudo='"$@"', modprobe='[ -f "$LOG.extra" ]', uname="echo 1.2-x")
    (tmp_path / "bin/apt-get").write_text('#!/bin/bash\necho apt-get "$@" >> "$LOG"; touch "$LOG.extra"\n')
    (tmp_path / "bin/apt-get").chmod(0o755)
    program = tmp_path / ".venv/bin/pddbench"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/bash\necho pddbench "$@" >> "$LOG"\n')
    program.chmod(0o755)
    found, called = run_job(job("benchmark.yml", "netem"), tmp_path)
    assert found == 0 and "apt-get install -y -qq linux-modules-extra-1.2-x" in called
    assert called[-1].startswith("pddbench wan exec --wan netem national -- sh -c ping")


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
