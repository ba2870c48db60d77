"""Checks plain values against their declarations, so that a bad one is refused before anything runs.

A declaration is a mapping: `{type: int, at_least: 1}`, `{type: str, one_of: [a, b], default: a}`,
`{type: float, optional: true}`. `harness.config.declarations` makes them of the classes of workloads and
settings.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.bounds import BOUNDS, RELATIONS, field_and_factor

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

Fields = Mapping[str, Mapping[str, Any]]
"""The declaration of each field."""

RULES = ("type", "default", "optional", "one_of", *BOUNDS, *RELATIONS, "only_with", "doc")
"""What the declaration of a field may state."""


def check_declarations(where: str, declared: Mapping[str, Any]) -> None:
    """Raise ConfigError where a field's declaration states something unknown, or an unknown type."""
    for name, field in declared.items():
        as_mapping(f"{where}.{name}", field)
    numbers = [name for name, field in declared.items() if field.get("type") in NUMBERS]

    def others(name: str) -> list[str]:
        return [one for one in numbers if one != name]

    for name, field in declared.items():
        for rule in field:
            if rule not in RULES:
                raise unknown(f"{where}.{name}.{rule}", str(rule), RULES)
        kind = str(field.get("type", "str"))
        if kind not in TYPES:
            raise unknown(f"{where}.{name}.type={kind}", kind, TYPES)
        for rule in BOUNDS:
            if rule in field and (not isinstance(field[rule], int | float) or name not in numbers):
                raise ConfigError(
                    f"{where}.{name}.{rule}={shown(field[rule])}: expected a number, for an int or a float"
                )
        if not isinstance(field.get("one_of", []), list):
            raise ConfigError(f"{where}.{name}.one_of={shown(field['one_of'])}: expected a list")
        for rule in RELATIONS:
            if rule not in field:
                continue
            other, _ = field_and_factor(str(field[rule]))
            if other not in others(name) or name not in numbers:
                raise unknown(f"{where}.{name}.{rule}={field[rule]}", other, others(name))
        for other, values in field.get("only_with", {}).items():
            if "default" not in field:
                raise ConfigError(f"{where}.{name}: a field that is read only with {other} needs a default")
            if other not in declared.keys() - {name}:
                raise unknown(f"{where}.{name}.only_with={other}", other, declared.keys() - {name})
            for value in values:
                check_value(f"{where}.{name}.only_with.{other}", value, declared[other])


def check_fields(where: str, values: Mapping[str, Any], fields: Fields) -> dict[str, Any]:
    """Return `values` with defaults filled in, whole numbers as floats where due; raises ConfigError."""
    for name in values:
        if name not in fields:
            raise unknown(f"{where}.{name}", name, fields)
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
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "bool")):
        raise ConfigError(f"{key}={shown(value)}: expected {describe(field)}")
    if value != value or value in (float("inf"), float("-inf")):
        raise ConfigError(f"{key}={shown(value)}: expected {describe(field)}")
    if "one_of" in field and value not in field["one_of"]:
        raise ConfigError(f"{key}={shown(value)}: expected {describe(field)}")
    if not all(within(value, field[rule]) for rule, (within, _) in BOUNDS.items() if rule in field):
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
