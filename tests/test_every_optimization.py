"""Every optimization of every suite, on its suite's `tiny` workloads, is held to its contract.

Suites and optimizations are found by their YAMLs and modules: a new one is tried without an edit here.
"""

import math
from dataclasses import replace
from functools import cache
from importlib import import_module

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from variants import applied, unavailable

from harness.config import compose_suite, fill_defaults, load, names
from harness.optimizations import CONF
from harness.plan import is_planned
from harness.protocols import close, prepared
from harness.records import UNITS, Origin, Reading
from harness.validation import check_fields, check_relations
from harness.worker import host

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
GPU = torch.cuda.is_available()


@cache
def run_of(suite):
    """Return the suite's run with its tiny workloads alone, each checked as any workload is."""
    config = compose_suite(suite, {})
    fill_defaults(config)
    plain = OmegaConf.to_container(config.suite, resolve=True)
    run, tiny = load([f"suite={suite}"])[0], {}
    for name, changes in plain["tiny"].items():
        fields = {**plain["workloads"][name], **changes}
        tiny[name] = check_fields(f"suite.tiny.{name}", fields, plain["fields"])
        check_relations(f"suite.tiny.{name}", tiny[name], plain["fields"])
    return replace(run, workloads=tiny)


CASES = [
    pytest.param((suite, workload), variant, id=f"{suite}-{workload}-{variant.name}")
    for suite in names("suite")
    for workload in run_of(suite).workloads
    for variant in run_of(suite).variants
    if is_planned(run_of(suite), variant, workload, GPU)
]


@pytest.fixture(scope="module")
def point(request):
    """Return a suite and a workload, whose baseline stays open: what variants share is started once."""
    suite, workload = request.param
    module, fields = import_module(f"suites.{suite}"), run_of(suite).workloads[workload]
    session = prepared(module, module.build(fields, 1))
    yield suite, fields
    close(module, session)


@pytest.mark.parametrize(("point", "variant"), CASES, indirect=["point"])
def test_an_optimization_is_right_and_is_measured(point, variant):
    suite, fields = point
    if reason := unavailable(suite, variant, host(torch)):
        pytest.skip(reason)
    module = import_module(f"suites.{suite}")
    session = prepared(module, applied(suite, variant, module.build(fields, 1)))
    try:
        module.check(session)
        assert all(isinstance(value, str) for value in module.conditions(session).values())
        said = list(module.read_once(session)) if hasattr(module, "read_once") else []
        if not hasattr(module, "timed") or module.timed(session):
            said += list(module.sample(session))
    finally:
        close(module, session)
    readings = [one for one in said if isinstance(one, Reading)]
    assert readings
    assert {one.unit for one in readings} <= UNITS
    assert {one.origin for one in readings} <= set(Origin)
    assert all(math.isfinite(one.value) for one in readings)


@pytest.mark.parametrize("suite", names("suite"))
def test_every_suite_has_tiny_workloads_on_which_every_optimization_is_tried(suite):
    """Or says with `tiny: {}` that its own tests do, on ranks that are started once."""
    assert "tiny" in yaml.safe_load((CONF / "suite" / f"{suite}.yaml").read_text())
    run = run_of(suite)
    tried = {v.name for v in run.variants for w in run.workloads if is_planned(run, v, w, gpu=True)}
    assert not tried or tried == {variant.name for variant in run.variants}
