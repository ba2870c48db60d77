"""Cells that need not be tried, for a smaller one of their kind ran out of memory; the runner asks."""

from __future__ import annotations

from collections.abc import Sequence

from harness.records import Cell, Record, Status, digest


class Growth:
    """Told how cells ended, says which later ones are at least as large. Pure but for what it was told.

    `fields` of a workload: the first is its size, the others do not tell kinds apart; workloads that agree
    in every other field are of one kind. Without fields every cell is tried.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self._fields = fields
        self._smallest: dict[str, Cell] = {}

    def note(self, record: Record) -> None:
        """Remember the smallest cell of each kind that ran out of memory when it was tried."""
        if self._fields and record.status == Status.OUT_OF_MEMORY and not record.reason.startswith(NOT_TRIED):
            kind, known = self._kind(record.cell), self._smallest.get(self._kind(record.cell))
            if known is None or self._size(record.cell) < self._size(known):
                self._smallest[kind] = record.cell

    def why_not(self, cell: Cell) -> str:
        """Why `cell` need not be tried; "" where it is to be."""
        known = self._smallest.get(self._kind(cell)) if self._fields else None
        if known is None or self._size(cell) < self._size(known):
            return ""
        before = f"{known.optimization} ran out of memory on {known.workload}"
        if known.workload == cell.workload:
            return f"{NOT_TRIED} again: {before}"
        return f"{NOT_TRIED}: {before}, which is smaller ({self._fields[0]} {self._size(known):g})"

    def _kind(self, cell: Cell) -> str:
        workload = cell.config["workload"]
        alike = {name: value for name, value in workload.items() if name not in self._fields}
        return digest([cell.optimization, cell.config.get("settings"), alike])

    def _size(self, cell: Cell) -> float:
        return float(cell.config["workload"][self._fields[0]])


NOT_TRIED = "not tried"
"""How the reason begins of a cell that a smaller one speaks for."""
