"""Fixtures of the WAN's tests."""

import os

import pytest

from pddbench.errors import PddbenchError
from pddbench.wan.device import ADDRESSES
from pddbench.wan.namespaces import Namespaces
from pddbench.wan.openlink import open_shapes
from pddbench.wan.shape import Shape


def fail_in_ci(reason):
    """CI must have what the tests need; elsewhere they are skipped, with the reason."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def namespaces_work():
    """Skips (in CI: fails) where the host gives no network namespaces."""
    try:
        Namespaces(*ADDRESSES).close()
    except PddbenchError as error:
        fail_in_ci(str(error))


@pytest.fixture(scope="session")
def tun_works(namespaces_work):
    """Skips (in CI: fails) where the host has no TUN devices for us."""
    shape = Shape(1.0, 100.0)
    try:
        open_shapes(shape, shape, "tun").close()
    except PddbenchError as error:
        fail_in_ci(str(error))
