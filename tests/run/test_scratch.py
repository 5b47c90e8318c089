"""Temporary folders must not outlive the process that made them."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pddbench.errors import WorldError
from pddbench.scratch import scratch_folder
from tests.run.run_kit import wait_for

MAKER = """
import sys, time
from pddbench.scratch import scratch_folder
with scratch_folder("test") as folder:
    (folder / "inside").mkdir()
    (folder / "inside" / "file").write_text("x")
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_folder_is_there_and_gone_after_the_block():
    with scratch_folder("test") as folder:
        (folder / "file").write_text("x")
        assert folder.name.startswith("pddbench-test-")
    assert not folder.exists()


def test_a_folder_goes_with_an_error_too():
    with pytest.raises(ZeroDivisionError), scratch_folder("test") as folder:
        1 / 0  # noqa: B018
    assert not folder.exists()


@pytest.mark.parametrize("whom", ["the process", "its group"])
def test_a_folder_goes_after_sigkill(whom):
    process = subprocess.Popen([sys.executable, "-c", MAKER], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        folder = Path(process.stdout.readline().strip())
        assert (folder / "inside" / "file").is_file()
    finally:
        (os.kill if whom == "the process" else os.killpg)(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
    wait_for(lambda: not folder.exists(), "the folder to go")


KILLED = """
import os, signal, subprocess
from pddbench.scratch import scratch_folder
class Killed(subprocess.Popen):
    def __init__(self, *words, **options):
        os.kill(os.getpid(), signal.SIGKILL)
subprocess.Popen = Killed
with scratch_folder("test"):
    pass
"""


def test_no_folder_is_there_before_who_would_remove_it(tmp_path):
    """Killed between making it and starting that process, a command left its folder: 2 of 40 kills of a busy maker."""
    done = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, monkeypatch):
    """The process beside it makes the folder: its error would be lost, and a command write into nowhere."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(WorldError, match=r"none.*No such file"), scratch_folder("test"):
        pytest.fail("there is no such folder")
