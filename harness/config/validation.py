"""Checks plain values against their declarations, so that a bad one is refused before anything runs.

A declaration is a mapping: `{type: int, at_least: 1}`, `{type: str, one_of: [a, b], default: a}`,
`{type: float, optional: true}`. A suite declares its workloads in a class of its package's workload.py, an
optimization its settings as the parameters of its function, or in the class `Settings` of its module. The
parent imports them, so their imports need no torch. The annotation of a field says what is allowed: int,
float, str, bool, dict, list or `Literal[...]`, each or None, numbers within the bounds of
`Annotated[int, Bounds(at_least=1)]`, read only where another field has the values of `OnlyWith`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import StrEnum
from functools import cache
from importlib import import_module
from inspect import signature
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from harness.bounds import BOUNDS, RELATIONS, Bounds, OnlyWith, field_and_factor

TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
    "dict": (dict,),
    "list": (list,),
}


class ConfigError(Exception):
    """A mistake of the user's, in one line that names the key and what is allowed."""


def unknown(what: str, name: str, allowed: Iterable[str]) -> ConfigError:
    """Return the error for a name that is none of `allowed`, with the nearest of them."""
    names = sorted(allowed)
    meant = nearest(name, names)
    hint = f"; did you mean {meant}?" if meant else ""
    return ConfigError(f"{what}: no such name{hint or ';'} allowed: {', '.join(names) or 'none'}")


def refuse_unknown(where: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Raise ConfigError for the first name that is none of `allowed`."""
    allowed = list(allowed)
    for name in names:
        if name not in allowed:
            raise unknown(f"{where}.{name}", name, allowed)


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the name that was probably meant.

    One that begins so, else one that the name begins with, as h200 for h200_141gb; else one that is similar.
    """
    names = sorted(allowed)
    likely = [one for one in names if name and one.startswith(name)]
    likely = likely or [one for one in names if name.startswith(f"{one}_")]
    near = difflib.get_close_matches(name, likely or names, n=1, cutoff=0.0 if likely else 0.6)
    return next(iter(near), None)


def shown(value: Any) -> str:
    """Return a value as a command line has it."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else repr(value)


def as_mapping(where: str, data: Any) -> Mapping[str, Any]:
    """Return `data`, which must be a mapping with text as its keys; raises ConfigError."""
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{where}: {data!r}; expected KEY: VALUE lines")
    return data


def refuse_doubles(where: str, names: Sequence[str]) -> None:
    """Raise ConfigError where a name is given twice."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}: {name!r} is given twice; each needs a name of its own")


NUMBERS = ("int", "float")

Fields = Mapping[str, Mapping[str, Any]]  # the declaration of each field


def check_declarations(where: str, declared: Fields) -> None:
    """Raise ConfigError where a bound is not of a number, or a rule names no other field."""
    numbers = [name for name, field in declared.items() if field.get("type") in NUMBERS]
    for name, field in declared.items():
        for rule in BOUNDS:
            if rule in field and name not in numbers:
                raise ConfigError(
                    f"{where}.{name}.{rule}={shown(field[rule])}: expected a number, for an int or a float"
                )
        for rule in RELATIONS.keys() & field.keys():
            other, others = field_and_factor(field[rule])[0], [one for one in numbers if one != name]
            if other not in others or name not in numbers:
                raise unknown(f"{where}.{name}.{rule}={field[rule]}", other, others)
        for other, values in field.get("only_with", {}).items():
            if "default" not in field:
                raise ConfigError(f"{where}.{name}: a field that is read only with {other} needs a default")
            if other not in declared.keys() - {name}:
                raise unknown(f"{where}.{name}.only_with={other}", other, declared.keys() - {name})
            for value in values:
                check_value(f"{where}.{name}.only_with.{other}", value, declared[other])


def check_fields(where: str, values: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return `values` with defaults filled in, whole numbers as floats where due; raises ConfigError."""
    refuse_unknown(where, values, fields)
    missing = [name for name, field in fields.items() if name not in values and "default" not in field]
    if len(missing) == 1:
        raise ConfigError(f"{where}.{missing[0]}: missing; expected {describe(fields[missing[0]])}")
    if missing:
        each = ", ".join(f"{name} ({describe(fields[name])})" for name in missing)
        raise ConfigError(f"{where}: missing fields: {each}")
    return {
        name: check_value(f"{where}.{name}", values.get(name, field.get("default")), field)
        for name, field in fields.items()
    }


def check_relations(where: str, values: Mapping[str, Any], fields: Fields) -> None:
    """Check fields whose declaration names another field, see `harness.bounds`; raises ConfigError."""
    for name, field in fields.items():
        for rule, (within, words) in RELATIONS.items():
            if rule not in field:
                continue
            other, factor = field_and_factor(field[rule])
            value, bound = values[name], values[other]
            if value is not None and bound is not None and not within(value, bound * factor):
                limit = f"{field[rule]} ({shown(bound * factor)})"
                raise ConfigError(f"{where}.{name}={shown(value)}: expected {words} {limit}")
        for other, allowed in field.get("only_with", {}).items():
            if values[name] != field["default"] and values[other] not in allowed:
                here, readers = shown(values[other]), ", ".join(map(shown, allowed))
                raise ConfigError(
                    f"{where}.{name}={shown(values[name])}: not read with {other}={here}, only with {readers}"
                )


def check_value(key: str, value: Any, field: Mapping[str, Any]) -> Any:
    """Return `value` as its field requires; raises ConfigError naming `key` and what is allowed."""
    if value is None:
        if field.get("optional") or ("default" in field and field["default"] is None):
            return None
        raise ConfigError(f"{key}: missing; expected {describe(field)}")
    kind = field.get("type")
    of_kind = not kind or (isinstance(value, TYPES[kind]) and (kind == "bool" or not isinstance(value, bool)))
    if (
        not of_kind
        or value != value
        or value in (float("inf"), float("-inf"))
        or ("one_of" in field and value not in field["one_of"])
        or not all(within(value, field[rule]) for rule, (within, _) in BOUNDS.items() if rule in field)
    ):
        raise ConfigError(f"{key}={shown(value)}: expected {describe(field)}")
    return float(value) if kind == "float" else value


def describe(field: Mapping[str, Any]) -> str:
    """Return what a field allows, in words."""
    words = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false"}
    text = words.get(field.get("type", ""), f"a {field['type']}" if "type" in field else "a value")
    if "one_of" in field:
        text = "one of " + ", ".join(map(str, field["one_of"]))
    bounds = [f"{called} {field[rule]}" for rule, (_, called) in BOUNDS.items() if rule in field]
    text = " ".join([text, " and ".join(bounds).replace("and of", "and")]).rstrip()
    return text + (" or null" if field.get("optional") else "")


def key_and_value(word: str) -> tuple[str, str | None]:
    """Return the key of a word and its value, which is None where the word has no `=`."""
    key, equals, value = word.partition("=")
    return key, value if equals else None


def by_key(words: Iterable[str]) -> Mapping[str, str]:
    """Return the values of the words KEY=VALUE; of a key that is given twice the last."""
    given = map(key_and_value, words)
    return {key: value for key, value in given if value is not None}


SEE = "docs/extend/adding-a-suite.md lists what a suite has"

PLAIN = tuple(kinds[0] for kinds in TYPES.values())


class Role(StrEnum):
    """What a technique may decide alone: of two techniques with one role a step has one."""

    ACTIVATIONS = "what becomes of activations"
    TENSOR_PARALLELISM = "how ranks share each layer"
    EXPERT_PARALLELISM = "how ranks share each layer's experts"
    CONTEXT_PARALLELISM = "how ranks share each sequence"
    PIPELINE_PARALLELISM = "how ranks share the layers among them"
    PARALLELISM = "how ranks share the model"


class DeclaredTechnique(NamedTuple):
    """What is known of a technique before any cell runs; suites/training/declared.py declares them."""

    level: int  # its place in the order in which techniques are applied
    settings: type  # a frozen dataclass with a default for each field
    role: Role | None
    excludes: Mapping[str, str]  # techniques that it does not combine with, with the reason
    needs: tuple[str, ...]  # techniques without which it means nothing
    no_dry_run: str  # why fake tensors cannot show it; "" where they can

    @property
    def about(self) -> str:
        """Return what it is, in a sentence."""
        return " ".join((self.settings.__doc__ or "").partition("\n\n")[0].split())


EXPECTED = "expected int, float, str, bool, dict[str, Any], list[Any] or Literal[...], each or None"


@cache
def declared_in(module: str, name: str) -> Fields:
    """Return the fields of a module's dataclass; raises ConfigError, one line that names the file."""
    file = f"{module.replace('.', '/')}.py"
    try:
        kind = getattr(import_module(module), name, None)
        if not isinstance(kind, type):
            raise ConfigError(f"class {name} is missing")
        return fields_of(kind)
    except SyntaxError as error:
        raise ConfigError(f"{file}:{error.lineno}: {error.msg}. {SEE}") from None
    except Exception as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}. {SEE}") from None


def parameters_of(function: Callable[..., Any]) -> Fields:
    """Return the parameters of a function after its first, as fields; raises ConfigError."""
    parameters = list(signature(function).parameters.values())[1:]
    annotated = SimpleNamespace(__annotations__={one.name: one.annotation for one in parameters})
    hints = get_type_hints(annotated, function.__globals__, include_extras=True)
    defaults = {one.name: MISSING if one.default is one.empty else one.default for one in parameters}
    return _declared(function.__name__, hints, defaults)


def fields_of(kind: type, any_type: bool = False) -> Fields:
    """Return the fields of a dataclass that can be set, in their order; raises ConfigError.

    `any_type`: a field whose type cannot be checked takes any value, instead of being refused.
    """
    if not is_dataclass(kind):
        raise ConfigError(f"class {kind.__name__} is no dataclass")
    hints = get_type_hints(kind, include_extras=True)
    for name, value in vars(kind).items():
        if isinstance(value, PLAIN) and name not in hints and not name.startswith("__"):
            raise ConfigError(f"{kind.__name__}.{name} has no annotation, so it is no field")
    defaults = {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(kind)
        if one.init
    }
    return _declared(kind.__name__, hints, defaults, any_type)


def _declared(
    owner: str, hints: Mapping[str, Any], defaults: Mapping[str, Any], any_type: bool = False
) -> Fields:
    """Return what fields allow; `defaults`: of each field, MISSING where it has none."""
    declared: dict[str, Mapping[str, Any]] = {}
    for name, default in defaults.items():
        hint, where = hints[name], f"{owner}.{name}"
        allowed = allowed_by(hint)
        if allowed.get("type", "str") not in TYPES:
            if not any_type:
                shown_type = hint.__name__ if isinstance(hint, type) and not get_args(hint) else hint
                raise ConfigError(f"{where}: {shown_type}; {EXPECTED}")
            allowed = {"optional": True}
        if default is not MISSING:
            allowed = {**allowed, "default": check_value(where, default, allowed)}
        declared[name] = allowed
    check_declarations(owner, declared)
    return declared


def allowed_by(hint: Any) -> Mapping[str, Any]:
    """Return what a type allows; its `type` is none of `TYPES` where values cannot be checked."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rules = dict(allowed_by(parts[0]))
        for one in parts[1:]:
            if isinstance(one, Bounds):
                rules |= {rule: bound for rule, bound in asdict(one).items() if bound is not None}
            elif isinstance(one, OnlyWith):
                rules["only_with"] = {one.field: list(one.values)}
        return rules
    if origin in (Union, UnionType) and NoneType in parts and len(parts) == 2:
        (other,) = (one for one in parts if one is not NoneType)
        return {**allowed_by(other), "optional": True}
    if origin is Literal:
        values = [one for one in parts if one is not None]
        types = {type(one).__name__ for one in values}
        optional = {"optional": True} if None in parts else {}
        return {**({"type": types.pop()} if len(types) == 1 else {}), **optional, "one_of": values}
    plain = dict if origin is Mapping else origin or hint
    if getattr(plain, "__name__", "") in TYPES and (not parts or parts[-1] is Any):
        return {"type": plain.__name__}
    return {"type": str(hint)}
