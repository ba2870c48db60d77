"""Read conf/report/<suite>.yaml: which tables and figures a suite's report has, as data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from harness.claims.load import read_yaml
from harness.config.optimizations import CONF
from harness.config.validation import ConfigError, as_mapping, check_fields
from harness.report.language.kinds import KINDS
from harness.report.language.schema import (
    ALSO,
    ANSWER,
    ASSUMED,
    AXIS,
    BAND,
    BLOCK,
    CLAUSE,
    COLUMN,
    CONTROL,
    DOTS,
    FILE,
    MARK,
    NAMES,
    ONE_LINE,
    PAIR,
    PICKED,
    SHOWN_METRIC,
    STATED,
)

REPORTS = CONF / "report"


class ReportBlock(NamedTuple):
    """One table or figure of a report."""

    kind: str
    id: str
    title: str
    text: str
    fields: Mapping[str, Any]


class Spec(NamedTuple):
    """What a suite's report holds."""

    suite: str
    title: str
    question: str
    names: Mapping[str, Mapping[str, str]]
    blocks: tuple[ReportBlock, ...]
    order: Mapping[str, tuple[str, ...]] = {}
    caveats: tuple[str, ...] = ()
    answer: Mapping[str, Any] = MappingProxyType(
        {"leave_out": (), "also": (), "over": {}, "set_up": (), "assumes": (), "states": (), "finding": ()}
    )

    def name(self, key: str, identifier: str) -> str:
        """Return how people know `identifier`, a value of `key`."""
        return self.names.get(key, {}).get(identifier, identifier)

    @property
    def ranking(self) -> dict[str, list[str]]:
        """Return, for each key, the names that come first, in their order."""
        own = {key: list(names) for key, names in self.names.items()}
        return {**own, **{key: list(names) for key, names in self.order.items()}}


DEFAULT_BLOCKS = (
    ReportBlock("every_metric", "metrics", "Every metric", "", {"terminal": True}),
    ReportBlock("verdicts", "claims", "Claims", "", {}),
    ReportBlock("failures", "failures", "Cells without a result", "", {}),
)


def load_spec(
    suite: str, titles: Mapping[str, str] | None = None, folder: Path | None = None, question: str = ""
) -> Spec:
    """Return the report of `suite`, its variants named by `titles`; raises ConfigError.

    `question` is the title where the suite has no report of its own.
    """
    path = (folder or REPORTS) / f"{suite}.yaml"
    named = {"optimization": dict(titles or {})}
    if not path.exists():
        return Spec(suite, question or suite, "", named, DEFAULT_BLOCKS, {"optimization": ("baseline",)})
    data = check_fields(path.name, read_yaml(path), FILE)
    if data["suite"] != suite:
        raise ConfigError(f"{path.name}.suite: {data['suite']!r}; expected {suite!r}")
    names = check_fields(f"{path.name}.names", data["names"], NAMES)
    blocks = tuple(_block(f"{path.name}.blocks[{i}]", block) for i, block in enumerate(data["blocks"]))
    ids = [block.id for block in blocks]
    if doubles := {one for one in ids if ids.count(one) > 1}:
        raise ConfigError(f"{path.name}.blocks: id {min(doubles)!r} is used twice")
    ranked = {"optimization": tuple(data["optimization_order"] or ("baseline",))}
    caveats = tuple(str(one) for one in data["caveats"])
    answer = _answer(f"{path.name}.answer", data["answer"])
    return Spec(suite, data["title"], data["question"], {**names, **named}, blocks, ranked, caveats, answer)


def _answer(where: str, data: Any) -> Mapping[str, Any]:
    fields = dict(check_fields(where, as_mapping(where, data), ANSWER))
    kinds = {"also": ALSO, "assumes": ASSUMED, "set_up": CLAUSE, "states": STATED, "finding": STATED}
    for name, kind in kinds.items():
        fields[name] = [
            check_fields(f"{where}.{name}[{i}]", as_mapping(where, one), kind)
            for i, one in enumerate(fields[name])
        ]
    for pattern, variants in fields["over"].items():
        if not isinstance(variants, list):
            raise ConfigError(f"{where}.over.{pattern}: {variants!r}; expected a list of variants")
    for name in ("states", "finding", "set_up"):
        for i, one in enumerate(fields[name]):
            one["values"] = _picked(f"{where}.{name}[{i}]", one, placed=name != "set_up")
    for i, one in enumerate(fields["assumes"]):
        if bool(one["field"]) == bool(one["metric"]):
            raise ConfigError(f"{where}.assumes[{i}]: expected either field or metric")
    return fields


def _picked(where: str, one: Mapping[str, Any], placed: bool) -> list[dict[str, Any]]:
    """Return the values of a sentence; `placed`: each has to name its workload and variant."""
    picked = [
        check_fields(f"{where}.values[{j}]", as_mapping(f"{where}.values[{j}]", value), PICKED)
        for j, value in enumerate(one["values"])
    ]
    if one["text"].count("{}") != len(picked):
        raise ConfigError(f"{where}.text: expected as many {{}} as values ({len(picked)})")
    for j, value in enumerate(picked):
        if bool(value["metric"]) == bool(value["condition"]):
            raise ConfigError(f"{where}.values[{j}]: expected either metric or condition")
        if placed and not (value["workload"] and value["optimization"]):
            raise ConfigError(f"{where}.values[{j}]: expected workload and optimization")
    return picked


def _block(where: str, data: Any) -> ReportBlock:
    data = as_mapping(where, data)
    where = f"{where} ({data.get('id', 'no id')})"
    kind = data.get("kind")
    if kind not in KINDS:
        raise ConfigError(f"{where}.kind: {kind!r}; allowed: {', '.join(KINDS)}")
    fields = check_fields(where, data, {**BLOCK, **KINDS[kind]})
    if "columns" in fields:
        fields["columns"] = [_column(f"{where}.columns[{i}]", c) for i, c in enumerate(fields["columns"])]
    for axis in ("x", "y"):
        if axis in fields:
            fields[axis] = _axis(f"{where}.{axis}", fields[axis])
    if fields.get("line") == "workload" and fields["x"]["field"]:
        raise ConfigError(f"{where}.x: a workload's field is the same all along its line; expected metric")
    if kind == "curves":
        fields["band"] = check_fields(f"{where}.band", fields["band"], BAND) if fields["band"] else {}
    for name, declared in (("dots", DOTS), ("series", ONE_LINE)):
        if name in fields:
            fields[name] = [
                check_fields(f"{where}.{name}[{i}]", as_mapping(f"{where}.{name}[{i}]", one), declared)
                for i, one in enumerate(fields[name])
            ]
    if kind == "what_if":
        for name, declared in (("metrics", SHOWN_METRIC), ("controls", CONTROL)):
            fields[name] = {
                key: check_fields(f"{where}.{name}.{key}", as_mapping(f"{where}.{name}.{key}", one), declared)
                for key, one in fields[name].items()
            }
    if fields.get("mark"):
        fields["mark"] = check_fields(f"{where}.mark", fields["mark"], MARK)
    for name, workloads in fields.get("rates", {}).items():
        if not isinstance(workloads, list):
            raise ConfigError(f"{where}.rates.{name}: {workloads!r}; expected a list of workloads")
    if kind == "isolated_vs_e2e":
        fields["rows"] = {
            label: check_fields(f"{where}.rows.{label}", as_mapping(f"{where}.rows.{label}", one), PAIR)
            for label, one in fields["rows"].items()
        }
    own = {name: value for name, value in fields.items() if name not in BLOCK}
    return ReportBlock(kind, fields["id"], fields["title"], fields["text"], own)


def _axis(where: str, data: Any) -> Mapping[str, Any]:
    axis = check_fields(where, as_mapping(where, data), AXIS)
    if bool(axis["metric"]) == bool(axis["field"]):
        raise ConfigError(f"{where}: expected either metric or field")
    return axis


def _column(where: str, data: Any) -> Mapping[str, Any]:
    column = check_fields(where, as_mapping(where, data), COLUMN)
    if sum(bool(column[key]) for key in ("metric", "claim", "condition")) != 1:
        raise ConfigError(f"{where}: expected one of metric, claim and condition")
    if column["also"]:
        column["also"] = _column(f"{where}.also", column["also"])
    return column
