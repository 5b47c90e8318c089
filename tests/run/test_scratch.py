"""Temporary folders must not outlive the process that made them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
