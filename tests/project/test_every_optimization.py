"""Every optimization of every suite, on its suite's `tiny` workloads, is held to its contract.

Suites and optimizations are found by their YAMLs and modules: a new one is tried without an edit here.
"""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

import pytest
import torch
from cheap_sessions import cheap_sessions
from torch._dynamo.backends.debugging import aot_eager
from variants import applied, tiny_run, unavailable

from harness.config.optimizations import AGAIN, BASELINE, code_of
from harness.config.protocols import close, prepared
from harness.config.run import names
from harness.records import UNITS, Origin, Reading, Unavailable
from harness.sweep.plan import is_planned
from harness.sweep.worker import host

pytestmark = pytest.mark.timeout(600)
GPU = torch.cuda.is_available()
RANKS = ("dp_size", "source")  # fields in which workloads of one kind differ
BATCHES = ("loading", "training")
"""Kinds of the dataloader suite whose batches a loader makes alike, whatever is done with them."""
DEPENDS_ON = {
    "dataloader_balance": ("items",),
    "kernels": ("operation",),
    "memory": (),
    "overlap_schedule": (),
    "portability": (),
    "profiling": ("linked",),
    "step_gains": (),
}
"""Fields that change what an optimization of these suites does; baselines show what the others do."""


def kind_of(suite, fields, name):
    """What an optimization of this name depends on."""
    if name != "baseline" and suite in DEPENDS_ON:
        return str([fields[one] for one in DEPENDS_ON[suite]])
    if name != "baseline" and suite == "dataloader" and fields["kind"] in BATCHES:
        return str(BATCHES)
    return str({name: value for name, value in fields.items() if name not in RANKS})


def repeated(variants):
    """The settings of an optimization that differ from later ones of it in numbers alone."""
    last, again = set(), set()
    for one in reversed(variants):
        others = [(field, value) for field, value in one.settings.items() if type(value) not in (int, float)]
        alike = str((one.module, one.techniques, sorted(others)))
        if alike in last:
            again.add(one.name)
        last.add(alike)
    return again


def cases(suite):
    """Yield each workload with its optimizations; where one has several settings, each on one workload.

    Of workloads that differ in their ranks alone, each optimization has one. Not with `baseline_again`, the
    baseline under another name, and not with settings that differ from later ones in numbers alone.
    """
    run, tried, again = tiny_run(suite), set(), repeated(tiny_run(suite).variants)
    for workload, fields in run.workloads.items():
        for variant in run.variants:
            optimization = kind_of(suite, fields, variant.name), variant.name.partition(".")[0]
            new = variant.name not in again and (variant.name not in tried or optimization not in tried)
            if new and variant.module != AGAIN and is_planned(run, variant, workload, GPU):
                tried.update((variant.name, optimization))
                yield pytest.param(suite, workload, variant, id=f"{suite}|{workload}-{variant.name}")


@contextmanager
def skipped_where_unavailable() -> Iterator[None]:
    """Skip with the reason that the harness records, where this host lacks what a cell needs."""
    try:
        yield
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module", autouse=True)
def started_once(ranks_forked):
    with cheap_sessions(ranks_forked):
        yield


TRACED = ("compile_sdpa", "compile_sdpa_autocast", "factorial.*compile*")
"""Traced by torch.compile, with no code generated: other variants run a step's generated code."""


class Baseline:
    """The open baseline of one suite and workload: what variants share is started once."""

    def __init__(self) -> None:
        self.point, self.session, self.stack = ("", ""), None, ExitStack()

    def open(self, suite: str, workload: str) -> Any:
        """Return the session of this baseline, and close that of another suite or workload."""
        if self.point != (suite, workload):
            self.stack.close()
            self.point = ("", "")
            module = import_module(code_of(suite).module)
            self.session = prepared(module, module.build(tiny_run(suite).workloads[workload], 1))
            self.stack.callback(close, module, self.session)
            self.point = suite, workload
        return self.session


@pytest.fixture(scope="module")
def baseline(started_once):
    opened = Baseline()
    yield opened
    opened.stack.close()


@pytest.mark.parametrize(
    ("suite", "workload", "variant"), [case for suite in names("suite") for case in cases(suite)]
)
def test_an_optimization_is_right_and_is_measured(baseline, suite, workload, variant, monkeypatch):
    if any(fnmatchcase(variant.name, pattern) for pattern in TRACED):
        compiled = torch.nn.Module.compile
        monkeypatch.setattr(
            torch.nn.Module, "compile", lambda model, **_: compiled(model, dynamic=False, backend=aot_eager)
        )
    if reason := unavailable(suite, variant, host(torch)):
        pytest.skip(reason)
    module = import_module(code_of(suite).module)
    fields = tiny_run(suite).workloads[workload]
    with skipped_where_unavailable(), ExitStack() as stack:
        session = baseline.open(suite, workload)
        if variant.module != BASELINE:
            session = prepared(module, applied(suite, variant, module.build(fields, 1)))
            stack.callback(close, module, session)
        module.check(session)
        assert all(isinstance(value, str) for value in module.conditions(session).values())
        taken = list(module.read_once(session)) if hasattr(module, "read_once") else []
        if not hasattr(module, "timed") or module.timed(session):
            taken += list(module.sample(session))
    readings = [one for one in taken if isinstance(one, Reading)]
    assert readings
    assert {one.unit for one in readings} <= UNITS
    assert {one.origin for one in readings} <= set(Origin)
    assert all(math.isfinite(one.value) for one in readings)


LACKING = ("is not installed", "is not on the PATH")
"""Words of a reason that is of this host, not of the workload."""


@pytest.mark.parametrize("suite", names("suite"))
def test_every_optimization_applies_to_a_tiny_workload(suite):
    """Or needs what this host lacks. Targets that no tiny workload is compiled for have their own tests."""
    run, module, tried = tiny_run(suite), import_module(code_of(suite).module), set()
    for variant in run.variants:
        if unavailable(suite, variant, host(torch)):
            tried.add(variant.name)
        for workload, fields in run.workloads.items():
            if is_planned(run, variant, workload, gpu=True):
                try:
                    applied(suite, variant, module.build(fields, 1))
                except Unavailable as lacking:
                    if not any(words in str(lacking) for words in LACKING):
                        continue
                tried.add(variant.name)
    planned = {
        variant.name
        for variant in run.variants
        if any(is_planned(run, variant, workload, gpu=True) for workload in run.workloads)
    }
    assert tried >= planned
