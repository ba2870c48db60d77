"""Frameworks and the tables of their keys: a table is read to fields of a Question, and written from them.

A framework is a YAML in conf/frameworks that has a `source`, and the module of the same name here, with
`settle` (what several keys decide together) and `parts_of` (its inverse). docs/extend/adding-a-framework.md
describes both.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
import yaml

from harness.config.variants.optimizations import CONF
from harness.question import Direction, FieldOrigin, KeyRead, ProgramName, Question, question_of

Flat = Mapping[str, Any]
"""A file's values by dotted key."""

Fields = dict[str, Any]
"""Values by field of Question or, with an underscore before it, by part of one."""

TABLES = CONF / "frameworks"

LEFT: Final = "not modelled"

OFF = (None, False, 0, 0.0, "", "none", "None", "null", "disabled", "false", "off", "no", "never")
"""Values that switch a key off."""

DEFAULTS: Mapping[str, Any] = {
    one.name: one.default for one in msgspec.structs.fields(Question) if one.default is not msgspec.NODEFAULT
}
"""Those of Question's fields."""

EXPRESSED = (
    *("tp", "pp", "cp", "ep", "virtual_stages", "zero", "replicas", "shard_size"),
    *("precision", "states", "optimizer", "offload", "adapters"),
)
"""Fields that a file must have a key for where they differ from the default; else it is of another run."""


ALWAYS = ("micro_batch_size", "seq_len")
"""Fields that are written where they are a default, too."""


class KeyRow(NamedTuple):
    """One key of a framework."""

    field: str  # of Question; with an underscore, a part of some that `settle` puts together
    means: str
    of: str  # the fields of Question that it decides
    default: Any = None  # the framework's own, as its file has it
    kind: str = "text"  # count, int, number, flag, text or any
    values: Mapping[Any, Any] | None = None  # theirs, in lower case, to ours; any other value is refused
    words: Mapping[Any, Any] | None = None  # ours to theirs
    written: bool = True


class Parts(dict[str, Any]):
    """A file's values by field and part, and what became of its keys."""

    def __init__(self, flat: Flat, name: str = "") -> None:
        super().__init__()
        self.flat = flat
        self.name = name  # of the file
        self.left_out: list[KeyRead] = []
        self.assumed: dict[str, FieldOrigin] = {}

    @property
    def fields(self) -> Fields:
        """Return the values of Question's own fields."""
        return {name: value for name, value in self.items() if not name.startswith("_")}

    def leave_out(
        self, key: str, value: Any, means: str, memory: Direction = "either", seconds: Direction = "either"
    ) -> None:
        """Note that a key's value is not modelled."""
        self.left_out.append(
            KeyRead(key=key, value=value, status=LEFT, means=means, memory=memory, seconds=seconds)
        )

    def assume(self, field: str, why: str) -> None:
        """Note that a field's value is in no key."""
        self.assumed[field] = FieldOrigin("assumption", why)


class Framework(NamedTuple):
    """A YAML in conf/frameworks, with the tables that it includes. One without a source is only included."""

    name: str
    keys: Mapping[str, KeyRow]
    matters: Mapping[str, KeyRead]  # by pattern of a key or of key=value; not at a value of `OFF`
    irrelevant: tuple[str, ...]  # patterns of keys
    renamed: Mapping[str, str]  # keys of other versions
    title: str = ""
    source: str = ""  # which version's code the table was read from
    program: ProgramName | None = (
        None  # of the accounts of layouts and of seconds; None: by what shares the model
    )
    suffix: str = ".yaml"  # of the file that is written; "": a command line
    hub_names: bool = False  # models are named as on the Hub
    elsewhere: str = ""  # of `EXPRESSED`, what another file or the program says
    own: str = ""  # patterns of keys that only its files have
    needs: str = ""  # patterns of keys of which a file has at least one
    weight: int = 1  # of each of its own keys

    @property
    def module(self) -> Any:
        """Return the module of the same name."""
        return importlib.import_module(f"harness.frameworks.{self.name}")

    def recognised(self, flat: Flat) -> int:
        """Return how many keys only this framework's files have; 0: it is none of them."""
        if own := getattr(self.module, "recognised", None):
            return int(own(flat))
        names = {key.lstrip("-").replace("-", "_") for key in flat}
        return self.counted(names | {name.partition(".")[0] for name in names})

    def counted(self, keys: Iterable[str]) -> int:
        """Return how many keys are among its own, times their weight; 0 where those it needs are missing."""
        names, own, needs = list(keys), self.own.split(), self.needs.split()
        if needs and not any(matches(name, needs) for name in names):
            return 0
        return self.weight * sum(matches(name, own) is not None for name in names)


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


def models_of(name: str) -> Mapping[str, list[str]]:
    """Return a framework's names of published shapes, by family."""
    return {family: names.split() for family, names in yaml_tree(name)["models"].items()}


@cache
def table_of(name: str) -> Framework:
    """Return a YAML's table; its own rows come before those of the tables that it includes."""
    tree = yaml_tree(name)
    keys = {key: _row(row) for key, row in tree.get("keys", {}).items()}
    matters = {
        pattern: KeyRead(key=pattern, status=LEFT, **row)
        for patterns, row in tree.get("matters", {}).items()
        for pattern in patterns.split()
    }
    irrelevant, renamed = tree.get("irrelevant", "").split(), tree.get("renamed", {})
    for include in tree.get("include", ()):
        other, prefix, fields = table_of(include["table"]), include.get("prefix", ""), include.get("fields")
        for key, row in other.keys.items():
            included = row._replace(field=f"{fields}{row.field.lstrip('_')}") if fields else row
            keys.setdefault(f"{prefix}{key}", included)
        matters = {f"{prefix}{key}": one for key, one in other.matters.items()} | matters
        irrelevant += [f"{prefix}{pattern}" for pattern in other.irrelevant]
        renamed = {f"{prefix}{old}": f"{prefix}{new}" for old, new in other.renamed.items()} | renamed
    plain = ("title", "source", "program", "suffix", "hub_names", "elsewhere")
    others = {field: tree[field] for field in plain if field in tree} | tree.get("recognised", {})
    return Framework(name, keys, matters, tuple(irrelevant), renamed, **others)


def _row(row: Mapping[str, Any]) -> KeyRow:
    values = {
        theirs: tuple(ours) if isinstance(ours, list) else ours
        for theirs, ours in row.get("values", {}).items()
    }
    words = {
        ours: next(theirs for theirs, other in values.items() if other == ours) for ours in values.values()
    }
    lower = {_lower(theirs): ours for theirs, ours in values.items()}
    given = {"of": row["field"].lstrip("_"), **row, "values": lower or None, "words": words or None}
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
    if isinstance(value, str):
        text = value.replace("_", "").strip()
        try:
            value = float(text) if kind == "number" else int(text)
        except ValueError:
            value = text
    if isinstance(value, float) and kind != "number" and value.is_integer():
        value = int(value)
    right = isinstance(value, int | float if kind == "number" else int) and not isinstance(value, bool)
    if not right or (kind == "count" and value < 1):
        allowed = {"count": "a whole number of at least 1", "int": "a whole number"}.get(kind, "a number")
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
    if row.words is None:
        return list(value) if isinstance(value, tuple) else value
    if value not in row.words:
        known = ", ".join(map(str, row.words))
        raise ValueError(f"{key} has no value for {row.of} {value}; it has {known}"[:300])
    return row.words[value]


def current_names(flat: Flat, renamed_keys: Mapping[str, str]) -> tuple[dict[str, Any], list[KeyRead]]:
    """Return the values by this version's keys, and the keys that other versions name otherwise."""
    values: dict[str, Any] = {}
    renamed = []
    for key, value in flat.items():
        new = renamed_keys.get(key, key)
        if new != key and value is None:
            continue
        if new != key and flat.get(new) is not None and flat[new] != value:
            raise ValueError(f"{key} and {new} are both given; one is the other's name in another version")
        if new != key:
            means = f"another version's name of {new}"
            renamed.append(KeyRead(key=key, value=value, status="understood", field=new, means=means))
        values[new] = value
    return values, renamed


def read_values(flat: Flat, framework: Framework, name: str = "") -> Question:
    """Return the question that the values of a file ask, `name` its own; raises ValueError with one line."""
    prepared = getattr(framework.module, "prepared", dict)
    values, keys = current_names(prepared(flat), framework.renamed)
    parts = Parts(values, name)
    given: list[tuple[str, KeyRow]] = []
    for key, row in framework.keys.items():
        value = values.get(key)
        if key.startswith("launcher.") and isinstance(value, str) and value.startswith("$"):
            parts.leave_out(key, value, "known when the script runs; devices= gives it", "none", "none")
            value = None
        automatic = value == "auto" and "auto" not in (row.values or ())
        decided = value is not None and not automatic
        our = ours(key, row, value if decided else row.default)
        if value is not None:
            keys.append(_read(key, value, row, "understood"))
        elif row.default is not None and row.field not in parts:
            keys.append(_read(key, row.default, row, "default"))
        if decided:
            given.append((key, row))
        if our is not None and (decided or row.field not in parts):
            parts[row.field] = our
    settled = {"program": framework.program, **parts.fields, **framework.module.settle(parts)}
    keys += [_other(key, value, framework) for key, value in values.items() if key not in framework.keys]
    left_out = {one.key for one in parts.left_out}
    return question_of(
        format=framework.name,
        framework=framework.source,
        keys=(*(one for one in keys if one.key not in left_out), *parts.left_out),
        origins={
            **{
                field: _origin(field, given, framework)
                for field, value in settled.items()
                if value is not None
            },
            **parts.assumed,
        },
        **settled,
    )


def _read(key: str, value: Any, row: KeyRow, status: Any) -> KeyRead:
    return KeyRead(key=key, value=value, status=status, field=row.of, means=row.means)


def _origin(field: str, given: Sequence[tuple[str, KeyRow]], framework: Framework) -> FieldOrigin:
    """Return where a field comes from: the keys of the file that decide it, three at most, or the default."""
    keys = [key for key, row in given if field in row.of.split()]
    if keys:
        return FieldOrigin("key", ", ".join(keys[:3]))
    return FieldOrigin("default", framework.source)


def _other(key: str, value: Any, framework: Framework) -> KeyRead:
    """Return what becomes of a key that has no row: it changes nothing, is not modelled, or not known."""
    pattern = matches(f"{key}={value}", framework.matters) or matches(key, framework.matters)
    harmless = matches(key, framework.irrelevant)
    if is_off(value) or (harmless and len(harmless) >= len(pattern or "")):
        return KeyRead(key=key, value=value, status="irrelevant")
    if pattern:
        return msgspec.structs.replace(framework.matters[pattern], key=key, value=value)
    means = f"no key of {framework.source}"
    return KeyRead(key=key, value=value, status=LEFT, means=means)  # in which direction is not known


def written_values(question: Question, framework: Framework) -> Flat:
    """Return a framework's keys of a question; raises ValueError for what they cannot express.

    A key is left out where its value is the framework's default and Question's.
    """
    rows = framework.keys
    decided = {field for row in rows.values() if row.written for field in row.of.split()}
    for field in EXPRESSED:
        value = getattr(question, field)
        if value != DEFAULTS[field] and field not in decided and field not in framework.elsewhere.split():
            raise ValueError(f"{framework.title} has no key for {field} {value}"[:300])
    parts = {field: getattr(question, field) for field in DEFAULTS}
    parts |= framework.module.parts_of(question)
    flat: dict[str, Any] = {}
    written = set()
    for key, row in rows.items():
        value = parts.get(row.field)
        if not row.written or row.field in written or value is None:
            continue
        written.add(row.field)
        usual = value == DEFAULTS.get(row.field) and row.field not in ALWAYS
        if usual and (value == ours(key, row, row.default) or (row.default is None and is_off(value))):
            continue
        flat[key] = theirs(key, row, value)
    spelled: Callable[[Flat], Flat] = getattr(framework.module, "spelled", dict)
    return spelled(flat)
