"""Reads the fields of a dataclass in its module's source; nothing is imported, so the parent starts fast.

A suite's `Workload` and a technique's `Settings` declare their fields once, so: the annotation says what is
allowed (int, float, str, bool, dict, list or `Literal[...]`, each or None, numbers within the bounds of
`Annotated[int, Bounds(at_least=1)]`, read only where another field has the values of `OnlyWith`), and the
default is a literal, a name that a module gives to one, or `field(default_factory=list)`. Annotations may be
names that a module gives to such ones, and base classes are read, too.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from harness.bounds import Bounds
from harness.config.code_fingerprint import ROOT, file_of, parsed, shown_path
from harness.config.protocols import SEE, definition, imported_from
from harness.config.validation import TYPES, ConfigError, Fields, check_declarations, check_value, unknown

TYPE_OF = {name: name for name in TYPES} | {"Mapping": "dict"}
"""The type that `harness.config.validation` checks, by the name in an annotation."""

FACTORIES = {"list": list, "dict": dict}

NO_FIELDS = ("ClassVar", "KW_ONLY")
"""Annotations that do not make a field."""

BOUNDS = [one.name for one in fields(Bounds)]


def workload_fields(suite: str, suites: Path = ROOT / "suites") -> Fields:
    """Return the fields of a suite's workloads; raises ConfigError naming the file of its class Workload."""
    try:
        return fields_of(suites / suite / "__init__.py", "Workload")
    except ConfigError as fault:
        raise ConfigError(f"{fault}. {SEE}") from None


def fields_of(file: Path, name: str, any_type: bool = False) -> Fields:
    """Return the fields of a dataclass in their order, those of its base classes first.

    With `any_type`, fields of types that cannot be checked may have any value; else they are refused. Raises
    ConfigError, one line that names the file.
    """
    found = dataclass_in(file, name)
    if isinstance(found, str):
        raise ConfigError(f"{shown_path(file)}: {found}")
    source, node = found
    return _fields_of(source, node, any_type)


def _fields_of(source: Path, node: ast.ClassDef, any_type: bool) -> Fields:
    declared: dict[str, Mapping[str, Any]] = {}
    kept: dict[str, Mapping[str, Any]] = {}  # defaults that a field of the same name has, too
    for base in reversed(node.bases):
        if ast.unparse(base) == "object":
            continue
        found = dataclass_in(source, ast.unparse(base), before=node)
        if isinstance(found, str):
            raise ConfigError(f"{shown_path(source)}: {node.name}: {found}")
        declared |= _fields_of(*found, any_type)
        if not _has_slots(found[1]):
            kept |= {n: {"default": one["default"]} for n, one in declared.items() if "default" in one}
    try:
        for one in node.body:
            own = _field(source, node.name, one, any_type)
            declared |= {name: {**kept.get(name, {}), **field} for name, field in own.items()}
        check_declarations(node.name, declared)
    except ConfigError as fault:
        raise ConfigError(f"{shown_path(source)}: {fault}") from None
    return declared


def dataclass_in(file: Path, name: str, before: ast.stmt | None = None) -> tuple[Path, ast.ClassDef] | str:
    """Return the dataclass that is `name` in a module, with its file; else what is wrong, in words.

    `name` may be `module.Class`. `before`: as for `definition`.
    """
    module, _, own = name.rpartition(".")
    source = _module(file, module) if module else file
    found = definition(source, own, before if source == file else None) if source else None
    if found is not None and isinstance(found[1], ast.ImportFrom):
        return f"class {name} is not of this project, so its fields cannot be read"
    if found is None or not isinstance(found[1], ast.ClassDef):
        return f"class {name} is missing"
    if not any("dataclass" in ast.unparse(one) for one in found[1].decorator_list):
        return f"class {name} is no dataclass"
    return found[0], found[1]


def _has_slots(node: ast.ClassDef) -> bool:
    """Return whether a dataclass has slots: then subclasses do not see its defaults as attributes."""
    words = [word for one in node.decorator_list if isinstance(one, ast.Call) for word in one.keywords]
    return any(word.arg == "slots" and ast.unparse(word.value) == "True" for word in words)


def _module(file: Path, name: str) -> Path | None:
    """Return the file of a module that another imports as `name`."""
    found = definition(file, name)
    if found is not None and isinstance(found[1], ast.ImportFrom):
        original = next(one.name for one in found[1].names if (one.asname or one.name) == name)
        return imported_from(found[0], found[1], original)
    aliases = [one for node in parsed(file).body if isinstance(node, ast.Import) for one in node.names]
    return next((file_of(one.name) for one in aliases if (one.asname or one.name) == name), None)


def _field(file: Path, owner: str, node: ast.stmt, any_type: bool) -> Fields:
    """Return the field, by name, that a statement of a class makes, if it does; raises ConfigError."""
    if isinstance(node, ast.Assign):
        raise ConfigError(f"{owner}.{ast.unparse(node.targets[0])} has no annotation, so it is no field")
    if not isinstance(node, ast.AnnAssign) or _head(node.annotation) in NO_FIELDS:
        return {}
    name = ast.unparse(node.target)
    where = f"{owner}.{name}"
    given = _arguments(node.value)
    if "init" in given and _literal(file, where, given["init"]) is False:
        return {}
    allowed = _allowed(file, where, node.annotation)
    if allowed.get("type", "str") not in TYPES:
        if not any_type:
            raise ConfigError(
                f"{where}: {ast.unparse(node.annotation)}; expected int, float, str, bool, dict[str, Any], "
                "list[Any] or Literal[...], each or None"
            )
        allowed = {"optional": True}
    return {name: {**allowed, **_default(file, where, given, allowed)}}


def _arguments(value: ast.expr | None) -> Mapping[str, ast.expr]:
    """Return the arguments of `field(...)`; of a plain default, the default."""
    if isinstance(value, ast.Call) and _head(value.func) == "field":
        return {str(one.arg): one.value for one in value.keywords}
    return {} if value is None else {"default": value}


def _default(
    file: Path, where: str, given: Mapping[str, ast.expr], allowed: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return {"default": value}, nothing where there is none; raises ConfigError where it is not allowed."""
    if "default_factory" in given:
        factory = ast.unparse(given["default_factory"])
        if factory not in FACTORIES:
            raise ConfigError(f"{where}: default_factory={factory}; expected {' or '.join(FACTORIES)}")
        return {"default": FACTORIES[factory]()}
    if "default" not in given:
        return {}
    default = _literal(file, where, given["default"])
    if isinstance(default, list | dict):
        factory = type(default).__name__
        raise ConfigError(
            f"{where}={default}: expected field(default_factory={factory}), as dataclasses need"
        )
    return {"default": check_value(where, default, allowed)}


def _allowed(file: Path, where: str, annotation: ast.expr) -> Mapping[str, Any]:
    """Return what an annotation allows; raises ConfigError."""
    file, annotation = _followed(file, annotation)
    if isinstance(annotation, ast.BinOp) and ast.unparse(annotation.right) == "None":
        return {**_allowed(file, where, annotation.left), "optional": True}
    head = _head(annotation)
    if isinstance(annotation, ast.Subscript) and head == "Literal":
        values = [_literal(file, where, one) for one in _elements(annotation)]
        optional = {"optional": True} if None in values else {}
        values = [one for one in values if one is not None]
        types = {type(one).__name__ for one in values}
        return {**({"type": types.pop()} if len(types) == 1 else {}), **optional, "one_of": values}
    if isinstance(annotation, ast.Subscript) and head == "Annotated":
        plain, *further = _elements(annotation)
        stated = dict(_allowed(file, where, plain))
        for where_from, call in (_followed(file, one) for one in further):
            if isinstance(call, ast.Call) and (rules := RULES_OF.get(_head(call.func))):
                stated |= rules(where_from, where, call)
        return stated
    unchecked = isinstance(annotation, ast.Subscript) and ast.unparse(_elements(annotation)[-1]) != "Any"
    if head in TYPE_OF and not unchecked:
        return {"type": TYPE_OF[head]}
    return {"type": ast.unparse(annotation)}


def _bounds(file: Path, where: str, call: ast.Call) -> Mapping[str, Any]:
    for one in call.keywords:
        if one.arg not in BOUNDS:
            raise unknown(f"{where}.{one.arg}", str(one.arg), BOUNDS)
    if call.args:
        raise ConfigError(f"{where}: {ast.unparse(call)}; expected Bounds(at_least=NUMBER) and the like")
    return {str(one.arg): _literal(file, where, one.value) for one in call.keywords}


def _only_with(file: Path, where: str, call: ast.Call) -> Mapping[str, Any]:
    if call.keywords or len(call.args) != 2:
        raise ConfigError(f'{where}: {ast.unparse(call)}; expected OnlyWith("FIELD", (VALUE, ...))')
    name, values = (_literal(file, where, one) for one in call.args)
    return {"only_with": {name: list(values)}}


RULES_OF = {"Bounds": _bounds, "OnlyWith": _only_with}
"""Reads what an annotation has besides the type, by the name of its class."""


def _literal(file: Path, where: str, node: ast.expr) -> Any:
    """Return the value of a literal, or of a name that a module gives to one; raises ConfigError."""
    try:
        return ast.literal_eval(_followed(file, node)[1])
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: {ast.unparse(node)} is no literal") from None


def _followed(file: Path, node: ast.expr) -> tuple[Path, ast.expr]:
    """Return the value of a name of the module, with the value's file; any other expression as it is."""
    sought = set()
    while isinstance(node, ast.Name) and (file, node.id) not in sought:
        sought.add((file, node.id))
        found = definition(file, node.id)
        if not found or not isinstance(found[1], ast.Assign | ast.AnnAssign) or found[1].value is None:
            break
        file, node = found[0], found[1].value
    return file, node


def _head(node: ast.expr) -> str:
    """Return the name before the brackets of an expression, without its module."""
    return ast.unparse(node.value if isinstance(node, ast.Subscript) else node).rpartition(".")[2]


def _elements(node: ast.Subscript) -> list[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
