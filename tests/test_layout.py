"""Each optimization is one module and one YAML; each claim has its source; nothing lies about unread."""

import ast
import re

import pytest
import yaml

from harness.claims import load_claims
from harness.code_fingerprint import ROOT
from harness.config import CONF, load, names, optimizations
from harness.report.spec import load_spec

PAIRS = [(suite, name) for suite in names("suite") for name in optimizations(suite)]
PROTOCOL = {"Settings", "unavailable", "apply"}


def defined(path):
    tree = ast.parse(path.read_text())
    return {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)} | {
        t.id: n for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
    }


def imported(path):
    tree = ast.parse(path.read_text())
    return {a.asname or a.name for n in tree.body if isinstance(n, ast.ImportFrom) for a in n.names}


@pytest.mark.parametrize(("suite", "name"), PAIRS)
def test_each_yaml_has_its_module(suite, name):
    path = ROOT / "suites" / suite / f"{name}.py"
    assert path.is_file(), f"conf/suite/{suite}/{name}.yaml has no suites/{suite}/{name}.py"
    found = defined(path)
    assert set(found) | imported(path) >= PROTOCOL, f"{path}: an optimization has {PROTOCOL}"
    if isinstance(found.get("Settings"), ast.ClassDef):
        fields = {n.target.id for n in found["Settings"].body if isinstance(n, ast.AnnAssign)}
        config = yaml.safe_load((CONF / "suite" / suite / f"{name}.yaml").read_text())
        assert fields == set(config["settings"]), f"{name}: Settings and its YAML name different settings"


@pytest.mark.parametrize("suite", names("suite"))
def test_each_module_that_is_an_optimization_has_its_yaml(suite):
    for path in (ROOT / "suites" / suite).glob("*.py"):
        if set(defined(path)) >= PROTOCOL:
            assert path.stem in optimizations(suite), f"{path} has no conf/suite/{suite}/{path.stem}.yaml"


@pytest.mark.parametrize("suite", names("suite"))
def test_each_claim_has_its_source_and_speaks_of_what_is_run(suite):
    run = load([f"suite={suite}"])[0]
    variants = {variant.name for variant in run.variants}
    for claim in load_claims(suite):
        assert claim.source
        assert claim.source_mark in "SNCD", f"{claim.id}: an unverified figure is never quoted"
        assert claim.quoted
        for reading in claim.readings:
            assert reading.workload in run.workloads, f"{claim.id}: no workload {reading.workload}"
            assert set(reading.variants) <= variants, (
                f"{claim.id}: no variant {set(reading.variants) - variants}"
            )
            workload = run.workloads[reading.workload]
            assert reading.requires
            assert reading.requires == {name: workload.get(name) for name in reading.requires}, claim.id


@pytest.mark.parametrize(
    "suite", [suite for suite in names("suite") if load([f"suite={suite}"])[0].rounds_field]
)
def test_where_rounds_are_draws_every_speed_up_is_their_mean(suite):
    """A middle leaves draws out: a placement in which a variant gains nothing is no disturbance."""
    paired = [reading for claim in load_claims(suite) for reading in claim.readings if reading.against]
    assert paired
    assert {reading.at for reading in paired} == {"mean"}
    fields = [block.fields for block in load_spec(suite).blocks]
    fields += [one["y"] for one in fields if "y" in one]
    compare = [one for one in fields if one.get("noise") or one.get("against")]
    assert compare
    assert all(one["draws"] for one in compare)


@pytest.mark.parametrize("suite", names("suite"))
def test_each_workload_has_its_source(suite):
    for name, workload in load([f"suite={suite}"])[0].workloads.items():
        assert workload["source"], name


def test_every_hardware_figure_has_its_source():
    for name in names("hardware"):
        assert yaml.safe_load((CONF / "hardware" / f"{name}.yaml").read_text())["source"]


def test_public_names_of_files_are_plain():
    for path in [*ROOT.glob("harness/**/*.py"), *ROOT.glob("suites/**/*.py")]:
        assert re.fullmatch(r"[a-z0-9_]+", path.stem), path
