"""Stopped or killed halfway: nothing measured is lost, nothing is left behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from run_kit import BUSY, pddbench, small_rows, start, wait_for, write_trace

import pddbench as package
from pddbench.deploy.children import LaunchStopped
from pddbench.deploy.emulator.launch import launch
from pddbench.deploy.presets import emulator_spec
from pddbench.workload.experiment import Arm, Experiment, Workload

EXPERIMENT = """
name = "killed"
[workload]
trace = "t.trace.jsonl"
[emulator]
speed = 2.0
[[arm]]
name = "naive"
emulated = "naive"
[[arm]]
name = "pdd"
emulated = "pdd"
"""


def begin(tmp_path):
    """A run that takes some 20 s, once its first arm has answers in the spool."""
    write_trace(tmp_path / "t.trace.jsonl", small_rows(40, start_gap_s=1.0))
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    process = start("run", tmp_path / "e.toml", "--out", tmp_path / "out", *BUSY)
    spool = tmp_path / "out" / "spool" / "naive.1.spool"
    wait_for(lambda: spool.exists() and spool.stat().st_size > 60_000, "answers in the spool")
    return process, emulators(process.pid)


def emulators(pid):
    """Process ids of the emulator's processes that `pid` started."""
    found = children_of(pid, "emulator")
    assert found
    return found


def children_of(pid, word):
    """Children of `pid` that have `word` in their command line."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children if word in Path(f"/proc/{child}/cmdline").read_text()]


def gone(pids):
    """Whether none of them runs any more (a zombie has ended)."""

    def state(pid):
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return "gone"

    return all(state(pid) in ("gone", "Z") for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_stop_cleanly(tmp_path, number):
    """Without it, Ctrl-C or a CI timeout loses the run (TRAPS 63)."""
    process, children = begin(tmp_path)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 128 + number, stderr
    assert "Traceback" not in stderr
    rows = package.load(str(tmp_path / "out")).requests
    naive = rows[rows["arm"] == "naive"]
    assert len(naive) == 120 and naive["request_id"].is_unique
    assert (naive["outcome"] == "ok").sum() > 0
    assert (naive.loc[naive["outcome"] == "not_sent", "error"] == "interrupted").all()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["partial"] is True and manifest["signal"] == number
    assert "stopped early" in " ".join(stdout.split())
    wait_for(lambda: gone(children), "the emulator to end")


@pytest.mark.parametrize("module", ["click", "pddbench.cli", "pddbench.errors"])
def test_ctrl_c_while_it_is_imported(module):
    """Without it the first 100 ms of every command answer Ctrl-C with a traceback of somebody's import."""
    code = f"""
import os, signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from pddbench.__main__ import start
start()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "pddbench: stopped\n")


def test_a_signal_while_the_answer_is_made(tmp_path):
    """Without it a second Ctrl-C ends in silence or a traceback, and nobody knows that all rows are there."""
    write_trace(tmp_path / "t.trace.jsonl", small_rows(4))
    (tmp_path / "e.toml").write_text(EXPERIMENT)
    out = tmp_path / "out"
    code = f"""
import os, signal, time
import pddbench.report.answer as report
def answer(*_, **__):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
report.answer = answer
from pddbench.cli import main
main(["simulate", {str(tmp_path / "e.toml")!r}, "--out", {str(out)!r}, "--quiet"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 143, done.stderr
    assert done.stderr.startswith(f"pddbench: stopped before the answer was complete; all rows are in {out}")
    assert "Traceback" not in done.stderr
    assert len(package.load(str(out)).requests) == 24


def test_a_signal_while_an_emulator_starts():
    """Without it Ctrl-C is answered only when the emulator is up, on a busy machine seconds later."""
    experiment = Experiment(name="x", workload=Workload(trace=""), arm=[Arm(name="arm", emulated="pdd")])
    with pytest.raises(LaunchStopped), launch(emulator_spec(experiment.arm[0], experiment), lambda: True):
        raise AssertionError("it was launched")
    assert gone(children_of(os.getpid(), "emulator"))


def test_sigkill_loses_at_most_a_second(tmp_path):
    """Without it, an out-of-memory kill loses hours of measurement, and leaves emulators running."""
    process, children = begin(tmp_path)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    wait_for(lambda: gone(children), "the emulator to end")
    out = tmp_path / "out"
    load = pddbench("report", out)
    assert load.returncode == 2 and "pddbench recover" in load.stderr
    done = pddbench("recover", out)
    assert done.returncode == 0, done.stderr
    assert "recovered" in done.stdout
    rows = package.load(str(out)).requests
    assert len(rows) == 120 and (rows["outcome"] == "ok").sum() > 0
    assert json.loads((out / "manifest.json").read_text())["partial"] is True
    assert pddbench("report", out, *BUSY).returncode in (0, 98)
