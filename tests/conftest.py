"""For every test: one thread of torch each, and none that spins: several tests run at once (make test)."""

import gc
import os

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of ranks too, some of which have a thread a core


@pytest.fixture(scope="module")
def toy_suites():
    """Children find the toy suites."""
    from toy.sweep import environ

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environ()["PYTHONPATH"])
        yield


@pytest.fixture(scope="module")
def thawed():
    """After a module all is looked through again."""
    yield
    gc.unfreeze()


@pytest.fixture
def frozen(thawed):
    """No collection of garbage looks through what lives before a test: all of torch.

    `harness.instruments.memory.allocator.watch` begins with one. What the test makes is collected.
    """
    gc.collect()
    gc.freeze()
