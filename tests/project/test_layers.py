"""Imports go one way: read in the sources, not run."""

import subprocess
import sys
from pathlib import Path

import pytest

from harness.config.code_fingerprint import ROOT, file_of, imports_of

FILES = sorted(path for top in ("harness", "suites") for path in (ROOT / top).rglob("*.py"))


def module_of(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


GRAPH = {module_of(f): {module_of(p) for n in imports_of(f) if (p := file_of(n))} for f in FILES}
NOUNS = {"harness"} | {
    f"harness.{name}" for name in ("records", "units", "bounds", "statistics", "question", "answer")
}
FLOORS = ("instruments", "config", "frameworks", "claims sweep", "preset report", "commands", "ask")
"""The packages of harness/ from the bottom up: each imports only what is below it, and itself."""

ENTRIES = {f"harness.{name}" for name in ("__main__", "advise", "fit", "cost", "profile", "compare")}
OF_INSTRUMENTS = {"harness", "harness.records", "harness.bounds", "harness.instruments"}
OF_SUITES = OF_INSTRUMENTS | {"harness.question", "harness.answer", "suites"}
OF_SUITES |= {"harness.config.validation", "harness.config.hf_config"}
ASKS = ("suites.published.suite", "suites.published.memory_published")
"""The suites about what users get: they ask as users do."""


def is_allowed(module: str, used: str) -> bool:
    """Return whether a module may import another."""
    top, package, *_ = [*module.split("."), ""]
    if top == "suites" and module.endswith(".report"):
        return not used.startswith(("suites.", "harness.commands.", "harness.ask."))
    if module in ASKS and used.startswith("harness.ask"):
        return True
    if top == "suites":
        below = ("harness.instruments.", "suites.training.", f"suites.{package}.")
        return used in OF_SUITES or (used + ".").startswith(below)
    if used.startswith("suites"):
        return False  # suites are loaded by their names
    if module in NOUNS:
        return used in NOUNS
    if package == "instruments":
        return used in OF_INSTRUMENTS or used.startswith("harness.instruments.")
    if module in ENTRIES:
        return True
    (floor,) = (at for at, packages in enumerate(FLOORS) if package in packages.split())
    return used in NOUNS or used.split(".")[1] in (package, *" ".join(FLOORS[:floor]).split())


@pytest.mark.parametrize("package", sorted({".".join(module.split(".")[:2]) for module in GRAPH}))
def test_a_module_imports_only_what_is_below_it(package):
    modules = [module for module in GRAPH if f"{module}.".startswith(f"{package}.")]
    assert [(m, used) for m in modules for used in GRAPH[m] if not is_allowed(m, used)] == []


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


def test_what_asks_plans_and_reports_never_imports_torch():
    modules = (
        *("harness.__main__", "harness.claims.judge", "harness.report", "harness.sweep.runner"),
        *("harness.frameworks.logs", "harness.frameworks.oom", "harness.frameworks.read"),
    )
    heavy = ("torch", "suites", "deepspeed", "transformers")
    code = f"import sys, {', '.join(modules)}; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
