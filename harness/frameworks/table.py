"""Frameworks and the tables of their keys: a table is read to fields of a Question, and written from them.

A framework is a YAML in conf/frameworks that has a `source`, and the module of the same name here, with
`settle` (what several keys decide together) and `parts_of` (its inverse). docs/extend/adding-a-framework.md
describes both.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from textwrap import shorten
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from harness.config.optimizations import CONF
from harness.question import Direction, KeyRead, ProgramName, Question

Flat = Mapping[str, Any]
"""A file's values by dotted key."""

Fields = dict[str, Any]
"""Values by field of Question or, with an underscore before it, by part of one."""

TABLES = CONF / "frameworks"

LEFT: Final = "not modelled"

CERTAIN = 1000
"""Keys that a word counts as which no other framework has."""

OFF = ("none", "None", "null", "disabled", "false", "off", "no", "never")
"""Words that switch a key off, next to nothing, false and 0."""

FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "": False}

DEFAULTS: Mapping[str, Any] = {
    one.name: one.default for one in msgspec.structs.fields(Question) if one.default is not msgspec.NODEFAULT
}
"""Those of Question's fields."""


class KeyRow(NamedTuple):
    """One key of a framework."""

    field: str  # of Question; with an underscore, a part of some that `settle` puts together
    means: str
    of: str  # the fields of Question that it decides
    default: Any = None  # the framework's own, as its file has it
    kind: str = "text"  # count, int, number, flag, text, any or optimizer
    values: Mapping[Any, Any] | None = None  # theirs, in lower case, to ours; any other value is refused
    words: Mapping[Any, Any] | None = None  # ours to theirs; an optimizer without one is named as ours
    written: bool = True


class Parts(dict[str, Any]):
    """A file's values by field and part, and what became of its keys."""

    def __init__(self, flat: Flat, name: str = "", beside: Path | None = None) -> None:
        super().__init__()
        self.beside = beside  # the folder in which the file lies
        self.flat = flat
        self.folder, _, self.name = name.rpartition("/")  # of the file
        self.left_out: list[KeyRead] = []
        self.assumed: dict[str, str] = {}
        self.missing: dict[str, str] = {}

    @property
    def fields(self) -> Fields:
        """Return the values of Question's own fields."""
        return {name: value for name, value in self.items() if not name.startswith("_")}

    def leave_out(
        self,
        key: str,
        value: Any,
        means: str,
        memory: Direction = "either",
        seconds: Direction = "either",
        **more: Any,
    ) -> None:
        """Note that a key's value is not modelled; None: no key says it, and `means` does in words.

        `more`: `field`, `least` and `most_B` of `KeyRead`.
        """
        read = {"key": key, "value": value, "means": means, "memory": memory, "seconds": seconds}
        self.left_out.append(KeyRead(status=LEFT, **read, **more))

    def assume(self, field: str, why: str) -> None:
        """Note that a field's value is in no key."""
        self.assumed[field] = why

    def miss(self, field: str, why: str) -> None:
        """Note that a field's value is in no key and cannot be assumed: the command must give it."""
        self.missing[field] = why


class Framework(NamedTuple):
    """A YAML in conf/frameworks, with the tables that it includes. One without a source is only included."""

    name: str
    keys: Mapping[str, KeyRow]
    matters: Mapping[str, KeyRead]  # by pattern of a key or of key=value; not at a value of `OFF`
    irrelevant: tuple[str, ...]  # patterns of keys
    renamed: Mapping[str, str]  # keys of other versions
    title: str = ""
    source: str = ""  # which version's code the table was read from
    program: ProgramName | None = None  # whose accounts answer; None: by what shares the model
    suffix: str = ".yaml"  # of the file that is written; "": a command line
    hub_names: bool = False  # models are named as on the Hub
    elsewhere: str = ""  # of `EXPRESSED`, what another file or the program says
    expresses: Mapping[str, Sequence[Any]] = {}  # by field, the only values that its file can say
    assumed: Mapping[str, str] = {}  # by field, why it is assumed where no key gives it
    own: str = ""  # patterns of keys, or of key=value, that only its files have
    needs: str = ""  # patterns of keys of which a file has at least one
    without: str = ""  # patterns of keys that none of its files has
    within: str = ""  # beginnings of keys that are left away, in this order
    certain: Sequence[str] = ()  # patterns of keys and of key=value: those of one line together decide alone
    weight: int = 1  # of each of its own keys

    @property
    def module(self) -> Any:
        """Return the module of the same name."""
        return importlib.import_module(f"harness.frameworks.{self.name}")

    def recognised(self, flat: Flat) -> int:
        """Return how many keys only this framework's files have; 0: it is none of them."""
        own = getattr(self.module, "recognised", None)
        return int(own(flat)) if own else self.counted(flat)

    def counted(self, flat: Flat) -> int:
        """Return how many keys are its own by the table alone, times their weight."""
        words = _words(flat, self.within.split())
        if any(all(_found(one, words) for one in line.split()) for line in self.certain):
            return CERTAIN
        needed = not self.needs or any(_found(one, words) for one in self.needs.split())
        if not needed or any(_found(one, words) for one in self.without.split()):
            return 0
        return self.weight * len({word for one in self.own.split() for word in _found(one, words)})


def _words(flat: Flat, within: Sequence[str]) -> tuple[set[str], set[str]]:
    """Return the keys of a file and their first sections, and its words as key=value."""
    names, pairs = set(), set()
    for key, value in flat.items():
        for beginning in within:
            key = key.removeprefix(beginning)
        key = key.lstrip("-").replace("-", "_")
        names |= {key, key.partition(".")[0]}
        of_key = value if isinstance(value, tuple | list | set) else [value]
        pairs |= {f"{key}={one}" for one in of_key if one is not None}
    return names, pairs


def _found(pattern: str, words: tuple[set[str], set[str]]) -> set[str]:
    return {word for word in words["=" in pattern] if fnmatchcase(word, pattern)}


@cache
def frameworks() -> Mapping[str, Framework]:
    """Return the frameworks by name, in the order in which equally well recognised ones are taken."""
    names = [path.stem for path in sorted(TABLES.glob("*.yaml")) if "source" in yaml_tree(path.stem)]
    return {name: table_of(name) for name in names}


def framework_named(name: str) -> Framework:
    """Return a framework; raises ValueError with the names there are."""
    known = frameworks()
    if name not in known:
        raise ValueError(f"format {name!r} is none of: {', '.join(known)}")
    return known[name]


@cache
def yaml_tree(name: str) -> Mapping[str, Any]:
    """Return the content of a YAML in conf/frameworks."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    tree: Mapping[str, Any] = yaml.load((TABLES / f"{name}.yaml").read_text(), loader)
    return tree


def models_of(name: str) -> list[str]:
    """Return a framework's names of published shapes, each after its family's."""
    models: Mapping[str, str] = yaml_tree(name)["models"]
    return [f"{family}/{one}" for family, names in models.items() for one in names.split()]


@cache
def table_of(name: str) -> Framework:
    """Return a YAML's table; its own rows come before those of the tables that it includes."""
    tree = yaml_tree(name)
    keys = {key: _row(row) for key, row in tree.get("keys", {}).items()}
    matters = {
        pattern: KeyRead(key=pattern, status=LEFT, **{"memory": "either", "seconds": "either", **row})
        for patterns, row in tree.get("matters", {}).items()
        for pattern in patterns.split()
    }
    irrelevant, renamed = tree.get("irrelevant", "").split(), tree.get("renamed", {})
    expresses: Mapping[str, Sequence[Any]] = tree.get("expresses", {})
    for include in tree.get("include", ()):
        other, prefix, fields = table_of(include["table"]), include.get("prefix", ""), include.get("fields")
        only = include.get("only", "*").split()
        for key, row in other.keys.items():
            if not matches(key, only):
                continue
            included = row._replace(field=f"{fields}{row.field.lstrip('_')}") if fields else row
            keys.setdefault(f"{prefix}{key}", included)
        matters = {f"{prefix}{key}": one for key, one in other.matters.items()} | matters
        irrelevant += [f"{prefix}{pattern}" for pattern in other.irrelevant]
        names = {f"{prefix}{old}": f"{prefix}{new}" for old, new in other.renamed.items()}
        renamed = {old: new for old, new in names.items() if old not in keys and new in keys} | renamed
        expresses = expresses if prefix else {**other.expresses, **expresses}
    plain = ("title", "source", "program", "suffix", "hub_names", "elsewhere", "assumed")
    others = {field: tree[field] for field in plain if field in tree} | tree.get("recognised", {})
    return Framework(name, keys, matters, tuple(irrelevant), renamed, expresses=expresses, **others)


def _row(row: Mapping[str, Any]) -> KeyRow:
    values = {
        theirs: tuple(ours) if isinstance(ours, list) else ours
        for theirs, ours in row.get("values", {}).items()
    }
    words = {
        ours: next(theirs for theirs, other in values.items() if other == ours) for ours in values.values()
    }
    lower = {_lower(theirs): ours for theirs, ours in values.items()}
    given = {"of": row["field"].lstrip("_"), **row, "values": lower or None}
    given["words"] = row.get("words", words) or None
    return KeyRow(**given)


def _lower(value: Any) -> Any:
    return value.strip().lower() if isinstance(value, str) else value


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
        for name in path:
            at = at.setdefault(name, {})
        at[last] = value
    return tree


def matches(key: str, patterns: Iterable[str]) -> str | None:
    """Return the longest pattern that a key matches: the one that says most of it."""
    return max((one for one in patterns if fnmatchcase(key, one)), key=len, default=None)


def kind_of(flat: Flat, kinds: Mapping[str, str]) -> tuple[str, str, Any] | None:
    """Return the first kind with a pattern that a key, or key=value, matches; with the key and the value."""
    for kind, patterns in kinds.items():
        for key, value in flat.items():
            if matches(key, patterns.split()) or matches(f"{key}={value}", patterns.split()):
                return kind, key, value
    return None


LONGEST = 300
"""Characters of a refusal, with the file's path."""


def refusal(path: object, reason: str) -> str:
    """Return one line with a file's path and the whole reason, for which the path's beginning is left out."""
    name = Path(str(path))
    whole = f"{path}: {reason}"
    line = whole if len(whole) <= LONGEST else f"{name.parent.name}/{name.name}: {reason}"
    return line if len(line) <= LONGEST else shorten(line, LONGEST, placeholder=" ...")


def is_off(value: Any) -> bool:
    """Return whether a value switches its key off."""
    return not value or (isinstance(value, str) and value in OFF)


def number_of(key: str, value: Any, kind: str) -> Any:
    """Return a value of the kind that a key takes; raises ValueError with one line."""
    if isinstance(value, str) and value.strip().startswith("$"):
        raise ValueError(
            f"{key} is the variable {value.strip()}, which the file does not set; give its value there"
        )
    if isinstance(value, str):
        with suppress(ValueError):
            value = (float if kind == "number" else int)(value.replace("_", ""))
    if isinstance(value, float) and kind != "number" and value.is_integer():
        value = int(value)
    right = isinstance(value, int | float if kind == "number" else int) and not isinstance(value, bool)
    if not right or (kind == "count" and value < 1):
        allowed = {"count": "a whole number of at least 1", "int": "a whole number"}.get(kind, "a number")
        raise ValueError(f"{key} is {value!r}; it must be {allowed}")
    return value


def flag_of(key: str, value: Any) -> bool:
    """Return a value as true or false; raises ValueError with one line."""
    word = "" if value is None else str(value).strip().lower()
    if word not in FLAGS:
        raise ValueError(f"{key} is {value!r}; it must be true or false")
    return FLAGS[word]


def ours(key: str, row: KeyRow, value: Any) -> Any:
    """Return a framework's value as ours; None stays None. Raises ValueError with one line."""
    if value is None:
        return None
    if row.kind == "flag":
        value = flag_of(key, value)
    if row.values is not None:
        theirs = _lower(value)
        if not isinstance(theirs, list | dict) and theirs in row.values:
            return row.values[theirs]
        raise ValueError(f"{key} is {value!r}; known: {', '.join(map(str, row.values))}"[:300])
    if row.kind in ("count", "int", "number"):
        return number_of(key, value, row.kind)
    if row.kind == "text" and not isinstance(value, str):
        if isinstance(value, list | dict):
            raise ValueError(f"{key} is {value!r}; it must be a word"[:300])
        return str(value)
    return value


def theirs(key: str, row: KeyRow, value: Any) -> Any:
    """Return our value as a framework's; raises ValueError with one line."""
    if row.kind == "optimizer":
        return (row.words or {}).get(value, value)
    if row.words is None:
        return list(value) if isinstance(value, tuple) else value
    if value not in row.words:
        known = ", ".join(map(str, row.words))
        raise ValueError(f"{key} has no value for {row.of} {value}; it has {known}"[:300])
    return row.words[value]
