"""Spares the collections of garbage, with which `harness.instruments.allocator.watch` begins, what stands.

Torch and transformers are some hundred thousand objects, and a file's tests watch dozens of times.
"""

import gc

import pytest


@pytest.fixture(scope="module")
def thawed():
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def frozen(thawed):
    """What lives before a test is not looked through while it runs; what the test makes is."""
    gc.collect()
    gc.freeze()
