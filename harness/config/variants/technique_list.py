"""The list `techniques=[...]` of a command: one more variant, which combines them.

Its grammar is that of an optimization's YAML, see `harness.config.variants.techniques`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, pairwise
from typing import Any

from harness.config.validation import ConfigError, shown
from harness.config.variants.techniques import Named, checked_techniques, declared

KEY = "techniques"
"""The key of the command line, and the module that its variant has in place of an optimization's."""


def combination(given: Any) -> Named:
    """Return (name, settings) of each technique of a command, by name: their order has no meaning.

    Raises ConfigError where `checked_techniques` does, where one is listed twice, where two of them do
    not combine. What one needs may come from a workload, so that is left to the cells.
    """
    techniques = sorted(checked_techniques(KEY, given), key=lambda pair: pair[0])
    for (one, _), (other, _) in pairwise(techniques):
        if one == other:
            raise ConfigError(f"{KEY}: {one} is listed twice; write {{{one}: {{setting: value}}}} once")
    refuse_conflicts(KEY, techniques)
    return tuple(techniques)


def refuse_conflicts(where: str, techniques: Iterable[tuple[str, Any]]) -> None:
    """Raise ConfigError where two techniques of a list do not combine."""
    for (one, _), (other, _) in combinations(techniques, 2):
        if one != other and (reason := _conflict(one, other) or _conflict(other, one)):
            raise ConfigError(f"{where}: {reason}")


def name_of(techniques: Named) -> str:
    """Return the name of a list's variant: `techniques.activation_checkpointing(mode=full)+fsdp2`."""
    return f"{KEY}.{'+'.join(name + _settings(values, '({})') for name, values in techniques)}"


def title_of(techniques: Named) -> str:
    """Return the title of a list's variant: `activation checkpointing (mode=full) + fsdp2`."""
    return " + ".join(name.replace("_", " ") + _settings(values, " ({})") for name, values in techniques)


def _settings(values: Mapping[str, Any], form: str) -> str:
    words = ",".join(
        f"{key}={value if isinstance(value, str) else shown(value)}" for key, value in values.items()
    )
    return form.format(words) if words else ""


def _conflict(one: str, other: str) -> str:
    """Return why `one` does not allow `other`; "" where it does."""
    role, reasons = declared()[one].role, declared()[one].excludes
    if role is not None and role == declared()[other].role:
        return f"{one} and {other} both decide {role}; choose one of them"
    return f"{one} does not combine with {other}: {reasons[other]}" if other in reasons else ""
