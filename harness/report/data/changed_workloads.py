"""Name a suite's workload by what a command changed in it: its title speaks of the unchanged one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.records import Record
from harness.report.language.spec import Spec

UNNAMED = ("source", "hf_config", "measurable", "simulated_device")
"""Fields that describe a workload, or how a value was obtained, which its origin mark shows."""


def with_changed_workloads(
    spec: Spec,
    records: Iterable[Record],
    shipped: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Any],
) -> Spec:
    """Return the report with the changed fields behind the names of workloads that differ from `shipped`.

    `shipped`: the fields that the suite's YAML gives each of its workloads; `defaults`: those of all others.
    """
    names = dict(spec.names.get("workload", {}))
    for record in records:
        workload = record.cell.workload
        if workload in shipped:
            fields = record.cell.config.get("workload", {})
            if changed := _changed(fields, {**defaults, **shipped[workload]}):
                names[workload] = f"{spec.name('workload', workload)} ({', '.join(changed)})"
    return spec._replace(names={**spec.names, "workload": names})


def _changed(fields: Mapping[str, Any], given: Mapping[str, Any]) -> list[str]:
    """Return each field that has another value than is given, with its value."""
    compared = [name for name in given if name in fields and name not in UNNAMED]
    return [_stated(name, fields[name]) for name in compared if not _same(fields[name], given[name])]


def _stated(name: str, value: Any) -> str:
    """Return `field=value`, or that a table of values was changed."""
    return f"{name} changed" if isinstance(value, dict) else f"{name}={_shown(value)}"


def _same(ours: Any, given: Any) -> bool:
    """Return whether a record's value is the YAML's; one that refers to other keys is not compared."""
    if isinstance(given, str) and not isinstance(ours, str):
        try:
            return given.startswith("${") or float(given) == ours  # PyYAML reads 1.0e9 as text
        except ValueError:
            return False
    return bool(given == ours) or (isinstance(given, str) and given.startswith("${"))


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
