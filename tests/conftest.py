"""For every test: one thread of torch each, since several tests run at once (make test)."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

NETWORKED = ("test_network", "test_network_ends", "test_ranks", "test_interconnect")
"""Tests that start networks and ranks: several minutes, and links that a busy machine does not carry."""


def pytest_collection_modifyitems(items):
    if os.environ.get("NETWORK"):
        return
    apart = pytest.mark.skip(reason="networks and ranks are tried apart: NETWORK=1 pytest tests")
    for item in items:
        if item.path.stem in NETWORKED:
            item.add_marker(apart)
