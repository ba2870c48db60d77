"""conf/claims/<suite>.yaml, the paper's figures as data -> `records.Claim`, which the judge takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.records import UNITS, Claim, Interpretation
from harness.validation import ConfigError, check_fields, unknown

CLAIMS = Path(__file__).resolve().parent.parent / "conf" / "claims"

_Fields = Mapping[str, Mapping[str, Any]]
_TEXT = {"type": "str"}
_FILE: _Fields = {
    "suite": _TEXT,
    "shared": {"type": "dict", "default": {}},
    "sources": {"type": "dict"},
    "workloads": {"type": "dict"},
    "claims": {"type": "list"},
}
_SOURCE: _Fields = {"cite": _TEXT, "mark": {"type": "str", "one_of": ["S", "N", "C", "D"]}}
_CLAIM: _Fields = {
    "id": _TEXT,
    "quoted": _TEXT,
    "quoted_by": _TEXT,
    "value": {"type": "float"},
    "unit": {"type": "str", "one_of": sorted(UNITS)},
    "relation": {"type": "str", "one_of": ["about", "at_least", "at_most", "within", "rising"]},
    "upper": {"type": "float", "default": None},
    "tolerance": {"type": "float", "at_least": 0},
    "readings": {"type": "list"},
    "conditions": {"type": "dict"},
    "requires": {"type": "dict", "default": {}},
    "supports": _TEXT,
    "source": _TEXT,
    "caveats": {"type": "list", "default": []},
}
_RISING: _Fields = {**_CLAIM, "tolerance": {"type": "float", "at_least": 0, "default": 0.0}}
_READING: _Fields = {
    "name": _TEXT,
    "metric": _TEXT,
    "workload": _TEXT,
    "optimization": _TEXT,
    "method": _TEXT,
    "per": {"type": "str", "default": ""},
    "against": {"type": "str", "default": ""},
    "at": {"type": "str", "default": "median", "one_of": ["median", "mean", "least", "most"]},
    "text": _TEXT,
}
_INSTEAD = ("optimization", "per", "against", "at")
"""What a reading with an order of variants has none of."""

_ORDERED: _Fields = {
    **{name: field for name, field in _READING.items() if name not in _INSTEAD},
    "order": {"type": "list"},
}


def load_claims(suite: str, folder: Path = CLAIMS) -> tuple[Claim, ...]:
    """The claims of `suite`, none where it has no file; raises ConfigError naming file, claim and field."""
    path = folder / f"{suite}.yaml"
    if not path.exists():
        return ()
    data = check_fields(path.name, read_yaml(path), _FILE)
    if data["suite"] != suite:
        raise ConfigError(f"{path.name}.suite: {data['suite']!r}; expected {suite!r}")
    sources = {
        name: check_fields(
            f"{path.name}.sources.{name}", as_mapping(f"{path.name}.sources.{name}", s), _SOURCE
        )
        for name, s in data["sources"].items()
    }
    workloads = {
        name: _required(f"{path.name}.workloads.{name}", fields) for name, fields in data["workloads"].items()
    }
    if empty := [name for name, fields in workloads.items() if not fields]:
        raise ConfigError(f"{path.name}.workloads.{empty[0]}: no field; expected at least one FIELD: VALUE")
    claims = tuple(
        _claim(f"{path.name}.claims[{i}]", c, suite, sources, workloads) for i, c in enumerate(data["claims"])
    )
    _refuse_doubles(f"{path.name}.claims", [claim.id for claim in claims])
    return claims


def read_yaml(path: Path) -> Mapping[str, Any]:
    """The mapping that a YAML file holds; raises ConfigError."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path.name}: cannot be read: {' '.join(str(error).split())}") from None
    return as_mapping(path.name, data)


def as_mapping(where: str, data: Any) -> Mapping[str, Any]:
    """`data`, which is to be a mapping with text as its keys; raises ConfigError."""
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ConfigError(f"{where}: {data!r}; expected KEY: VALUE lines")
    return data


def _claim(where: str, data: Any, suite: str, sources: _Fields, workloads: _Fields) -> Claim:
    data = as_mapping(where, data)
    where = f"{where} ({data.get('id', 'no id')})"
    data = check_fields(where, data, _RISING if data.get("relation") == "rising" else _CLAIM)
    if not data["value"] > 0:
        raise ConfigError(f"{where}.value: {data['value']}; expected a figure above 0")
    _check_range(where, data)
    _check_rising(where, data)
    if data["source"] not in sources:
        raise ConfigError(f"{where}.source: {data['source']!r}; allowed: {', '.join(sorted(sources))}")
    if not data["readings"]:
        raise ConfigError(f"{where}.readings: none; a claim is held against at least one figure")
    source = sources[data["source"]]
    requires = _required(f"{where}.requires", data["requires"])
    readings = tuple(
        _reading(f"{where}.readings[{i}]", r, data["relation"], requires, workloads)
        for i, r in enumerate(data["readings"])
    )
    if data["unit"] != "1" and (ratio := next((r.name for r in readings if r.against), "")):
        raise ConfigError(f"{where}.unit: {data['unit']}; expected 1, for the reading {ratio!r} is a ratio")
    _refuse_doubles(f"{where}.readings", [reading.name for reading in readings])
    return Claim(
        **{
            name: value
            for name, value in data.items()
            if name not in ("readings", "conditions", "requires", "source", "caveats")
        },
        suite=suite,
        readings=readings,
        conditions={str(name): str(value) for name, value in data["conditions"].items()},
        source=source["cite"],
        source_mark=source["mark"],
        caveats=tuple(str(caveat) for caveat in data["caveats"]),
    )


def _check_range(where: str, data: Mapping[str, Any]) -> None:
    """A range has two ends, any other relation one figure; raises ConfigError."""
    upper = data["upper"]
    if data["relation"] != "within" and upper is not None:
        raise ConfigError(f"{where}.upper: {upper:g}; allowed with relation within alone")
    if data["relation"] == "within" and (upper is None or upper <= data["value"]):
        shown = "missing" if upper is None else f"{upper:g}"
        raise ConfigError(f"{where}.upper: {shown}; expected a number above value, {data['value']:g}")


def _check_rising(where: str, data: Mapping[str, Any]) -> None:
    """A step from variant to variant is a ratio, and no rise below 1; raises ConfigError."""
    if data["relation"] != "rising":
        return
    if data["unit"] != "1":
        raise ConfigError(f"{where}.unit: {data['unit']}; expected 1, for relation rising compares by ratios")
    if data["value"] * (1 - data["tolerance"]) < 1:
        off = f" with tolerance {data['tolerance']:g}" if data["tolerance"] else ""
        raise ConfigError(f"{where}.value: {data['value']:g}{off}; expected at least 1, for less is no rise")


def _reading(
    where: str, data: Any, relation: str, requires: Mapping[str, Any], workloads: _Fields
) -> Interpretation:
    """The reading, which requires its workload's fields and those of its claim."""
    data = as_mapping(where, data)
    values = _ordered(where, data) if relation == "rising" else _of_one_arm(where, data)
    name = values["workload"]
    if name not in workloads:
        raise unknown(f"{where}.workload: {name!r} is not described under workloads", name, workloads)
    for field in requires:
        if field in workloads[name]:
            raise ConfigError(
                f"{where}: the claim's requires has {field}, which workloads.{name} has already; keep one"
            )
    return Interpretation(**values, requires={**workloads[name], **requires})


def _of_one_arm(where: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a reading of one variant, or of one against another; raises ConfigError."""
    if "order" in data:
        raise ConfigError(f"{where}.order: allowed with relation rising alone")
    values = check_fields(where, data, _READING)
    if values["per"] and values["against"]:
        raise ConfigError(f"{where}: per and against are both given; keep one")
    if values["at"] not in ("median", "mean") and values["against"]:
        raise ConfigError(f"{where}: at {values['at']} and against are both given; keep one")
    return values


def _ordered(where: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a reading that puts variants in order; raises ConfigError."""
    if "order" not in data:
        raise ConfigError(f"{where}.order: missing; relation rising expects at least two variants here")
    if both := [name for name in _INSTEAD if name in data]:
        raise ConfigError(f"{where}: order and {both[0]} are both given; keep order")
    values = check_fields(where, data, _ORDERED)
    order = values["order"]
    if len(order) < 2 or not all(isinstance(variant, str) and variant for variant in order):
        raise ConfigError(f"{where}.order={order!r}: expected the names of at least two variants")
    _refuse_doubles(f"{where}.order", order)
    return {**values, "optimization": "", "order": tuple(order)}


def _required(where: str, data: Any) -> Mapping[str, Any]:
    """Fields of a workload with the one value each must have; raises ConfigError."""
    fields = as_mapping(where, data)
    for name, value in fields.items():
        if not isinstance(value, int | float | str) or value != value:
            raise ConfigError(f"{where}.{name}: {value!r}; expected a number, a text, true or false")
    return fields


def _refuse_doubles(where: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{where}: {name!r} stands twice; each needs a name of its own")
