"""Checks the techniques that an optimization's YAML lists, by reading their modules; nothing is imported.

A technique is `suites/training/techniques/<kind>/<name>.py`; docs/extend/adding-a-technique.md lists what it
has. Its settings are the fields of its class `Settings`, see `harness.config.dataclass_fields`; of a type
that cannot be checked, any value is taken.

A list names each technique by `name`, by `name.value`, or by `{name: {setting: value}}`. The value of
`name.value` is that of the only setting which lists it among its choices, or of the first setting.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from harness.config.code_fingerprint import ROOT, shown_path
from harness.config.dataclass_fields import dataclass_in, fields_of
from harness.config.protocols import Function, faults, statement
from harness.config.validation import ConfigError, Fields, check_relations, check_value, unknown
from harness.config.variants.other_words import meant_by

TECHNIQUES = ROOT / "suites" / "training" / "techniques"

TECHNIQUE = {
    "contract": Function(("settings",)),
    "apply": Function(("step", "settings")),
    "applies_to": Function(("workload", "settings"), required=False),
    "unavailable": Function((), required=False),
}
"""The functions of a technique; it also has LEVEL and Settings."""


Named = tuple[tuple[str, Mapping[str, Any]], ...]
"""(name, settings) of each technique of a list."""


def checked_techniques(where: str, given: Any, folder: Path = TECHNIQUES) -> Named:
    """Return (name, settings) of each technique listed; raises ConfigError."""
    if not isinstance(given, list):
        raise ConfigError(f"{where}={given!r}: expected a list of names, or of {{name: {{setting: value}}}}")
    techniques = []
    for one in given:
        name, settings = _named(where, one)
        name, _, value = name.partition(".")
        if name not in names(folder):
            if meant := meant_by(name):
                raise ConfigError(f"{where}.{name}: no such name; write {meant}")
            raise unknown(f"{where}.{name}", name, built(folder))
        check_module(file_of(name, folder), folder)
        allowed = settings_of(file_of(name, folder))
        if value:
            settings = {**settings, **_setting(f"{where}.{name}", value, allowed)}
        checked = {}
        for key, value in settings.items():
            if key not in allowed:
                raise unknown(f"{where}.{name}.{key}", key, allowed)
            checked[key] = check_value(f"{where}.{name}.{key}", value, allowed[key])
        defaults = {key: field["default"] for key, field in allowed.items()}
        check_relations(f"{where}.{name}", defaults | checked, allowed)
        techniques.append((name, checked))
    return tuple(techniques)


def _setting(where: str, text: str, allowed: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return {setting: value} of `name.text`; raises ConfigError."""
    if not allowed:
        raise ConfigError(f"{where}.{text}: this technique has no settings")
    choices = [
        {key: value}
        for key, field in allowed.items()
        for value in field.get("one_of", ())
        if str(value) == text
    ]
    if len(choices) > 1:
        name = where.rpartition(".")[2]
        ways = " or ".join(f"{{{name}: {{{key}: {text}}}}}" for one in choices for key in one)
        raise ConfigError(f"{where}.{text}: several settings have this value; write {ways}")
    if choices:
        return choices[0]
    if text in allowed:
        name = where.rpartition(".")[2]
        value = "true" if allowed[text].get("type") == "bool" else "VALUE"
        raise ConfigError(f"{where}.{text}: is a setting; write {{{name}: {{{text}: {value}}}}}")
    first, field = next(iter(allowed.items()))
    if "one_of" in field:
        raise unknown(
            f"{where}.{text}", text, {str(v) for f in allowed.values() for v in f.get("one_of", ())}
        )
    try:
        return {first: yaml.safe_load(text)}
    except yaml.YAMLError:
        return {first: text}


def _named(where: str, one: Any) -> tuple[str, Mapping[str, Any]]:
    if isinstance(one, str):
        return one, {}
    if isinstance(one, Mapping) and len(one) == 1:
        ((name, settings),) = one.items()
        if settings is None or isinstance(settings, Mapping):
            return str(name), settings or {}
    raise ConfigError(f"{where}: {one!r}; expected a name, or {{name: {{setting: value}}}}")


@cache
def check_module(file: Path, folder: Path = TECHNIQUES) -> None:
    """Raise ConfigError, one line, where a technique's module lacks something."""
    missing = [] if statement(file, "LEVEL") else ["LEVEL is missing"]
    if isinstance(found := dataclass_in(file, "Settings"), str):
        missing.append(found)
    else:
        fields = fields_of(file, "Settings", any_type=True).items()
        missing += [f"Settings.{name} has no default" for name, field in fields if "default" not in field]
    missing += faults(file, TECHNIQUE)
    missing += [
        str(unknown(f"{listing}.{name}", name, names(folder)))
        for listing in ("EXCLUDES", "NEEDS")
        for name in literal(file, listing) or ()
        if name not in names(folder)
    ]
    if missing:
        raise ConfigError(
            f"{file.relative_to(folder.parents[2])}: {'; '.join(missing)}. docs/extend/adding-a-technique.md "
            "lists what a technique has"
        )


def names(folder: Path = TECHNIQUES) -> list[str]:
    """Return the names of all techniques."""
    return sorted(files(folder))


@cache
def files(folder: Path = TECHNIQUES) -> Mapping[str, Path]:
    """Return the module of each technique, by name: every module in the folder of a kind.

    Raises ConfigError where two have one name.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*/*.py")):
        other = found.setdefault(path.stem, path)
        if path.stem != "__init__" and other != path:
            raise ConfigError(f"{shown_path(other)}, {shown_path(path)}: two techniques of one name")
    return {name: path for name, path in found.items() if name != "__init__"}


def file_of(name: str, folder: Path = TECHNIQUES) -> Path:
    """Return the module of a technique; raises KeyError where there is none."""
    return files(folder)[name]


def built(folder: Path = TECHNIQUES) -> list[str]:
    """Return the names of the techniques that a step can have."""
    return [name for name in names(folder) if literal(file_of(name, folder), "NOT_BUILT") is None]


def literal(file: Path, name: str) -> Any:
    """Return the literal that a module assigns to `name`; None where it has none."""
    found = statement(file, name)
    if not isinstance(found, ast.Assign | ast.AnnAssign) or found.value is None:
        return None
    try:
        return ast.literal_eval(found.value)
    except ValueError:
        raise ConfigError(f"{shown_path(file)}: {name}={ast.unparse(found.value)} is no literal") from None


@cache
def settings_of(file: Path) -> Fields:
    """Return each setting of a technique with its default and what it allows."""
    return fields_of(file, "Settings", any_type=True)
