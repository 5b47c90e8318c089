"""Fixtures common to all tests."""

import os
from pathlib import Path

import pytest

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
