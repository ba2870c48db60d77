"""For every test: one thread of torch each, and none that spins: several tests run at once (make test)."""

import os

import pytest
from toy.sweep import environ

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of children too, which have a thread a core


@pytest.fixture(scope="module")
def toy_suites():
    """Children find the toy suites."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environ()["PYTHONPATH"])
        yield
