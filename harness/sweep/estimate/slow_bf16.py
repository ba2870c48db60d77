"""Run cells with bf16 matrix products on smaller workloads where such products are slow; pure.

`slow_bf16_workloads` of a suite's YAML lists for each smaller workload those that it replaces. The baseline
runs on both, so that every ratio is one of equal shapes.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.config.run import Run
from harness.config.variants.optimizations import BASELINES
from harness.records import Group
from harness.sweep.estimate.host_probe import HostProbe
from harness.units import counted


def fit_to_host(
    run: Run, groups: Sequence[Group], host: HostProbe | None
) -> tuple[list[Group], tuple[str, ...]]:
    """Return the plan for this host, and in a sentence which cells run on smaller workloads, if any do."""
    cells = [cell for group in groups for cell in group.cells]
    flop = host.bf16_FLOP if host is not None and host.bf16_is_slow else {}
    larger = {name for names in run.slow_bf16_workloads.values() for name in names}
    replaced = {cell.id for cell in cells if cell.id in flop and cell.workload in larger}
    compared = {cell.workload for cell in cells if cell.id in flop}
    unneeded = {
        cell.id
        for cell in cells
        if cell.workload in run.slow_bf16_workloads
        and not (cell.id in flop or (cell.module in BASELINES and cell.workload in compared))
    }
    kept = _without(groups, replaced | unneeded)
    if not replaced:
        return kept, ()
    names = [name for name in run.slow_bf16_workloads if name in compared]
    count = counted(len(replaced), "cell")
    return kept, (f"slow bf16 leaves out {count}, replaced by smaller workloads: {', '.join(names)}",)


def _without(groups: Sequence[Group], dropped: set[str]) -> list[Group]:
    """Return the groups without some cells, and without groups of which only baselines would be left."""
    kept = []
    for group in groups:
        cells = tuple(cell for cell in group.cells if cell.id not in dropped)
        if len(cells) == len(group.cells) or any(cell.module not in BASELINES for cell in cells):
            kept.append(group._replace(cells=cells))
    return kept
