"""Fixtures common to all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("pddbench", deadline=None)  # a busy machine is no fault of the code
settings.load_profile("pddbench")

# Emulated arms of tests that are not about the WAN run over the model: packets cost seconds a run to verify.
os.environ.setdefault("PDDBENCH_WAN", "model")

_CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of public trace extracts: PDDBENCH_DATA, else `shared/data` beside the checkout or above it.

    Without it tests are skipped with the reason, but a folder that was named and is not there is a failure.
    """
    given = os.environ.get("PDDBENCH_DATA")
    places = [Path(given)] if given else [parent / "shared" / "data" for parent in _CHECKOUT.parents]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        reason = f"no trace extracts in {', '.join(map(str, places))}"
        if given:
            pytest.fail(f"{reason}, which PDDBENCH_DATA names")
        pytest.skip(f"{reason}; PDDBENCH_DATA names another folder")
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that wait longest come first, so that no worker is left with them at the end."""
    first = ("tests/wan/test_uml_netem.py", "tests/run/test_run.py", "tests/run/test_bad_input.py")
    rank = {name: place for place, name in enumerate(first)}
    items.sort(key=lambda item: rank.get(str(item.path.relative_to(_CHECKOUT)), len(first)))
