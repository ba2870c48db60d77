"""The list `techniques=[...]` of a command: one more variant, which combines them.

Its grammar is that of an optimization's YAML, see `harness.config.variants.techniques`. What excludes what is
read in the techniques' modules; nothing is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from harness.config.validation import ConfigError, shown
from harness.config.variants.techniques import (
    TECHNIQUES,
    Named,
    checked_techniques,
    file_of,
    literal,
    role_of,
)

KEY = "techniques"
"""The key of the command line, and the module that its variant has in place of an optimization's."""


def combination(given: Any, folder: Path = TECHNIQUES) -> Named:
    """Return (name, settings) of each technique of a command, by name: their order has no meaning.

    Raises ConfigError where `checked_techniques` does, where one is listed twice, where two of them do
    not combine, and where one is not built. What one needs may come from a workload, so that is left to the
    cells.
    """
    techniques = sorted(checked_techniques(KEY, given, folder), key=lambda pair: pair[0])
    for (one, _), (other, _) in pairwise(techniques):
        if one == other:
            raise ConfigError(f"{KEY}: {one} is listed twice; write {{{one}: {{setting: value}}}} once")
    refuse_conflicts(KEY, techniques, folder)
    for name, _ in techniques:
        if reason := literal(file_of(name, folder), "NOT_BUILT"):
            raise ConfigError(f"{KEY}.{name}: not built: {reason}")
    return tuple(techniques)


def refuse_conflicts(where: str, techniques: Iterable[tuple[str, Any]], folder: Path = TECHNIQUES) -> None:
    """Raise ConfigError where two techniques of a list do not combine."""
    for (one, _), (other, _) in combinations(techniques, 2):
        if one != other and (reason := _conflict(folder, one, other) or _conflict(folder, other, one)):
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


def _conflict(folder: Path, one: str, other: str) -> str:
    """Return why the module of `one` does not allow `other`; "" where it does."""
    role, same = (role_of(file_of(name, folder)) for name in (one, other))
    if role and role == same:
        decided = import_module("suites.training.roles").Role[role]
        return f"{one} and {other} both decide {decided}; choose one of them"
    reasons = literal(file_of(one, folder), "EXCLUDES") or {}
    return f"{one} does not combine with {other}: {reasons[other]}" if other in reasons else ""
