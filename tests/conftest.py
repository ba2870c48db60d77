"""For every test: one thread of torch each, and none that spins: several tests run at once (make test)."""

import faulthandler
import gc
import os
import pickle
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Any

import gate
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from forked_ranks import forking
from hypothesis import HealthCheck, settings
from marked import left, marked, wait_for

from harness.config import run as config
from harness.instruments.distributed import rank_pool

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of ranks too, some of which have a thread a core
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # each would be a process that imports torch

gc.set_threshold(100_000, 50, 100)  # collecting took 7 to 10 % of the time of tests of torch

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # none fails because others keep the machine busy


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark slow and long tests, and order files."""
    gate.mark(config, items)


BEYOND_TIMEOUT_S = 60.0
"""How long a test may outlive its timeout. pytest-timeout raises in Python code, which a test that waits in a
library's own code never reaches: it would hold up all others."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process of a test that hangs in a library's code, with all stacks; pytest-xdist names it."""
    marked = item.get_closest_marker("timeout")
    given = (*marked.args, marked.kwargs.get("timeout")) if marked else (item.config.getoption("timeout"),)
    timeout_s = float(given[0] if given[0] is not None else item.config.getini("timeout"))
    stderr = item.config.stash.get(fault_handler_stderr_fd_key, None)
    if not timeout_s or stderr is None:
        return (yield)
    faulthandler.dump_traceback_later(timeout_s + BEYOND_TIMEOUT_S, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a file to one worker, so that what its tests share is set up once; but some by their suite.

    A parameter that begins with `<suite>|` says that a test shares things with tests of that suite alone.
    """
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BySuite(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            name, _, _ = nodeid.partition("|")
            return super()._split_scope(nodeid) if name == nodeid else name

    return BySuite(config, log)


def composed_once(compose: Callable[..., Any]) -> Callable[..., Any]:
    """Let Hydra compose each suite's YAML files once per process: it takes about a second."""

    @cache
    def pickled(name: str, chosen: tuple[tuple[str, str], ...], *others: Any) -> bytes:
        return pickle.dumps(compose(name, dict(chosen)))

    def composed(name: str, chosen: dict[str, str]) -> Any:
        others = (str(config.CONF), tuple(config.optimizations(name)))
        return pickle.loads(pickled(name, tuple(sorted(chosen.items())), *others))

    return composed


config.compose_suite = composed_once(config.compose_suite)  # for the parameters of tests, too


@pytest.fixture(scope="session", autouse=True)
def ranks_forked():
    """Let pools of ranks fork them, in this process: see forked_ranks.py."""
    with pytest.MonkeyPatch.context() as patch:
        template = forking(patch)
        yield template
        template.close()


@pytest.fixture(scope="module")
def ranks_by_command(ranks_forked):
    """Let pools start their ranks as in a sweep: for tests of starts, and of a rank's own memory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rank_pool, "subprocess", subprocess)
        yield


@pytest.fixture
def nothing_left(ranks_forked, monkeypatch):
    """Check that after a test there are no other processes, files of /dev/shm or namespaces than before."""
    mark = marked(monkeypatch)
    before = left(mark)
    yield
    kept = set() if ranks_forked.process is None else {f"process {ranks_forked.process.pid}"}
    added = left(mark) - before - kept  # the process that forks ranks serves later tests, too
    with suppress(AssertionError):  # a killed process takes a moment to end
        wait_for(lambda: not added & left(mark), limit_s=20)
    assert added & left(mark) == set()


@pytest.fixture(scope="module")
def toy_suites():
    """Make children find the toy suites; another test's process that is out of memory is none of theirs."""
    from toy.sweep import environ

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", environ()["PYTHONPATH"])
        patch.setattr("harness.sweep.executors.child.oom_kills", lambda: 0)
        yield


@pytest.fixture(autouse=True)
def frozen(request: pytest.FixtureRequest) -> None:
    """Freeze what lives before a slow test, so that collections of garbage do not traverse all of torch.

    `harness.instruments.memory.allocator.watch` begins with one. What the test makes is collected.
    """
    if request.node.get_closest_marker("slow"):
        gc.collect()
        gc.freeze()
