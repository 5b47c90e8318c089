"""Fixtures common to all tests."""

import os
from pathlib import Path

import pytest

_CHECKOUT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def data() -> Path:
    """Public trace extracts: in PDDBENCH_DATA (then they must be there), else in `shared/data` of a folder above."""
    given = os.environ.get("PDDBENCH_DATA")
    places = [Path(given)] if given else [parent / "shared" / "data" for parent in _CHECKOUT.parents]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        reason = f"no trace extracts in {', '.join(map(str, places))}; PDDBENCH_DATA names another folder"
        if given:
            pytest.fail(reason)
        pytest.skip(reason)
    return found
