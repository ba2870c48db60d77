"""The list `techniques=[...]` of a command: one more variant, which combines them.

Its grammar is that of an optimization's YAML, see `harness.config.variants.techniques`. What excludes what is
read in the techniques' modules; nothing is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

from harness.config.code_fingerprint import ROOT
from harness.config.protocols import statement
from harness.config.validation import ConfigError, shown
from harness.config.variants.techniques import TECHNIQUES, Named, checked_techniques, file_of, literal

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


def suites_with_techniques(names: list[str], suites: Path = ROOT / "suites") -> list[str]:
    """Return the suites that train, and so take techniques."""
    return [name for name in names if statement(suites / name / "__init__.py", "apply_techniques")]


def _settings(values: Mapping[str, Any], form: str) -> str:
    words = ",".join(
        f"{key}={value if isinstance(value, str) else shown(value)}" for key, value in values.items()
    )
    return form.format(words) if words else ""


def _conflict(folder: Path, one: str, other: str) -> str:
    """Return why the module of `one` does not allow `other`; "" where it does."""
    files = file_of(one, folder), file_of(other, folder)
    role, same = (_value(file, "ROLE") for file in files)
    if role is not None and same is not None and _member(role) == _member(same):
        return f"{one} and {other} both decide {_words(files[0], role)}; choose one of them"
    reasons = literal(files[0], "EXCLUDES") or {}
    return f"{one} does not combine with {other}: {reasons[other]}" if other in reasons else ""


def _value(file: Path, name: str) -> ast.expr | None:
    """Return the expression that a module assigns to `name`; None where it has none."""
    found = statement(file, name)
    return found.value if isinstance(found, ast.Assign | ast.AnnAssign) else None


def _member(value: ast.expr) -> str:
    """Return the name of an enumeration's member, however it is imported."""
    return ast.unparse(value).rpartition(".")[2]


def _words(file: Path, role: ast.expr) -> str:
    """Return what a role means, as the class `Role` of the training layer has it."""
    *_, kind, member = ["", *ast.unparse(role).split(".")]
    found = statement(file, kind)
    body = found.body if isinstance(found, ast.ClassDef) else []
    meanings = {ast.unparse(one.targets[0]): one.value for one in body if isinstance(one, ast.Assign)}
    return str(ast.literal_eval(meanings[member])) if member in meanings else ast.unparse(role)
