"""Refuses what no declaration can: builds each cell of a suite that computes nothing, before any is run.

The suite is imported in a child process, `python -m harness.sweep.input_check`, for the parent imports no
suite.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from harness.config.code_fingerprint import ROOT
from harness.config.protocols import apply, optimization_module
from harness.config.validation import ConfigError
from harness.records import Group, Unavailable

TIMEOUT_S = 60.0


def refuse_bad_inputs(groups: Sequence[Group]) -> None:
    """Raise ConfigError where a cell cannot be built: one line that names workload and variant.

    Also where building fails in another way, or takes longer than `TIMEOUT_S`.
    """
    cells = [
        (f"{group.package}.{cell.suite}", cell.workload, cell.optimization, cell.module, cell.config)
        for group in groups
        for cell in group.cells
        if cell.repeat == 0
    ]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness.sweep.input_check"],
            env={**os.environ, "PYTHONPATH": path},
            input=json.dumps(cells),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the suite did not build its cells within {TIMEOUT_S:g} s") from None
    if done.returncode:
        last = [line.strip() for line in done.stderr.splitlines() if line.strip()][-1:]
        reason = last[0] if last else f"exit status {done.returncode} without a message"
        raise ConfigError(f"the suite cannot build its cells: {reason}")
    if reason := done.stdout.strip():
        raise ConfigError(reason)


def first_fault(cells: Iterable[tuple[str, str, str, str, Any]]) -> str:
    """Return the reason why the first cell that cannot be built cannot, "" where all can."""
    for package, workload, variant, name, config in cells:
        suite = import_module(f"{package}.suite")
        try:
            subject = suite.build(config["workload"], 0)
            if (module := optimization_module(package, name)) is not None:
                apply(module, subject, config["settings"])
        except Unavailable as fault:
            return f"{workload}, {variant}: {fault}"
    return ""


if __name__ == "__main__":
    sys.stdout.write(first_fault(json.load(sys.stdin)))
