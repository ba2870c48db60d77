"""Read a results folder for a comparison: its records and its hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.commands.results import planned, results_folder
from harness.config.validation import ConfigError
from harness.records import Record
from harness.sweep.store import RECORDS, StoreError, read_records

Environments = Mapping[str, Mapping[str, Any]]
"""Digest to what environment-<digest>.json describes."""


class ResultsFolder(NamedTuple):
    """The records of the last plan of one folder, and the environments that they name."""

    path: Path
    records: tuple[Record, ...]
    environments: Environments

    def machine(self, record: Record) -> str:
        """Return the processor, cores, memory and GPUs of a record's host in words."""
        environment = self.environments.get(record.environment)
        return machine(environment) if environment else f"unknown host {record.environment}".strip()


def machine(environment: Mapping[str, Any]) -> str:
    """Return `2 cores AMD EPYC, 24 GiB, no GPU`; memory in GiB, because what the kernel reserves varies."""
    names = [f"{gpu['name']} ({gpu['memory_B'] / 2**30:.0f} GiB)" for gpu in environment.get("gpus", ())]
    gpus = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "no GPU"
    memory_GiB = round(environment.get("memory_B", 0) / 2**30)
    ranks = f", {environment['ranks']}" if environment.get("ranks") else ""
    cores, cpu = environment.get("cores", "unknown"), environment.get("cpu", "unknown processor")
    return f"{cores} cores {cpu}, {memory_GiB} GiB, {gpus}{ranks}"


def read_folder(path: Path) -> ResultsFolder:
    """Return the results in `path`, which is not changed; raises ConfigError."""
    try:
        read = read_records(results_folder(path))
    except StoreError as error:
        raise ConfigError(str(error)) from None
    _refuse_malformed(path, read)
    records = tuple(planned(path, read))
    if not records:
        raise ConfigError(
            f"{path}: holds no record" + (" of its plan" if (path / "plan.json").exists() else "")
        )
    return ResultsFolder(path, records, _environments(path))


def _refuse_malformed(path: Path, records: Iterable[Record]) -> None:
    """Raise ConfigError where a record's parts are not of the kind that a comparison reads."""
    for record in records:
        samples = (value for one in record.measurements for value in one.samples)
        whole = isinstance(record.cell.config, dict) and isinstance(record.conditions, dict)
        if not (whole and all(isinstance(value, int | float) for value in samples)):
            raise ConfigError(f"{path / RECORDS}: the record of cell {record.cell.id} is malformed")


def _environments(path: Path) -> Environments:
    environments = {}
    for file in sorted(path.glob("environment-*.json")):
        try:
            environment = json.loads(file.read_text())
            machine(environment)
            dict(environment.get("versions", {}))
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ConfigError(f"{file}: not an environment: {error!r}") from None
        environments[file.stem.removeprefix("environment-")] = environment
    return environments
