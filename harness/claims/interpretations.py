"""The `interpretations` of a claim in conf/claims -> one `Interpretation` per workload and variant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from harness.claims.model import Interpretation
from harness.config.validation import ConfigError, as_mapping, check_fields, refuse_doubles, unknown

_TEXT = {"type": "str"}
_OPTIONAL = {"type": "str", "default": ""}
_Fields = Mapping[str, Mapping[str, Any]]
INTERPRETATION: _Fields = {
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
_INSTEAD = ("variant", "variants", "divide_by", "relative_to", "stat")
"""What an interpretation with an order of variants does not have."""


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
    variants = [""] if order else _variants(where, values)
    workloads = _workloads(where, values, context)
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
                name=_filled(f"{where}.name", values["name"] or several, titles),
                group=values["group"],
                text=_filled(f"{where}.text", values["text"], titles),
                metric=values["metric"],
                method=values["method"],
                workload=workload,
                variant=variant,
                divide_by=values["divide_by"],
                relative_to=values["relative_to"],
                stat=values["stat"],
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


def _variants(where: str, values: Mapping[str, Any]) -> list[str]:
    if bool(values["variant"]) == bool(values["variants"]):
        raise ConfigError(f"{where}: expected variant, or variants")
    return [values["variant"]] if values["variant"] else [str(one) for one in values["variants"]]


def _workloads(where: str, values: Mapping[str, Any], context: Context) -> list[str]:
    """Return the workloads that an entry names, with patterns expanded; raises ConfigError."""
    if bool(values["workload"]) == bool(values["workloads"]):
        raise ConfigError(f"{where}: expected workload, or workloads")
    names: list[str] = []
    for name in [values["workload"]] if values["workload"] else values["workloads"]:
        matching = [one for one in context.workloads if fnmatchcase(one, str(name))]
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
    return template.replace("{workload}", titles["workload"]).replace("{variant}", titles["variant"])
