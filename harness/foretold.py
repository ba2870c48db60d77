"""What the end of one cell tells of later ones, which then need not be tried; the runner asks."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Cell, Record, Status, digest

NOT_TRIED = "not tried"
"""How the reason begins of a cell that a smaller one speaks for."""


class Foretold:
    """Told how cells ended, says how later ones would. Pure but for what it was told.

    A cell that cannot run here cannot in its further repeats. `grows_by`: fields of a workload, of which the
    first is its size and the others do not tell kinds apart; workloads that agree in every other field are of
    one kind, and one as large as another that ran out of memory, or larger, would too. Without fields every
    size is tried.
    """

    def __init__(self, grows_by: Sequence[str]) -> None:
        self._grows_by = grows_by
        self._smallest: dict[str, Cell] = {}
        self._unavailable: dict[str, str] = {}

    def note(self, record: Record) -> None:
        """Remember the cells that could not run, and the smallest of each kind that ran out of memory."""
        cell = record.cell
        if record.status == Status.UNAVAILABLE:
            self._unavailable[_same(cell)] = record.reason
        tried = record.status == Status.OUT_OF_MEMORY and not record.reason.startswith(NOT_TRIED)
        if self._grows_by and tried:
            known = self._smallest.get(self._kind(cell))
            if known is None or self._size(cell) < self._size(known):
                self._smallest[self._kind(cell)] = cell

    def end_of(self, cell: Cell) -> tuple[Status, str] | None:
        """How `cell` would end, and why; None where it is to be tried."""
        if _same(cell) in self._unavailable:
            return Status.UNAVAILABLE, self._unavailable[_same(cell)]
        known = self._smallest.get(self._kind(cell)) if self._grows_by else None
        if known is None or self._size(cell) < self._size(known):
            return None
        before = f"{known.optimization} ran out of memory on {known.workload}"
        if known.workload == cell.workload:
            return Status.OUT_OF_MEMORY, f"{NOT_TRIED} again: {before}"
        size = f"({self._grows_by[0]} {self._size(known):g})"
        return Status.OUT_OF_MEMORY, f"{NOT_TRIED}: {before}, which is smaller {size}"

    def _kind(self, cell: Cell) -> str:
        workload = cell.config["workload"]
        alike = {name: value for name, value in workload.items() if name not in self._grows_by}
        return digest([cell.optimization, cell.config.get("settings"), alike])

    def _size(self, cell: Cell) -> float:
        return float(cell.config["workload"][self._grows_by[0]])


def _same(cell: Cell) -> str:
    """Names the cell but for its repeat."""
    return digest([cell.suite, cell.workload, cell.optimization, cell.config])
