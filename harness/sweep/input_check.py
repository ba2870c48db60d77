"""Refuses what no declaration can: builds each cell of a suite that computes nothing, before any is run.

The suite is imported in a child process, for the parent imports no suite.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any

from harness.config.protocols import apply, optimization_module
from harness.config.validation import ConfigError
from harness.config.variants.optimizations import code_below
from harness.records import Group, Unavailable
from harness.sweep.in_child import ChildError, in_child

TIMEOUT_S = 60.0


def refuse_bad_inputs(groups: Sequence[Group]) -> None:
    """Raise ConfigError where a cell cannot be built: one line that names workload and variant.

    Also where building fails in another way, or takes longer than `TIMEOUT_S`.
    """
    cells = [
        (group.package, cell.suite, cell.workload, cell.optimization, cell.module, cell.config)
        for group in groups
        for cell in group.cells
        if cell.repeat == 0
    ]
    try:
        reason = in_child(__name__, first_fault.__name__, cells, TIMEOUT_S)
    except ChildError as error:
        raise ConfigError(f"the suite cannot build its cells: {error}") from None
    if reason:
        raise ConfigError(reason)


def first_fault(cells: Iterable[tuple[str, str, str, str, str, Any]]) -> str:
    """Return the reason why the first cell that cannot be built cannot, "" where all can."""
    for package, of_suite, workload, variant, name, config in cells:
        code = code_below(package, of_suite)
        suite = import_module(code.module)
        try:
            subject = suite.build(config["workload"], 0)
            if (module := optimization_module(code, name)) is not None:
                apply(module, subject, config["settings"])
        except Unavailable as fault:
            return f"{workload}, {variant}: {fault}"
    return ""
