"""Checks the techniques that an optimization's YAML or a command lists.

They are declared in suites/training/declared.py; the code of one is its module in
suites/training/techniques/<folder>, which needs torch. Any value is taken of a setting whose type cannot be
checked.

A list names each technique by `name`, by `name.value`, or by `{name: {setting: value}}`. The value of
`name.value` is that of the only setting which lists it among its choices, or of the first setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from harness.config.code_fingerprint import ROOT, module_of
from harness.config.declarations import DeclaredTechnique, fields_of
from harness.config.protocols import Function, refuse_incomplete
from harness.config.validation import ConfigError, Fields, check_relations, check_value, unknown
from harness.config.variants.other_words import meant_by

TECHNIQUE = {
    "contract": Function(("settings",)),
    "apply": Function(("step", "settings")),
    "applies_to": Function(("workload", "settings"), required=False),
    "unavailable": Function((), required=False),
}
"""The functions of a technique."""

SEE = "docs/extend/adding-a-technique.md lists what a technique has"

Named = tuple[tuple[str, Mapping[str, Any]], ...]
"""(name, settings) of each technique of a list."""


def declared() -> Mapping[str, DeclaredTechnique]:
    """Return the techniques by name."""
    found: Mapping[str, DeclaredTechnique] = import_module("suites.training.declared").TECHNIQUES
    return found


def checked_techniques(where: str, given: Any) -> Named:
    """Return (name, settings) of each technique listed; raises ConfigError."""
    if not isinstance(given, list):
        raise ConfigError(f"{where}={given!r}: expected a list of names, or of {{name: {{setting: value}}}}")
    techniques = []
    for one in given:
        name, settings = _named(where, one)
        name, _, value = name.partition(".")
        if name not in declared():
            if meant := meant_by(name):
                raise ConfigError(f"{where}.{name}: no such name; write {meant}")
            raise unknown(f"{where}.{name}", name, declared())
        allowed = settings_of(name)
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


def check_functions(name: str) -> None:
    """Import a technique; raise ConfigError, one line, where it lacks a function."""
    refuse_incomplete(import_module(module_of(file_of(name))), TECHNIQUE, SEE)


def names() -> list[str]:
    """Return the names of all techniques."""
    return sorted(declared())


def file_of(name: str) -> Path:
    """Return the module of a technique; raises KeyError where there is none."""
    return ROOT / "suites" / "training" / "techniques" / declared()[name].folder / f"{name}.py"


def settings_of(name: str) -> Fields:
    """Return each setting of a technique with its default and what it allows; raises ConfigError."""
    return _fields_of(declared()[name].settings)


@cache
def _fields_of(settings: type) -> Fields:
    return fields_of(settings, any_type=True)
