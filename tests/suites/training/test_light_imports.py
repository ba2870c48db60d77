"""The account of layouts and the step-time model import neither torch nor transformers."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "deepspeed", "pandas", "scipy", "matplotlib", "omegaconf", "hydra")

USES_SCIPY = ("calibrate",)
"""Modules that no question needs: they fit constants."""


def modules(package: str) -> list[str]:
    """Return the names of a package's modules, at any depth."""
    spec = find_spec(package)
    assert spec is not None
    folder = Path(next(iter(spec.submodule_search_locations or ())))
    names = []
    for file in sorted(folder.rglob("*.py")):
        inner = file.relative_to(folder).with_suffix("").parts
        if inner[-1] not in ("__init__", "__main__", *USES_SCIPY):
            names.append(".".join((package, *inner)))
    return names


@pytest.mark.parametrize("package", ["suites.training.layouts", "suites.training.step_time"])
def test_importing_brings_no_heavy_package(package: str):
    names = modules(package)
    assert len(names) > 10
    code = (
        "import sys\n"
        "from importlib import import_module\n"
        f"for name in {names!r}: import_module(name)\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_shape_needs_no_transformers():
    code = (
        "import sys\n"
        "sys.modules['transformers'] = sys.modules['torch'] = None\n"
        "from suites.training.layouts.shape_of_config import shape_of_config\n"
        "print(shape_of_config({'model_type': 'llama'}).parameters)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "6738415616", done.stderr
