"""Imports go one way: read in the sources, not run."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.config.code_fingerprint import ROOT, file_of, imports_of

FILES = sorted(p for top in ("harness", "suites") for p in (ROOT / top).rglob("*.py"))


def module_of(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


GRAPH = {module_of(f): {module_of(p) for n in imports_of(f) if (p := file_of(n))} for f in FILES}


NOUNS = {"harness"} | {
    f"harness.{name}" for name in ("records", "units", "bounds", "statistics", "question", "answer")
}
FLOORS = (
    {"instruments"},
    {"config"},
    {"frameworks"},
    {"claims", "sweep"},
    {"preset", "report"},
    {"commands"},
    {"ask"},
)
"""The packages of harness/ from the bottom up: each imports only what is below it, and itself."""


def package_of(module: str) -> str:
    return module.split(".")[1] if module.count(".") else ""


@pytest.mark.parametrize("module", sorted(NOUNS - {"harness"}))
def test_the_nouns_stand_at_the_bottom(module):
    assert GRAPH[module] <= NOUNS - {module}


@pytest.mark.parametrize("floor", range(len(FLOORS)))
def test_each_package_knows_only_those_below_it(floor):
    below = set().union(*FLOORS[:floor])
    for package in FLOORS[floor]:
        modules = [m for m in GRAPH if m.startswith(f"harness.{package}")]
        assert modules
        for module in modules:
            upward = {
                used for used in GRAPH[module] - NOUNS
                if used.startswith("harness.") and package_of(used) not in below | {package}
            }  # fmt: skip
            assert not upward, f"{module} imports {sorted(upward)}"


def test_every_module_of_the_harness_is_a_noun_an_entry_point_or_of_a_package():
    entries = {f"harness.{name}" for name in ("__main__", "advise", "fit", "cost", "profile", "compare")}
    packages = set().union(*FLOORS)
    for module in GRAPH:
        if module.startswith("harness.") and module not in NOUNS | entries:
            assert package_of(module) in packages, module


@pytest.mark.parametrize("module", [m for m in GRAPH if m.startswith("harness.instruments.")])
def test_instruments_know_records_and_bounds_alone(module):
    allowed = {"harness", "harness.records", "harness.bounds", "harness.instruments"}
    assert all(i in allowed or i.startswith("harness.instruments.") for i in GRAPH[module]), GRAPH[module]


BELOW = {
    "harness",
    "harness.records",
    "harness.bounds",
    "harness.question",
    "harness.answer",
    "harness.config.validation",
    "harness.config.hf_config",
    "harness.instruments",
    "suites",
}
TRAINING = [m for m in GRAPH if (m + ".").startswith("suites.training.")]
REPORTS = [m for m in GRAPH if m.startswith("suites.") and m.endswith(".report")]
SUITES = [m for m in GRAPH if m.startswith("suites.") and m not in (*TRAINING, *REPORTS)]


@pytest.mark.parametrize("module", TRAINING)
def test_the_training_layer_knows_the_instruments_and_no_suite(module):
    for used in GRAPH[module] - BELOW:
        assert (used + ".").startswith(("harness.instruments.", "suites.training.")), (
            f"{module} imports {used}"
        )


@pytest.mark.parametrize("module", SUITES)
def test_suites_know_the_instruments_and_the_training_layer_and_never_one_another(module):
    own = ".".join(module.split(".")[:2])
    for used in GRAPH[module] - BELOW:
        below = ("harness.instruments.", "suites.training.", own + ".")
        assert (used + ".").startswith(below), f"{module} imports {used}"


@pytest.mark.parametrize("module", REPORTS)
def test_a_suites_report_knows_the_harness_below_its_commands_and_no_suite(module):
    above = ("suites.", "harness.commands.", "harness.ask.")
    assert not any(used.startswith(above) for used in GRAPH[module])


@pytest.mark.parametrize("module", [m for m in GRAPH if m.split(".")[0] == "harness"])
def test_the_harness_loads_suites_by_name_only(module):
    assert not any(i.split(".")[0] == "suites" for i in GRAPH[module]), f"{module} imports a suite"


def test_there_is_no_cycle():
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for used in GRAPH[module]:
                # A package's own __init__ runs before its modules; that is no cycle unless it imports them.
                if used in GRAPH and not (module + ".").startswith(used + "."):
                    walk(used, (*path, module))
            done.add(module)

    for module in GRAPH:
        walk(module, ())


@pytest.mark.parametrize(
    "module", ["harness.__main__", "harness.claims.judge", "harness.report", "harness.sweep.runner"]
)
def test_the_parent_never_imports_torch(module):
    code = f"import sys, {module}; sys.exit(any(m in sys.modules for m in ('torch', 'suites', 'deepspeed')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
