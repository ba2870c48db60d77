"""A child process before a sweep: how fast this CPU multiplies matrices, and which cells need bf16 products.

`python -m harness.sweep.estimate.survey`, with a group of cells as JSON on standard input; prints one JSON
object. It loads the suite and builds each cell's description; it starts nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from harness.config.protocols import apply, optimization_module
from harness.config.variants.optimizations import BASELINE
from harness.records import Cell, Group

HOOK = "bf16_FLOP"
"""A suite's function that returns the FLOP of the bf16 matrix products that a subject computes on this CPU:
per sample where variants are interleaved, else in all."""


OWN_MODEL = "own_model"
"""A suite's function that returns the FLOP of one sample of a user's own model, and why it does not fit into
this machine's memory and what would; "" where it does."""


def main() -> None:
    """Measure, ask the suite about each cell where bf16 is slow, and print what was found."""
    group = Group(*json.load(sys.stdin))
    from harness.instruments.timing import matmul_probe

    slow = matmul_probe.bf16_is_slow()
    cells = [Cell(*fields) for fields in group.cells]
    report = {
        "matmul_FLOP_per_s": matmul_probe.matmul_FLOP_per_s(),
        "bf16_is_slow": slow,
        "bf16_FLOP": bf16_FLOP(cells, group.package) if slow else {},
        **own_model(cells, group.package),
    }
    sys.stdout.write(json.dumps(report) + "\n")


def bf16_FLOP(cells: Sequence[Cell], package: str) -> dict[str, float]:
    """Return the FLOP of bf16 products by cell, for those that have any."""
    flops = {}
    for cell in cells:
        with suppress(Exception):  # raised again when the cell is run, and recorded there
            if flop := _of_cell(cell, package):
                flops[cell.id] = flop
    return flops


def own_model(cells: Sequence[Cell], package: str) -> dict[str, Any]:
    """Return `own_FLOP` and `too_large` of the baseline of a user's own model; nothing without one."""
    for cell in cells:
        suite: Any = import_module(f"{package}.{cell.suite}.suite")
        if cell.optimization == BASELINE and has_own_model(cell) and hasattr(suite, OWN_MODEL):
            with suppress(Exception):  # raised again when the cell is run, and recorded there
                flop, reason = suite.own_model(suite.build(cell.config["workload"], cell.seed))
                return {"own_FLOP": float(flop), "too_large": str(reason)}
    return {}


def has_own_model(cell: Cell) -> bool:
    """Return whether the cell's model is that of a user's config.json."""
    return cell.config["workload"].get("hf_config") is not None


def _of_cell(cell: Cell, package: str) -> float:
    """Return the FLOP of one cell: built, its module and techniques applied."""
    name = f"{package}.{cell.suite}"
    suite: Any = import_module(f"{name}.suite")
    subject = suite.build(cell.config["workload"], cell.seed)
    if (module := optimization_module(name, cell.module)) is not None:
        subject = apply(module, subject, cell.config["settings"])
    if techniques := cell.config.get("techniques"):
        subject = suite.apply_techniques(subject, [tuple(one) for one in techniques])
    return float(getattr(suite, HOOK)(subject))


if __name__ == "__main__":
    main()
