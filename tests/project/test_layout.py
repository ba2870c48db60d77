"""Each optimization agrees with its YAML; each claim has its source; a folder is read at a glance."""

import ast
import re

import pytest
import yaml

from harness.claims.load import load_claims
from harness.config.code_fingerprint import ROOT
from harness.config.optimizations import CONF, code_of, optimizations, settings_of, titles
from harness.config.protocols import FunctionOptimization, optimization_module
from harness.config.run import load, names
from harness.report.spec import REPORTS, LinesBlock, PairedBlock, load_spec

FILES = [*ROOT.glob("harness/**/*.py"), *ROOT.glob("suites/**/*.py")]

PAIRS = [(suite, name) for suite in names("suite") for name in optimizations(suite)]


def defined(path):
    tree = ast.parse(path.read_text())
    return {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)} | {
        t.id: n for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
    }


@pytest.mark.parametrize(("suite", "name"), PAIRS)
def test_the_settings_of_a_module_are_those_of_its_yaml(suite, name):
    module = optimization_module(code_of(suite), name)
    set_ = hasattr(module, "Settings") or isinstance(module, FunctionOptimization)
    own = settings_of(code_of(suite), name) if set_ else {}
    config = yaml.safe_load((CONF / "suite" / suite / f"{name}.yaml").read_text()) or {}
    assert set(own) == set(config.get("settings", {}))


@pytest.mark.parametrize("suite", names("suite"))
def test_every_module_of_an_optimization_has_a_yaml(suite):
    folder = code_of(suite).folder
    modules = [*folder.glob("*.py"), *folder.glob("*/*.py")]
    applied = {file.stem for file in modules if re.search(r"^def apply\(", file.read_text(), re.M)}
    together = [one for one in names("suite") if code_of(one).folder == folder]
    assert applied <= {name for one in together for name in optimizations(one)}
    own = code_of(suite).functions
    if own.stem == f"{suite}_optimizations":
        functions = set(re.findall(r"^def ([a-z]\w*)\(", own.read_text(), re.M))
        assert functions & {name for one in together for name in optimizations(one)} <= set(
            optimizations(suite)
        )


@pytest.mark.parametrize(("suite", "name"), PAIRS)
def test_each_variant_has_a_title(suite, name):
    shown = {variant: title for variant, title in titles(suite).items() if variant.partition(".")[0] == name}
    assert shown
    assert not {variant for variant, title in shown.items() if title == variant}


@pytest.mark.parametrize("suite", sorted(path.stem for path in REPORTS.glob("*.yaml")))
def test_the_report_lists_variants_that_exist(suite):
    listed = yaml.safe_load((REPORTS / f"{suite}.yaml").read_text()).get("optimization_order", [])
    assert set(listed) <= {variant.name for variant in load([f"suite={suite}"])[0].variants}


@pytest.mark.parametrize("suite", names("suite"))
def test_each_claim_has_its_source_and_speaks_of_what_is_run(suite):
    run = load([f"suite={suite}"])[0]
    variants = {variant.name for variant in run.variants}
    for claim in load_claims(suite):
        assert claim.source_says
        assert claim.quoted
        for one in claim.interpretations:
            assert one.workload in run.workloads, f"{claim.id}: no workload {one.workload}"
            named = {*one.variants, one.relative_to or "baseline"}
            assert named <= variants, f"{claim.id}: no variant {named - variants}"
            workload = run.workloads[one.workload]
            due = {**one.requires, **one.defaults}
            assert due == {name: workload.get(name) for name in due}, claim.id


@pytest.mark.parametrize(
    "suite", [suite for suite in names("suite") if load([f"suite={suite}"])[0].rounds_field]
)
def test_where_rounds_are_draws_every_speed_up_is_their_mean(suite):
    """A middle leaves draws out: a placement in which a variant gains nothing is no disturbance."""
    paired = [one for claim in load_claims(suite) for one in claim.interpretations if one.relative_to]
    assert paired
    assert {one.stat for one in paired} == {"mean"}
    blocks = load_spec(suite).blocks
    compare = [one.draws for one in blocks if isinstance(one, PairedBlock) and one.noise]
    compare += [one.y.draws for one in blocks if isinstance(one, LinesBlock) and one.y.against]
    assert compare
    assert all(compare)


@pytest.mark.parametrize("suite", names("suite"))
def test_each_workload_has_its_source(suite):
    for name, workload in load([f"suite={suite}"])[0].workloads.items():
        assert workload["source"], name


def test_every_hardware_value_has_its_source():
    for name in names("hardware"):
        assert yaml.safe_load((CONF / "hardware" / f"{name}.yaml").read_text())["source"]


def test_public_names_of_files_are_plain():
    for path in FILES:
        assert re.fullmatch(r"[a-z0-9_]+", path.stem), path


def test_a_class_name_has_one_meaning():
    """No other module defines a name that a class has, except those that each suite or technique has."""
    modules: dict[str, list] = {}
    for path in FILES:
        for name, node in defined(path).items():
            modules.setdefault(name, []).append((path, isinstance(node, ast.ClassDef)))
    several = {name: found for name, found in modules.items() if len(found) > 1 and any(c for _, c in found)}
    assert several.keys() <= {"Workload", "Subject", "Session", "Settings"}, several


def test_a_device_has_no_more_usable_memory_than_its_chips():
    """Datasheets count decimal gigabytes, chips binary ones; the driver keeps some of those."""
    for name in names("hardware"):
        sheet = yaml.safe_load((CONF / "hardware" / f"{name}.yaml").read_text())
        chips_B = float(sheet["memory_B"]) / 1e9 * 2**30
        assert 0.9 * float(sheet["memory_B"]) < float(sheet.get("usable_memory_B", chips_B)) <= chips_B, name
        rates = sheet.get("matmul_FLOP_per_s", {})
        assert name == "gpu_80gb" or {"fp16", "fp32"} <= rates.keys(), name
        assert (
            name == "gpu_80gb" or float(sheet["memory_bandwidth_B_per_s"]) > float(sheet["link_B_per_s"]) > 0
        )
