"""Each optimization agrees with its YAML; each claim, workload and device has its source."""

import ast

import pytest
import yaml

from harness.claims.load import load_claims
from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import CONF, code_of, optimizations, settings_of, titles
from harness.config.protocols import FunctionOptimization, optimization_module
from harness.config.run import load, names
from harness.report.spec import REPORTS, LinesBlock, PairedBlock, load_spec

SUITES = names("suite")


@pytest.mark.parametrize("suite", SUITES)
def test_an_optimization_has_the_settings_of_its_yaml_and_a_title(suite):
    shown = titles(suite)
    for name in optimizations(suite):
        module = optimization_module(code_of(suite), name)
        has_settings = hasattr(module, "Settings") or isinstance(module, FunctionOptimization)
        own = settings_of(code_of(suite), name) if has_settings else {}
        config = yaml.safe_load((CONF / "suite" / suite / f"{name}.yaml").read_text()) or {}
        assert set(own) == set(config.get("settings", {})), name
        own_titles = {one: title for one, title in shown.items() if one.partition(".")[0] == name}
        assert own_titles, name
        assert not {one for one, title in own_titles.items() if title == one}


@pytest.mark.parametrize("suite", SUITES)
def test_each_claim_and_workload_has_its_source_and_a_claim_speaks_of_what_is_run(suite):
    run = load([f"suite={suite}"])[0]
    variants = {variant.name for variant in run.variants}
    assert all(workload["source"] for workload in run.workloads.values())
    report = REPORTS / f"{suite}.yaml"
    listed = yaml.safe_load(report.read_text()).get("optimization_order", []) if report.exists() else []
    assert set(listed) <= variants
    for claim in load_claims(suite):
        assert claim.source_says
        assert claim.quoted
        for one in claim.interpretations:
            assert {*one.variants, one.relative_to or "baseline"} <= variants, claim.id
            workload = run.workloads[one.workload]
            due = {**one.requires, **one.defaults}
            assert due == {name: workload.get(name) for name in due}, claim.id


@pytest.mark.parametrize("suite", [suite for suite in SUITES if load([f"suite={suite}"])[0].rounds_field])
def test_where_rounds_are_draws_every_speed_up_is_their_mean(suite):
    """A middle leaves draws out: a placement in which a variant gains nothing is no disturbance."""
    paired = [one for claim in load_claims(suite) for one in claim.interpretations if one.relative_to]
    assert {one.stat for one in paired} == {"mean"}
    blocks = load_spec(suite).blocks
    compare = [one.draws for one in blocks if isinstance(one, PairedBlock) and one.noise]
    compare += [one.y.draws for one in blocks if isinstance(one, LinesBlock) and one.y.over]
    assert compare
    assert all(compare)


def test_a_class_name_has_one_meaning():
    """No other module defines a name that a class has, except those that each suite or technique has."""
    kinds: dict[str, list[bool]] = {}
    for path in [*ROOT.glob("harness/**/*.py"), *ROOT.glob("suites/**/*.py")]:
        body = ast.parse(path.read_text()).body
        found = {one.name: True for one in body if isinstance(one, ast.ClassDef)}
        found |= {one.name: False for one in body if isinstance(one, ast.FunctionDef)}
        for one in (one for one in body if isinstance(one, ast.Assign)):
            found |= {target.id: False for target in one.targets if isinstance(target, ast.Name)}
        for name, is_class in found.items():
            kinds.setdefault(name, []).append(is_class)
    several = {name for name, classes in kinds.items() if len(classes) > 1 and any(classes)}
    assert several <= {"Workload", "Subject", "Session", "Settings"}


def test_a_device_has_a_source_and_no_more_usable_memory_than_its_chips():
    """Datasheets count decimal gigabytes, chips binary ones; the driver keeps some of those."""
    for name in names("hardware"):
        sheet = yaml.safe_load((CONF / "hardware" / f"{name}.yaml").read_text())
        assert sheet["source"]
        chips_B = float(sheet["memory_B"]) / 1e9 * 2**30
        assert 0.9 * float(sheet["memory_B"]) < float(sheet.get("usable_memory_B", chips_B)) <= chips_B, name
        if name != "gpu_80gb":
            assert {"fp16", "fp32"} <= sheet.get("matmul_FLOP_per_s", {}).keys(), name
            assert float(sheet["memory_bandwidth_B_per_s"]) > float(sheet["link_B_per_s"]) > 0
