"""Folders of results as commands read and write them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.config.validation import ConfigError

if TYPE_CHECKING:
    from harness.records import Record


def results_folder(path: Path) -> Path:
    """Return a folder that has records; raises ConfigError."""
    from harness.sweep.store import RECORDS

    if not path.is_dir():
        raise ConfigError(f"{path}: {'not a folder' if path.exists() else 'no such folder'}")
    if not (path / RECORDS).is_file():
        raise ConfigError(f"{path}: no results folder, for it has no {RECORDS}")
    return path


def results_folders(source: Path) -> list[Path]:
    """Return the results folders in a folder that is none itself."""
    if (source / "plan.json").exists() or not source.is_dir():
        return []
    return sorted(path.parent for path in source.glob("*/plan.json"))


def planned(folder: Path, records: Iterable[Record]) -> list[Record]:
    """Return the records of a folder's last plan, in its order; all where it has no plan.

    Raises ConfigError where the plan cannot be read.
    """
    from harness.sweep.plan import PLAN, read_plan

    by_cell = {record.cell.id: record for record in records}
    if not (folder / PLAN).is_file():
        return list(by_cell.values())
    return [by_cell[cell] for cell in read_plan(folder).cells if cell in by_cell]


def write_text(path: Path, text: str) -> None:
    """Write a file that the user asked for; raises ConfigError."""
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
