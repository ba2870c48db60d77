"""What others published: rows of conf/published, and what sources say, of conf/sources.yaml. Pure.

docs/extend/published-rows.md describes the fields of a row. Every count, median and quantile of published
values is computed from rows. A reference to a source is `document/statement`, a list of them, or `none`;
docs/extend/claims-language.md describes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.bounds import BOUNDS, RELATIONS
from harness.config.optimizations import CONF
from harness.config.validation import (
    ConfigError,
    Fields,
    as_mapping,
    check_fields,
    check_value,
    refuse_doubles,
    unknown,
)

PROVENANCE = {"type": "str", "one_of": ["stated", "secondary", "chart", "derived"]}
_TEXT = {"type": "str", "default": None}
_COUNT = {"type": "int", "at_least": 1, "default": None}
_NUMBER = {"type": "float", "above": 0, "default": None}
ROW: Fields = {
    "value": {"type": "float", "above": 0},
    **dict.fromkeys(("repository", "commit", "path", "cite", "table"), _TEXT),
    "provenance": {**PROVENANCE, "default": "stated"},
    "phase": {"type": "str", "one_of": ["training", "inference"], "default": None},
    "scope": {
        "type": "str",
        "one_of": ["step", "forward and backward", "forward", "layer", "kernel", "trace"],
        "default": "step",
    },
    **dict.fromkeys(("statistic", "framework", "model"), _TEXT),
    "task": {
        "type": "str",
        "one_of": ["language", "vision", "speech", "recommendation", "science", "forecasting", "various"],
        "default": None,
    },
    **dict.fromkeys(("setting", "device", "device_class"), _TEXT),
    **dict.fromkeys(("gpus", "tokens"), _COUNT),
    **dict.fromkeys(("from", "to"), _TEXT),
    **dict.fromkeys(("batch_from", "batch_to"), _COUNT),
    **dict.fromkeys(("throughput_from", "throughput_to", "time_from", "time_to"), _NUMBER),
    "unit": _TEXT,
    "published_ratio": _NUMBER,
    **dict.fromkeys(("date", "precision", "convention"), _TEXT),
    **dict.fromkeys(("tflops_per_gpu", "peak_tflops"), _NUMBER),
    "best": {"type": "bool", "default": None},
}


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published fact."""

    value: float
    line: int  # in its file, from 1
    fields: Mapping[str, Any]  # without those that the source does not publish

    @property
    def source(self) -> str:
        """Return where it was published: repository, commit and path, or the citation."""
        if "cite" in self.fields:
            return str(self.fields["cite"])
        return f"{self.fields['repository']} {self.fields['commit'][:8]}, {self.fields['path']}"


class Summary(NamedTuple):
    """The distribution of values. A quantile between two values is interpolated linearly, as numpy does."""

    n: int
    least: float
    quantiles: Mapping[int, float]  # by per cent: 10, 25, 50, 75, 90
    most: float


def rows(name: str, where: Mapping[str, Any], conf: Path = CONF) -> tuple[PublishedRow, ...]:
    """Return the rows of conf/published/<name>.jsonl that `where` selects, in the file's order.

    `where` has a value for a field, a list of values, null (the field is absent), or bounds by their names:
    `{"device_class": "V100", "task": ["language", "speech"], "tokens": {"at_least": 4096}}`, and equal
    batches by `{"batch_to": {"not_above": "batch_from"}}`. A row without the field is outside of its bounds.
    Raises ConfigError, with the file and the line of a bad row, and where no row is selected: a misspelt
    value must not read as "nobody published one".
    """
    path = conf / "published" / f"{name}.jsonl"
    for key in where:
        if key not in ROW:
            raise unknown(f"{path.name}: {key}", key, ROW)
    selected = tuple(row for row in _read(path) if all(_fits(row, key, due) for key, due in where.items()))
    if not selected:
        raise ConfigError(f"{path.name}: no row has {json.dumps(dict(where))}")
    return selected


def summary(values: Sequence[float]) -> Summary:
    """Return the distribution of at least one value."""
    quantiles = {cut: float(np.percentile(values, cut)) for cut in (10, 25, 50, 75, 90)}
    return Summary(len(values), min(values), quantiles, max(values))


def _read(path: Path) -> list[PublishedRow]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name}: cannot be read: {' '.join(str(error).split())}") from None
    found = []
    for number, line in enumerate(lines, 1):
        at = f"{path.name}:{number}"
        try:
            data = as_mapping(at, json.loads(line))
        except ValueError as error:
            raise ConfigError(f"{at}: no JSON: {error}") from None
        fields = {key: value for key, value in check_fields(at, data, ROW).items() if value is not None}
        found.append(PublishedRow(fields["value"], number, fields))
    return found


def _fits(row: PublishedRow, key: str, due: Any) -> bool:
    """Return whether a row's field is what a selection asks for; raises ConfigError."""
    value = row.fields.get(key)
    if isinstance(due, Mapping):
        rules = {**BOUNDS, **RELATIONS}
        if ROW[key]["type"] == "str" or not due or not due.keys() <= rules.keys():
            raise ConfigError(f"{key}: {dict(due)!r}; expected bounds of a number: {', '.join(rules)}")
        for rule, limit in due.items():
            if rule in RELATIONS and limit not in ROW:
                raise unknown(f"{key}.{rule}: {limit}", str(limit), ROW)
            bound = row.fields.get(limit) if rule in RELATIONS else limit
            if value is None or bound is None or not rules[rule][0](value, bound):
                return False
        return True
    allowed = due if isinstance(due, list) else [due]
    for one in allowed:
        if one is not None:
            check_value(key, one, {"type": ROW[key]["type"]})
    return value in allowed


_REQUIRED = {"type": "str"}
DOCUMENT: Fields = {"cite": _REQUIRED, "provenance": PROVENANCE, "says": {"type": "dict"}}
STATEMENT: Fields = {"text": _REQUIRED, "misquoted": {"type": "str", "default": ""}}

NONE = "none"  # the reference of a claim whose authors give no source
NO_SOURCE = "No source is given."


class SourceStatement(NamedTuple):
    """A statement of a document."""

    text: str
    misquoted: str  # how the words quoted for it depart from it; "" where they do not
    cite: str
    provenance: str  # of the document: stated | secondary | chart | derived


Sources = Mapping[str, SourceStatement]  # statements by `document/statement`


class ClaimSource(NamedTuple):
    """What the source of a claim says, of one statement or several."""

    keys: tuple[str, ...]
    source_says: str
    misquoted: str
    source: str  # what is cited; "" without a source
    provenance: str  # of the first statement; "" without a source

    @property
    def words(self) -> dict[str, Any]:
        """Return all but the keys, by the names that claims have for them."""
        return {name: text for name, text in self._asdict().items() if name != "keys"}


def read_sources(where: str, data: Mapping[str, Any]) -> Sources:
    """Return the statements of conf/sources.yaml; raises ConfigError."""
    statements: dict[str, SourceStatement] = {}
    for name, data_of in data.items():
        document = check_fields(f"{where}.{name}", as_mapping(f"{where}.{name}", data_of), DOCUMENT)
        for key, one in as_mapping(f"{where}.{name}.says", document["says"]).items():
            at = f"{where}.{name}.says.{key}"
            fields = check_fields(
                at, {"text": one} if isinstance(one, str) else as_mapping(at, one), STATEMENT
            )
            statements[f"{name}/{key}"] = SourceStatement(
                **fields, cite=document["cite"], provenance=document["provenance"]
            )
    return statements


def source_of(where: str, given: Any, sources: Sources, note: str = "") -> ClaimSource:
    """Return what the source says that a claim refers to; raises ConfigError for a reference that is none."""
    keys = [given] if isinstance(given, str) else given
    if not isinstance(keys, list) or not keys or not all(isinstance(key, str) for key in keys):
        raise ConfigError(
            f"{where}.source: {given!r}; expected DOCUMENT/STATEMENT, a list of them, or {NONE}"
        )
    refuse_doubles(f"{where}.source", keys)
    for key in keys:
        if key != NONE and key not in sources:
            raise unknown(f"{where}.source={key}", key, (NONE, *sources))
    if note and keys != [NONE]:
        raise ConfigError(
            f"{where}.note: only with source: {NONE}; what a source says belongs in conf/sources.yaml"
        )
    statements = [sources[key] for key in keys if key != NONE]
    no_source = NO_SOURCE if NONE in keys else ""
    return ClaimSource(
        keys=tuple(keys),
        source_says=" ".join(filter(None, [no_source, *(one.text for one in statements), note])),
        misquoted=" ".join(one.misquoted for one in statements if one.misquoted),
        source="; ".join(dict.fromkeys(one.cite for one in statements)),
        provenance=statements[0].provenance if statements else "",
    )
