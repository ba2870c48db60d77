"""The workloads of a run: those of the suite that are asked for, or one from a file; every field checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.hf_config import workload_from_file
from harness.validation import ConfigError, check_fields, check_relations, shown, unknown


def workloads(
    suite: Mapping[str, Any], only: Sequence[str], device_memory_B: float
) -> dict[str, Mapping[str, Any]]:
    """Return the chosen workloads, each field checked; only one where a file names the model."""
    fields = suite["fields"]
    if suite["workload_from"] is not None:
        return from_file(suite, device_memory_B)
    chosen: dict[str, Any] = suite["workloads"]
    for name in only:
        if name not in chosen:
            raise unknown(f"workloads=[{name}]", name, chosen)
    picked: dict[str, Mapping[str, Any]] = {}
    for name in [n for n in chosen if not only or n in only or n in suite["reference_workloads"]]:
        where = f"suite.workloads.{name}"
        if not isinstance(chosen[name], dict):
            raise ConfigError(f"{where}={shown(chosen[name])}: expected the fields of a workload")
        picked[name] = check_fields(where, chosen[name], fields)
        check_relations(where, picked[name], fields)
    return picked


def slow_bf16_workloads(
    suite: Mapping[str, Any], picked: Mapping[str, Mapping[str, Any]]
) -> dict[str, Mapping[str, Any]]:
    """Return what replaces some of the workloads where bf16 products are slow, each field checked."""
    slow: dict[str, Mapping[str, Any]] = {}
    for name, changes in suite["slow_bf16_workloads"].items():
        where = f"suite.slow_bf16_workloads.{name}"
        if name not in suite["workloads"]:
            raise unknown(where, name, suite["workloads"])
        if name in picked:
            slow[name] = check_fields(where, {**picked[name], **changes}, suite["fields"])
            check_relations(where, slow[name], suite["fields"])
    return slow


def check_names(suite: Mapping[str, Any]) -> None:
    """Refuse names of workloads and fields that the suite does not have."""
    for name in suite["reference_workloads"]:
        if name not in suite["workloads"]:
            raise unknown(f"suite.reference_workloads=[{name}]", name, suite["workloads"])
    numbers = [name for name, field in suite["fields"].items() if field["type"] in ("int", "float")]
    for name in suite["size_fields"]:
        if name not in numbers:
            raise unknown(f"suite.size_fields=[{name}]", name, numbers)
    rounds = suite["fields"].get(suite["rounds_field"], {})
    if suite["rounds_field"] and not (
        suite["interleave"] and rounds.get("type") == "int" and rounds.get("at_least", 0) >= 2
    ):
        raise ConfigError(
            f"suite.rounds_field={suite['rounds_field']}: expected an integer field of at least 2, "
            "in a suite with interleave: true"
        )


def from_file(suite: Mapping[str, Any], device_memory_B: float) -> dict[str, Mapping[str, Any]]:
    """Return the workload that `suite.workload_from` describes, completed from `suite.hf_defaults`."""
    path = suite["workload_from"]
    try:
        name, shape = workload_from_file(Path(path))
    except ValueError as error:
        raise ConfigError(f"suite.workload_from: {error}") from None
    set_defaults = {k: v for k, v in suite["hf_defaults"].items() if v is not None}
    given = check_fields("suite.hf_defaults", set_defaults, {k: suite["fields"][k] for k in set_defaults})
    values = {**shape, **given, "device_memory_B": device_memory_B}
    values = check_fields("suite.hf_defaults", values, suite["fields"])
    free = {k: f for k, f in suite["fields"].items() if "multiple_of" not in f}  # a head's size is the file's
    check_relations("suite.hf_defaults", values, free)
    return {name: values}
