"""The netem backend on a real netem, in a User-Mode Linux guest; the guest's results come back as a file.

Each test of `guest/guest_netem.py` appears here by name. One that the file does not report as passed is a failure.
"""

import ast
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import uml
from conftest import fail_in_ci

GUEST = Path(__file__).parent / "guest" / "guest_netem.py"
NAMES = [node.name for node in ast.parse(GUEST.read_text()).body
         if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]  # fmt: skip

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def guest_results(tmp_path_factory):
    """What the guest reports: test name -> "passed", or what went wrong."""
    if reason := uml.missing():
        fail_in_ci(reason)
    folder = tmp_path_factory.mktemp("guest")
    argv = [sys.executable, "-m", "pytest", str(GUEST), "-p", "no:cacheprovider", "--durations=0",
            "--junitxml=/mnt/results.xml"]  # fmt: skip
    code, said = uml.run(argv, folder, timeout_s=900.0)
    results = folder / "results.xml"
    if not results.exists():
        pytest.fail(f"the guest reported no results (exit {code}):\n{said[-4000:]}")
    return {case.get("name"): _outcome(case) for case in ET.parse(results).iter("testcase")}


def _outcome(case):
    wrong = [child for child in case if child.tag in ("failure", "error", "skipped")]
    return "\n".join(f"{child.tag}: {child.text or child.get('message')}" for child in wrong) or "passed"


def test_there_are_tests_for_the_guest():
    """An empty list of guest tests would pass."""
    assert len(NAMES) >= 10


@pytest.mark.parametrize("name", NAMES)
def test_on_real_netem(name, guest_results):
    """netem as the host's kernel may not have it: without this nothing shows that the backend works."""
    assert guest_results.get(name) == "passed", guest_results.get(name, "the guest did not run it")
