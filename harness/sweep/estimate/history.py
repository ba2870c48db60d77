"""Records of earlier runs to how long each cell of a suite took there, for the estimate before a sweep."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.config.validation import ConfigError
from harness.records import Cell, Record
from harness.sweep.environment import Environment
from harness.sweep.plan import read_plan
from harness.sweep.store import RECORDS, StoreError, read_records

logger = logging.getLogger(__name__)

RESULTS = Path("results")
"""Where runs are kept: in folders of any name, or one level below, as a preset's and the committed ones."""

KIND = ("cpu", "cores", "gpus")
"""What two hosts of one kind have in common; versions and commits differ from run to run."""


class Earlier(NamedTuple):
    """How one cell ended in an earlier run. `same_host`: on a host of this kind."""

    cell: Cell
    status: str
    duration_s: float
    timeout_s: float
    same_host: bool


def earlier_cells(suite: str, out: Path, environment: Environment) -> list[Earlier]:
    """Return every recorded cell of `suite` in `out` and in the folders of results/.

    Runs on hosts with other GPUs are left out, for they predict nothing here.
    """
    ours = json.loads(json.dumps(environment.to_dict()))
    return [cell for folder in folders_of(suite, out) for cell in _in_folder(folder, ours)]


def folders_of(suite: str, out: Path) -> list[Path]:
    """Return the folders that hold records of `suite`, `out` first, each once."""
    folders: dict[Path, Path] = {}
    for folder in [out, *sorted(RESULTS.glob("*")), *sorted(RESULTS.glob("*/*"))]:
        try:
            if (folder / RECORDS).is_file() and read_plan(folder)[0] == suite:
                folders.setdefault(folder.resolve(), folder)
        except ConfigError:
            continue
    return list(folders.values())


def _in_folder(folder: Path, ours: Mapping[str, Any]) -> Iterator[Earlier]:
    """Yield the cells of one folder; a folder of another version of the records has none to offer."""
    kinds: dict[str, bool | None] = {}
    try:
        records = read_records(folder)
    except StoreError as error:
        logger.info("%s: not used for the estimate: %s", folder, error)
        return
    for record in records:
        if record.environment not in kinds:
            kinds[record.environment] = _same_kind(folder, record, ours)
        same_host = kinds[record.environment]
        if same_host is not None:
            yield Earlier(record.cell, record.status, record.duration_s, record.limits.timeout_s, same_host)


def _same_kind(folder: Path, record: Record, ours: Mapping[str, Any]) -> bool | None:
    """Return whether the record is of a host of this kind; None where nothing can be learnt from it."""
    try:
        theirs = json.loads((folder / f"environment-{record.environment}.json").read_text())
        if theirs["gpus"] != ours["gpus"]:
            return None
        return all(theirs[name] == ours[name] for name in KIND)
    except (OSError, ValueError, LookupError, TypeError):
        return None
