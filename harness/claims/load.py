"""conf/claims/<suite>.yaml, the paper's numbers as data -> `model.Claim`, which the judge takes.

docs/extend/claims-language.md describes the language of these files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from harness.claims.model import Claim, Interpretation
from harness.claims.published import Sources, read_sources, source_of
from harness.config.optimizations import CONF, rows_of, titles, titles_of_rows, workload_fields
from harness.config.validation import ConfigError, Fields, as_mapping, check_fields, refuse_doubles, unknown
from harness.records import UNITS

_TEXT = {"type": "str"}
_OPTIONAL = {"type": "str", "default": ""}
INTERPRETATION: Fields = {
    "name": _OPTIONAL,
    "group": _OPTIONAL,
    "text": _TEXT,
    "metric": _TEXT,
    "method": _OPTIONAL,
    "workload": _OPTIONAL,
    "workloads": {"type": "list", "default": []},
    "variant": _OPTIONAL,
    "variants": {"type": "list", "default": []},
    "order": {"type": "list", "default": []},
    "divide_by": _OPTIONAL,
    "relative_to": _OPTIONAL,
    "stat": {"type": "str", "default": "median", "one_of": ["median", "mean", "min", "max", "bounds"]},
}
_SAME = ("group", "metric", "method", "divide_by", "relative_to", "stat")  # as `Interpretation` has them
_INSTEAD = ("variant", "variants", "divide_by", "relative_to", "stat")  # not with an order


class Context(NamedTuple):
    """The suite whose claims are read."""

    suite: str
    workloads: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]  # fields off and at their defaults
    workload_titles: Mapping[str, str]  # what reports call them; a name is its own title
    variant_titles: Mapping[str, str]


def read_interpretations(
    where: str, data: Sequence[Any], relation: str, requires: Mapping[str, Any], context: Context
) -> tuple[Interpretation, ...]:
    """Return one interpretation per workload and variant of each entry; raises ConfigError."""
    where = f"{where}.interpretations"
    if not data:
        raise ConfigError(f"{where}: none; a claim is compared with at least one value")
    read = [
        one
        for i, entry in enumerate(data)
        for one in _entry(f"{where}[{i}]", as_mapping(f"{where}[{i}]", entry), relation, requires, context)
    ]
    refuse_doubles(where, [one.name for one in read])
    return tuple(read)


def _entry(
    where: str, data: Mapping[str, Any], relation: str, requires: Mapping[str, Any], context: Context
) -> Iterator[Interpretation]:
    values = check_fields(where, data, INTERPRETATION)
    order = _order(where, data, values, relation)
    variants = [""] if order else _one_or_several(where, values, "variant")
    workloads = _workloads_of(where, values, context)
    if values["divide_by"] and values["relative_to"]:
        raise ConfigError(f"{where}: divide_by and relative_to are both given; keep one")
    if values["stat"] in ("min", "max", "bounds") and values["relative_to"]:
        raise ConfigError(f"{where}: stat {values['stat']} and relative_to are both given; keep one")
    several = "{workload}, {variant}" if len(variants) > 1 else "{workload}"
    for variant in variants:
        for workload in workloads:
            required, default = context.workloads[workload]
            titles = {
                "workload": context.workload_titles.get(workload, workload),
                "variant": context.variant_titles.get(variant, variant),
            }
            yield Interpretation(
                **{field: values[field] for field in _SAME},
                name=_filled(f"{where}.name", values["name"] or several, titles),
                text=_filled(f"{where}.text", values["text"], titles),
                workload=workload,
                variant=variant,
                order=order,
                requires={**required, **requires},
                defaults={name: value for name, value in default.items() if name not in requires},
            )


def _order(where: str, data: Mapping[str, Any], values: Mapping[str, Any], relation: str) -> tuple[str, ...]:
    """Return the variants of an increasing claim in their order; () for any other. Raises ConfigError."""
    order = values["order"]
    if relation != "increasing":
        if "order" in data:
            raise ConfigError(f"{where}.order: allowed with relation increasing alone")
        return ()
    if both := [name for name in _INSTEAD if name in data]:
        raise ConfigError(f"{where}: order and {both[0]} are both given; keep order")
    if len(order) < 2 or not all(isinstance(variant, str) and variant for variant in order):
        raise ConfigError(f"{where}.order: {order!r}; relation increasing expects at least two variants")
    refuse_doubles(f"{where}.order", order)
    return tuple(order)


def _one_or_several(where: str, values: Mapping[str, Any], key: str) -> list[str]:
    if bool(values[key]) == bool(values[f"{key}s"]):
        raise ConfigError(f"{where}: expected {key}, or {key}s")
    return [values[key]] if values[key] else [str(one) for one in values[f"{key}s"]]


def _workloads_of(where: str, values: Mapping[str, Any], context: Context) -> list[str]:
    """Return the workloads that an entry names, with patterns expanded; raises ConfigError."""
    names: list[str] = []
    for name in _one_or_several(where, values, "workload"):
        matching = [one for one in context.workloads if fnmatchcase(one, name)]
        if not matching:
            raise unknown(
                f"{where}.workload: {name!r} is no workload of {context.suite}", name, context.workloads
            )
        names += [one for one in matching if one not in names]
    return names


def _filled(where: str, template: str, titles: Mapping[str, str]) -> str:
    """Replace `{workload}` and `{variant}` by their titles; raises ConfigError on any other placeholder."""
    for name in re.findall(r"\{(.*?)\}", template):
        if name not in titles:
            raise ConfigError(f"{where}: {{{name}}}; allowed: {{workload}}, {{variant}}")
        template = template.replace(f"{{{name}}}", titles[name])
    return template


FILE: Fields = {
    "suite": _TEXT,
    "shared": {"type": "dict", "default": {}},
    "ignore_fields": {"type": "list", "default": []},
    "claims": {"type": "list"},
}
CLAIM: Fields = {
    "id": _TEXT,
    "quoted": _TEXT,
    "verbatim": {"type": "bool", "default": True},
    "quoted_by": _TEXT,
    **dict.fromkeys(("not_judged", "formula", "per"), _OPTIONAL),
    "relation": {
        "type": "str",
        "one_of": ["about", "at_least", "at_most", "up_to", "increasing"],
        "default": None,
    },
    "value": {"type": "float", "default": None},
    "range": {"type": "list", "default": None},
    "unit": {"type": "str", "one_of": sorted(UNITS), "default": "1"},
    "tolerance": {"type": "float", "at_least": 0, "default": None},
    "conditions": {"type": "dict"},
    "requires": {"type": "dict", "default": {}},
    "source": {},
    "caveats": {"type": "list", "default": []},
    "interpretations": {"type": "list"},
}


def load_claims(suite: str, conf: Path = CONF, package: str = "suites") -> tuple[Claim, ...]:
    """Return the claims of `suite`, none where it has no file; raises ConfigError naming claim and field."""
    path = conf / "claims" / f"{suite}.yaml"
    if not path.exists():
        return ()
    data = check_fields(path.name, read_yaml(path), FILE)
    if data["suite"] != suite:
        raise ConfigError(f"{path.name}.suite: {data['suite']!r}; expected {suite!r}")
    sources = load_sources(conf)
    context = Context(
        suite,
        _workloads(path.name, conf, suite, workload_fields(suite, package), data["ignore_fields"]),
        _workload_titles(conf, suite),
        titles(suite, conf),
    )
    claims = tuple(
        _claim(f"{path.name}.claims[{i}]", one, sources, context) for i, one in enumerate(data["claims"])
    )
    refuse_doubles(f"{path.name}.claims", [claim.id for claim in claims])
    return claims


def load_sources(conf: Path = CONF) -> Sources:
    """Return the statements of conf/sources.yaml; raises ConfigError."""
    return read_sources("sources.yaml", read_yaml(conf / "sources.yaml"))


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML 1.2's floats: 1e9 and 1.0e9 are numbers, as OmegaConf has them in conf/suite."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Return the mapping that a YAML file contains; raises ConfigError."""
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path.name}: cannot be read: {' '.join(str(error).split())}") from None
    return as_mapping(path.name, data)


def _workloads(
    where: str, conf: Path, suite: str, fields: Fields, ignored: list[str]
) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Return each workload's fields off and at their defaults; none that is ignored or the hardware's."""
    data = read_yaml(conf / "suite" / f"{suite}.yaml")
    if unknown_fields := [name for name in ignored if name not in fields]:
        raise ConfigError(
            f"{where}.ignore_fields: {unknown_fields[0]!r} is no field of a workload of {suite}"
        )
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    declared = {}
    for name, workload in (data.get("workloads") or rows_of(suite, conf)).items():
        own: dict[str, Any] = {}
        default: dict[str, Any] = {}
        for field, value in {**defaults, **workload}.items():
            from_hardware = isinstance(value, str) and "${" in value
            if field not in (*ignored, "source") and not from_hardware:
                is_default = field in defaults and value == defaults[field]
                (default if is_default else own)[field] = value
        declared[name] = own, default
    return declared


def _workload_titles(conf: Path, suite: str) -> Mapping[str, str]:
    report = conf / "report" / f"{suite}.yaml"
    listed = read_yaml(report).get("names", {}).get("workload", {}) if report.exists() else {}
    declared = read_yaml(conf / "suite" / f"{suite}.yaml").get("workloads", {})
    return titles_of(f"{report.name}.names.workload", listed, declared) or titles_of_rows(suite, conf)


def titles_of(where: str, listed: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return titles by name; one for a pattern, as `plans_*`, has `{}` for each `*`, which is no `_`.

    Of several patterns the last counts, and a name that is listed before any. Numbers get commas.
    `where`: the file and key of the titles; raises ConfigError with it for a title that does not suit its
    pattern.
    """
    named: dict[str, str] = {}
    for pattern, title in listed.items():
        if "*" not in pattern:
            named[pattern] = title
            continue
        try:
            title.format(*["0"] * pattern.count("*"))
        except (AttributeError, IndexError, KeyError, ValueError):
            raise ConfigError(
                f"{where}.{pattern}: {title!r}; expected a title with at most one {{}} for each *"
            ) from None
        shape = re.compile(re.escape(pattern).replace(r"\*", "([^_]*)"))
        for name in names:
            if name not in listed and (match := shape.fullmatch(name)):
                parts = (f"{int(one):,}" if one.isdigit() and len(one) > 3 else one for one in match.groups())
                named.pop(name, None)  # so that it stands where the last pattern does
                named[name] = title.format(*parts)
    return named


def _claim(where: str, data: Any, sources: Sources, context: Context) -> Claim:
    data = as_mapping(where, data)
    where = f"{where} ({data.get('id', 'no id')})"
    data = check_fields(where, data, CLAIM)
    relation, value, upper, tolerance = _quoted(where, data)
    interpretations = read_interpretations(
        where, data["interpretations"], relation, data["requires"], context
    )
    ratio = next((one.name for one in interpretations if one.relative_to), "")
    if data["unit"] != "1" and ratio:
        raise ConfigError(f"{where}.unit: {data['unit']}; expected 1, for {ratio!r} is a ratio")
    same = ("id", "quoted", "verbatim", "quoted_by", "per", "not_judged", "formula", "unit")
    return Claim(
        **{name: data[name] for name in same},
        **source_of(where, data["source"], sources).words,
        suite=context.suite,
        value=value,
        upper=upper,
        relation=relation,
        tolerance=tolerance,
        interpretations=interpretations,
        conditions={str(name): str(value) for name, value in data["conditions"].items()},
        caveats=tuple(str(caveat) for caveat in data["caveats"]),
    )


def _quoted(where: str, data: Mapping[str, Any]) -> tuple[str, float, float | None, float]:
    """Return the relation, the value or the ends of a range, and the tolerance; raises ConfigError."""
    if data["range"] is not None:
        low, high = _range(where, data)
        return "range", low, high, data["tolerance"] or 0.0
    relation, value, tolerance = data["relation"], data["value"], data["tolerance"] or 0.0
    if relation == "increasing" and value is None:
        value = 1.0
    for name, given in (("relation", relation), ("value", value)):
        if given is None:
            raise ConfigError(f"{where}.{name}: missing; a claim has relation and value, or a range")
    if data["tolerance"] is None and relation == "about":
        raise ConfigError(f"{where}.tolerance: missing; expected a number of at least 0")
    if not value > 0:
        raise ConfigError(f"{where}.value: {value:g}; expected a number above 0")
    if relation in ("increasing", "up_to") and data["unit"] != "1":
        raise ConfigError(
            f"{where}.unit: {data['unit']}; expected 1, for relation {relation} is about ratios"
        )
    if relation == "increasing" and value * (1 - tolerance) < 1:
        off = f" with tolerance {tolerance:g}" if tolerance else ""
        raise ConfigError(f"{where}.value: {value:g}{off}; expected at least 1, for less is no increase")
    if relation == "up_to" and value <= 1:
        raise ConfigError(f"{where}.value: {value:g}; expected above 1, for relation up_to is about a gain")
    return relation, value, None, tolerance


def _range(where: str, data: Mapping[str, Any]) -> tuple[float, float]:
    for name in ("relation", "value"):
        if data[name] is not None:
            raise ConfigError(f"{where}: range and {name} are both given; keep one")
    ends = data["range"]
    numbers = all(type(end) in (int, float) for end in ends)
    if len(ends) != 2 or not numbers or not 0 < ends[0] < ends[1] < float("inf"):
        raise ConfigError(f"{where}.range: {ends!r}; expected [LOW, HIGH], two numbers above 0")
    return float(ends[0]), float(ends[1])
