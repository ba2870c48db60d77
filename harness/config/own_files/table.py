"""Tables of a framework's keys, and the one way in which they are applied to a file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, NamedTuple, Protocol

import yaml

from harness.config.code_fingerprint import ROOT
from harness.config.own_files.formats.words import DTYPES
from harness.config.own_files.setup import FilledIn, NotUnderstood, OwnSetup, Understood

Flat = Mapping[str, Any]
"""A file's values by dotted key."""

Fields = dict[str, Any]
"""Values by field of OwnSetup; what begins with an underscore is for the format's own `settle`."""

OFF = (None, False, 0, 0.0, "", "none", "None", "null", "disabled", "false", "off", "no", "never")


class KeyRow(NamedTuple):
    """One key of a framework: its field here and what it means."""

    field: str
    means: str
    default: Any = None  # the framework's own
    kind: str = "text"  # count, int, number, flag, text or any
    values: Mapping[Any, Any] | None = None  # theirs to ours; any other value is refused


class KeyTable(NamedTuple):
    """A framework's keys: conf/own_files/<format>.yaml with the tables that it includes."""

    keys: Mapping[str, KeyRow]
    matters: Mapping[str, str]  # pattern of a key: what it changes; at a value of OFF it changes nothing
    irrelevant: tuple[str, ...]  # patterns of keys
    renamed: Mapping[str, str]  # keys of other versions


TABLES = ROOT / "conf" / "own_files"


@cache
def table_of(name: str) -> KeyTable:
    """Return a framework's table; its own rows come before those of the tables that it includes."""
    tree = yaml.safe_load((TABLES / f"{name}.yaml").read_text())
    keys = {key: _row(row) for key, row in (tree["keys"] or {}).items()}
    matters, irrelevant = dict(tree.get("matters") or {}), (tree.get("irrelevant") or "").split()
    renamed = dict(tree.get("renamed") or {})
    for include in tree.get("include", ()):
        other, prefix = table_of(include["table"]), include.get("prefix", "")
        for key, row in other.keys.items():
            fields = include.get("fields")
            included = row._replace(field=f"{fields}{row.field.lstrip('_')}") if fields else row
            keys.setdefault(f"{prefix}{key}", included)
        matters |= {
            f"{prefix}{key}": why for key, why in other.matters.items() if f"{prefix}{key}" not in matters
        }
        irrelevant += [f"{prefix}{one}" for one in other.irrelevant]
        renamed = {f"{prefix}{old}": f"{prefix}{new}" for old, new in other.renamed.items()} | renamed
    return KeyTable(keys, matters, tuple(irrelevant), renamed)


def _row(row: Mapping[str, Any]) -> KeyRow:
    values = DTYPES if row.get("values") == "dtypes" else row.get("values")
    return KeyRow(row["field"], row["means"], row.get("default"), row.get("kind", "text"), values)


class Format(Protocol):
    """The module of a framework in `formats/`."""

    NAME: str
    TITLE: str
    SOURCE: str  # which version's code the table was read from

    @staticmethod
    def recognised(flat: Flat) -> int:
        """Return how many of the file's keys only this framework has; 0: it is none of its files."""
        ...

    @staticmethod
    def prepared(flat: Flat) -> Flat:
        """Return the file's values with one name for what the framework itself reads under several."""
        ...

    @staticmethod
    def settle(fields: Fields, flat: Flat) -> Fields:
        """Return fields of OwnSetup from the values of the table."""
        ...

    @staticmethod
    def written(setup: OwnSetup) -> Flat:
        """Return the framework's keys and values; raises ValueError for what it cannot express."""
        ...


def flattened(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted key; a list is a leaf, an empty mapping too."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flattened(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def nested(flat: Flat) -> dict[str, Any]:
    """Return a tree of mappings from dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        at: MutableMapping[str, Any] = tree
        *path, last = key.split(".")
        for one in path:
            at = at.setdefault(one, {})
        at[last] = value
    return tree


def matches(key: str, patterns: Iterable[str]) -> str | None:
    """Return the longest pattern that a key matches: the one that says most of it."""
    return max((one for one in patterns if fnmatchcase(key, one)), key=len, default=None)


def is_off(value: Any) -> bool:
    """Return whether a value switches its key off."""
    return (isinstance(value, list | dict) and not value) or (
        not isinstance(value, list | dict) and any(value is one or value == one for one in OFF)
    )


def number_of(key: str, value: Any, kind: str) -> Any:
    """Return a value of the kind that a key takes; raises ValueError with one line."""
    if isinstance(value, str) and value.strip().startswith("$"):
        raise ValueError(
            f"{key} is the variable {value.strip()}, which the file does not set; give its value there"
        )
    if isinstance(value, str) and kind in ("count", "int", "number"):
        text = value.replace("_", "").strip()
        try:
            value = float(text) if kind == "number" else int(text)
        except ValueError:
            value = text
    if isinstance(value, float) and kind in ("count", "int") and value.is_integer():
        value = int(value)
    right = isinstance(value, int | float if kind == "number" else int) and not isinstance(value, bool)
    if not right or (kind == "count" and value < 1):
        allowed = {"count": "a whole number of at least 1", "int": "a whole number", "number": "a number"}[
            kind
        ]
        raise ValueError(f"{key} is {value!r}; it must be {allowed}")
    return value


def flag_of(key: str, value: Any) -> bool:
    """Return a value as true or false; raises ValueError with one line."""
    if isinstance(value, str) and value.strip().lower() in ("true", "yes", "1", "false", "no", "0", ""):
        return value.strip().lower() in ("true", "yes", "1")
    if value is None or (isinstance(value, bool | int) and value in (0, 1)):
        return bool(value)
    raise ValueError(f"{key} is {value!r}; it must be true or false")


def ours(key: str, row: KeyRow, value: Any) -> Any:
    """Return a framework's value as ours; None stays None. Raises ValueError with one line."""
    if value is None:
        return None
    if row.values is not None:
        found = value.strip().lower() if isinstance(value, str) else value
        if not isinstance(found, list | dict) and found in row.values:
            return row.values[found]
        raise ValueError(f"{key} is {value!r}; known: {', '.join(map(str, row.values))}"[:300])
    if row.kind in ("count", "int", "number"):
        return number_of(key, value, row.kind)
    if row.kind == "flag":
        return flag_of(key, value)
    if row.kind == "text" and not isinstance(value, str):
        if isinstance(value, list | dict):
            raise ValueError(f"{key} is {value!r}; it must be a word"[:300])
        return str(value)
    return value


def current_names(flat: Flat, renamed_keys: Mapping[str, str]) -> tuple[dict[str, Any], list[Understood]]:
    """Return the values by this version's keys, and the keys that other versions name otherwise."""
    found: dict[str, Any] = {}
    renamed = []
    for key, value in flat.items():
        new = renamed_keys.get(key, key)
        if new != key and value is None:
            continue
        if new != key and flat.get(new) is not None and flat[new] != value:
            raise ValueError(f"{key} and {new} are both given; one is the other's name in another version")
        if new != key:
            renamed.append(Understood(key, value, new, f"another version's name of {new}"))
        found[new] = value
    return found, renamed


def understand(flat: Flat, format_: Format) -> OwnSetup:
    """Return the set-up that a file's values describe; raises ValueError with one line."""
    table = table_of(format_.NAME)
    values, understood = current_names(format_.prepared(flat), table.renamed)
    fields: Fields = {}
    defaults = []
    unclear: list[NotUnderstood] = []
    for key, row in table.keys.items():
        given = values.get(key)
        if key.startswith("launcher.") and isinstance(given, str) and given.startswith("$"):
            unclear.append(NotUnderstood(key, given, "known when the script runs; devices= gives it"))
            given = None
        automatic = given == "auto" and "auto" not in (row.values or ())
        value = ours(key, row, given if given is not None and not automatic else row.default)
        if given is not None:
            understood.append(Understood(key, given, row.field.lstrip("_"), row.means))
        elif row.default is not None and row.field not in fields:
            defaults.append(FilledIn(key, row.default, row.field.lstrip("_")))
        if value is not None and ((given is not None and not automatic) or row.field not in fields):
            fields[row.field] = value
    settled = format_.settle(fields, values)
    unclear += settled.pop("not_understood", ())
    irrelevant = []
    for key, value in values.items():
        if key in table.keys:
            continue
        pattern = matches(key, table.matters)
        harmless = matches(key, table.irrelevant)
        if is_off(value) or (harmless and len(harmless) >= len(pattern or "")):
            irrelevant.append(key)
        elif pattern is not None:
            unclear.append(NotUnderstood(key, value, table.matters[pattern]))
        else:
            unclear.append(NotUnderstood(key, value, f"no key of {format_.SOURCE}"))
    return OwnSetup(
        format=format_.NAME,
        framework=format_.SOURCE,
        understood=tuple(understood),
        not_understood=tuple(unclear),
        irrelevant=tuple(irrelevant),
        defaults=tuple(defaults),
        **settled,
    )
