"""For every test: one thread of torch each, since several tests run at once (make test)."""

import os

import pytest
from toy.sweep import environ

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def toy_suites():
    """Children find the toy suites."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environ()["PYTHONPATH"])
        yield
