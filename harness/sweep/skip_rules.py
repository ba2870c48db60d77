"""Cells that need not be tried, because the end of an earlier one decides theirs; asked by the runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.records import LOST, Cell, Record, Status, digest

NOT_TRIED = "not tried"
"""Start of the reason of a cell that was not tried."""


class SkipRules:
    """Decides from the ends of cells how later ones would end; its only state is what it has noted.

    A cell that cannot run here cannot run in its further repeats. `size_fields`: numeric fields of a
    workload. Workloads that agree in every other field except the source are of one kind, and one in which
    none of these is smaller than in another that ran out of memory would run out too. Without fields every
    size is tried. `predicted`: the ids of cells that are not tried at all, and why.
    """

    def __init__(self, size_fields: Sequence[str], predicted: Mapping[str, str] = {}) -> None:
        self._predicted = predicted
        self._grows_by = size_fields
        self._too_large: dict[str, list[Cell]] = {}
        self._unavailable: dict[str, str] = {}

    def note(self, record: Record) -> None:
        """Remember the cells that could not run, and those that ran out of memory when they were tried."""
        cell = record.cell
        if record.status == Status.UNAVAILABLE and not record.reason.startswith(LOST):
            self._unavailable[_same(cell)] = record.reason
        tried = record.status == Status.OUT_OF_MEMORY and not record.reason.startswith(NOT_TRIED)
        if self._grows_by and tried:
            self._too_large.setdefault(self._kind(cell), []).append(cell)

    def skip_reason(self, cell: Cell) -> tuple[Status, str] | None:
        """Return how `cell` would end, and why; None where it must be tried."""
        if cell.id in self._predicted:
            return Status.UNAVAILABLE, self._predicted[cell.id]
        if _same(cell) in self._unavailable:
            return Status.UNAVAILABLE, self._unavailable[_same(cell)]
        for known in self._too_large.get(self._kind(cell), ()) if self._grows_by else ():
            if all(a >= b for a, b in zip(self._sizes(cell), self._sizes(known), strict=True)):
                before = f"{known.optimization} ran out of memory on {known.workload}"
                if known.workload == cell.workload:
                    return Status.OUT_OF_MEMORY, f"{NOT_TRIED} again: {before}"
                sizes = zip(self._grows_by, self._sizes(known), strict=True)
                size = ", ".join(f"{name} {value:g}" for name, value in sizes)
                return Status.OUT_OF_MEMORY, f"{NOT_TRIED}: {before}, which is no larger ({size})"
        return None

    def _kind(self, cell: Cell) -> str:
        workload = cell.config["workload"]
        alike = {name: value for name, value in workload.items() if name not in (*self._grows_by, "source")}
        return digest([cell.optimization, cell.config.get("settings"), alike])

    def _sizes(self, cell: Cell) -> list[float]:
        return [float(cell.config["workload"][name]) for name in self._grows_by]


def _same(cell: Cell) -> str:
    """Return the cell's identity without its repeat."""
    return digest([cell.suite, cell.workload, cell.optimization, cell.config])
