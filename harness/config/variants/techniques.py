"""Checks the techniques that an optimization's YAML lists, by their modules' source: importing needs torch.

A technique is `suites/training/techniques/<kind>/<name>.py`; docs/extend/adding-a-technique.md lists what it
has. It declares LEVEL, ROLE and other constants, and its settings as the fields of its class `Settings`.
Annotations and defaults are evaluated, and mean what they mean in `harness.config.declarations`; any value is
taken where a type cannot be checked.

A list names each technique by `name`, by `name.value`, or by `{name: {setting: value}}`. The value of
`name.value` is that of the only setting which lists it among its choices, or of the first setting.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml

from harness.bounds import Bounds, OnlyWith, PositiveInt
from harness.config.code_fingerprint import ROOT, module_of, parsed, shown_path
from harness.config.declarations import allowed_by
from harness.config.protocols import Function, refuse_incomplete
from harness.config.validation import (
    TYPES,
    ConfigError,
    Fields,
    check_declarations,
    check_relations,
    check_value,
    unknown,
)
from harness.config.variants.other_words import meant_by

TECHNIQUES = ROOT / "suites" / "training" / "techniques"

TECHNIQUE = {
    "contract": Function(("settings",)),
    "apply": Function(("step", "settings")),
    "applies_to": Function(("workload", "settings"), required=False),
    "unavailable": Function((), required=False),
}
"""The functions of a technique; it also has LEVEL and Settings."""

NAMES = {
    "Annotated": Annotated, "Any": Any, "Literal": Literal, "Mapping": Mapping, "Bounds": Bounds,
    "OnlyWith": OnlyWith, "PositiveInt": PositiveInt,
}  # fmt: skip
"""What an annotation may name besides Python's own types and the module's constants."""

SEE = "docs/extend/adding-a-technique.md lists what a technique has"

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
    """Raise ConfigError, one line, where a technique's module does not declare what it should."""
    missing = [] if "LEVEL" in statements(file) else ["LEVEL is missing"]
    missing += [
        str(unknown(f"{listing}.{name}", name, names(folder)))
        for listing in ("EXCLUDES", "NEEDS")
        for name in literal(file, listing) or ()
        if name not in names(folder)
    ]
    if missing:
        raise ConfigError(f"{file.relative_to(folder.parents[2])}: {'; '.join(missing)}. {SEE}")
    settings_of(file)


def check_functions(name: str) -> None:
    """Import a technique; raise ConfigError, one line, where it lacks a function."""
    refuse_incomplete(import_module(module_of(file_of(name))), TECHNIQUE, SEE)


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


@cache
def statements(file: Path) -> Mapping[str, ast.stmt]:
    """Return the statements that give a module its names; raises ConfigError where it is not Python."""
    found: dict[str, ast.stmt] = {}
    for node in parsed(file).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign):
            found[ast.unparse(node.target)] = node
        elif isinstance(node, ast.Assign):
            found |= {ast.unparse(target): node for target in node.targets}
    return found


def assigned(file: Path, name: str) -> ast.expr | None:
    """Return the expression that a module assigns to `name`; None where it has none."""
    found = statements(file).get(name)
    return found.value if isinstance(found, ast.Assign | ast.AnnAssign) else None


def literal(file: Path, name: str) -> Any:
    """Return the literal that a module assigns to `name`; None where it has none."""
    value = assigned(file, name)
    if value is None:
        return None
    try:
        return ast.literal_eval(value)
    except ValueError:
        raise ConfigError(f"{shown_path(file)}: {name}={ast.unparse(value)} is no literal") from None


def role_of(file: Path) -> str:
    """Return the name of the `Role` of a technique; "" where it has none."""
    role = assigned(file, "ROLE")
    return "" if role is None else ast.unparse(role).rpartition(".")[2]


@cache
def settings_of(file: Path) -> Fields:
    """Return each setting of a technique with its default and what it allows; raises ConfigError."""
    kind = statements(file).get("Settings")
    if not isinstance(kind, ast.ClassDef):
        raise ConfigError(f"{shown_path(file)}: class Settings is missing")
    try:
        fields = {
            ast.unparse(node.target): _field(file, node)
            for node in kind.body
            if isinstance(node, ast.AnnAssign)
        }
        check_declarations("Settings", fields)
    except (ConfigError, TypeError) as error:
        raise ConfigError(f"{shown_path(file)}: {error}") from None
    return fields


def _field(file: Path, node: ast.AnnAssign) -> Mapping[str, Any]:
    """Return what a field allows; any value where its type cannot be checked."""
    try:
        allowed = allowed_by(_evaluated(file, node.annotation))
    except NameError:
        allowed = {"type": ast.unparse(node.annotation)}
    if allowed.get("type", "str") not in TYPES:
        allowed = {"optional": True}
    if node.value is None:
        raise ConfigError(f"Settings.{ast.unparse(node.target)} has no default")
    default = _evaluated(file, node.value)
    return {**allowed, "default": check_value(f"Settings.{ast.unparse(node.target)}", default, allowed)}


def _evaluated(file: Path, node: ast.expr) -> Any:
    """Return the value of an expression over `NAMES` and constants of the module."""
    used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} & statements(file).keys()
    constants = {name: literal(file, name) for name in used}
    return eval(compile(ast.Expression(node), str(file), "eval"), NAMES | constants)
