"""Which variants are planned for which workloads: what cannot apply is left out of the plan, and counted.

A suite's YAML and an optimization's may have `applies_to`: alternatives, each a mapping from fields of a
workload to the values that they may have: one, a list, or of a number `{at_least: n, at_most: n}`, either or
both. `gpu: true` in one makes it an alternative for hosts with a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.config.validation import NUMBERS, ConfigError, check_value, unknown

GPU = "gpu"
"""Not a field of a workload: the host must have a GPU."""

Alternatives = tuple[Mapping[str, Container[Any]], ...]


@dataclass(frozen=True, slots=True)
class NumberRange:
    """All numbers from `at_least` to `at_most`."""

    at_least: float = -math.inf
    at_most: float = math.inf

    def __contains__(self, value: object) -> bool:
        """Return whether `value` is one of them; an optional field's null is not."""
        return isinstance(value, int | float) and self.at_least <= value <= self.at_most


def checked_alternatives(where: str, given: Any, fields: Mapping[str, Any]) -> Alternatives:
    """Return `applies_to` as a YAML has it, each value as a container; raises ConfigError."""
    alternatives = []
    for index, one in enumerate(given):
        place = f"{where}[{index}]"
        if not isinstance(one, Mapping) or not one:
            raise ConfigError(f"{place}={one!r}: expected fields of a workload with their values")
        alternatives.append(
            {name: _values(f"{place}.{name}", name, value, fields) for name, value in one.items()}
        )
    return tuple(alternatives)


def _values(where: str, name: str, value: Any, fields: Mapping[str, Any]) -> Container[Any]:
    values = tuple(value) if isinstance(value, list) else (value,)
    if name == GPU:
        if GPU in fields:
            raise ConfigError(
                f"{where}: here it is the host's GPU, so no field may be named {GPU}; rename it"
            )
        if values != (True,):
            raise ConfigError(f"{where}={value!r}: expected true")
        return values
    if name not in fields:
        raise unknown(where, name, [*fields, GPU])
    if isinstance(value, Mapping):
        ends = {"at_least", "at_most"}
        if not value or not ends.issuperset(value) or fields[name].get("type") not in NUMBERS:
            raise ConfigError(
                f"{where}={value!r}: expected a value, a list, or of a number {{at_least: n, at_most: n}}"
            )
        return NumberRange(
            **{end: check_value(f"{where}.{end}", n, {"type": "float"}) for end, n in value.items()}
        )
    return tuple(check_value(where, one, fields[name]) for one in values)


def applies(alternatives: Alternatives, workload: Mapping[str, Any], gpu: bool) -> bool:
    """Return whether a workload meets one of the alternatives; every workload does where there is none."""
    known = {**workload, GPU: gpu}
    return not alternatives or any(
        all(known[name] in values for name, values in one.items()) for one in alternatives
    )


def left_out(cells: Sequence[tuple[bool, bool]]) -> list[str]:
    """Return what is not planned, in sentences.

    `cells`: of each, whether its variant applies to its workload here, and whether it would with a GPU.
    """
    need_gpu = sum(with_gpu and not here for here, with_gpu in cells)
    never = sum(not with_gpu for _, with_gpu in cells)
    lines = []
    if need_gpu:
        lines.append(f"not planned: {_cells(need_gpu)} that need a GPU")
    if never:
        lines.append(f"not planned: {_cells(never)} to which the variant does not apply")
    return lines


def _cells(count: int) -> str:
    return f"{count} cell" + ("" if count == 1 else "s")
