"""An emulated arm that loses or gets instances during a run: the manifest and the report's first line say so."""

import json

import pytest
from run_kit import BUSY, pddbench, small_rows, write_trace

EXPERIMENT = """
name = "lost"
[workload]
trace = "t.trace.jsonl"
[emulator]
speed = 4.0
[[arm]]
name = "pdd"
emulated = "pdd"
changes = [{ at_s = 1.0, role = "MD", count = 1 }, { at_s = 900.0, role = "MD", count = -1 }]
"""


@pytest.mark.parametrize("command", ["simulate", pytest.param("run", marks=pytest.mark.slow)])
def test_changes_of_roles_are_told(tmp_path, command):
    """The table compared arms one of which had lost an instance, and did not say it."""
    write_trace(tmp_path / "t.trace.jsonl", small_rows(4))
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    done = pddbench(command, tmp_path / "e.toml", "--out", tmp_path / "out", *(BUSY if command == "run" else []))
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads((tmp_path / "out" / "manifest.json").read_text())["runs"]
    assert [(each["role"], each["count"], each["reached"]) for each in run["role_changes"]] == [
        ("MD", 1, True), ("MD", -1, False)
    ]  # fmt: skip
    said = " ".join(done.stdout.split())
    assert "roles change (pdd: MD +1 at" in said and "s, not reached)" in said
