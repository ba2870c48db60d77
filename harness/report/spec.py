"""Reads conf/report/<suite>.yaml: which tables and figures a suite's report has, as data. The rest of
`harness.report` draws them and knows nothing of what they are about.

`names` says how identifiers are shown, and puts those it lists first, in its order. Optimizations have their
titles in their own YAMLs; `optimization_order` lists the variants that are shown first. `blocks` stand in the
order of the report; each has `kind`, `id`, `title`, `text` (a paragraph above it) and the fields of its kind
(`KINDS`). `where` selects cells: see `harness.report.frame.Where`. A suite without such a file gets
`DEFAULT_BLOCKS`. Of a workload's name, what stands in brackets is left out along an axis. A block
with `workload` is about that one, or where it was not run, about the first that was; its title and text name
it by `{workload}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.claims import read_yaml
from harness.validation import ConfigError, as_mapping, check_fields

REPORTS = Path(__file__).resolve().parent.parent.parent / "conf" / "report"

_TEXT = {"type": "str", "default": ""}
_MUST = {"type": "str"}
_YES_NO = {"type": "bool", "default": False}
_MAP = {"type": "dict", "default": {}}
_LIST = {"type": "list", "default": []}
_KEYS = ("workload", "optimization", "method")
_KEY = {"type": "str", "one_of": list(_KEYS)}

_Fields = Mapping[str, Mapping[str, Any]]
_PAIRED: _Fields = {
    "metric": {"type": "str", "default": "time"},
    "method": _MUST,
    "baseline": _MUST,
    "noise": _TEXT,  # the variant that is the baseline again
    "draws": _YES_NO,  # as in `effects`
}
_ROOFLINE: _Fields = {
    "where": _MAP,
    "metric": {"type": "str", "default": "time"},
    "method": _MUST,
    "bytes": _MUST,
    "flops": _MUST,
    "baseline": _MUST,
    "bandwidth": {"type": "list"},
    "rates": {"type": "dict"},
    "precision": _MUST,
}
FILE: _Fields = {
    "suite": _MUST,
    "title": _MUST,
    "question": _MUST,
    "names": _MAP,
    "optimization_order": _LIST,
    "blocks": {"type": "list"},
}
NAMES: _Fields = {"workload": _MAP, "method": _MAP, "metric": _MAP}
BLOCK: _Fields = {"kind": _MUST, "id": _MUST, "title": _MUST, "text": _TEXT}
KINDS: Mapping[str, _Fields] = {
    # each claim, its readings and verdicts
    "verdicts": {},
    # `rows` by the values of one key; each column a figure (COLUMN)
    "table": {
        "where": _MAP,
        "workload": _TEXT,
        "rows": _KEY,
        "heading": _TEXT,
        "columns": {"type": "list"},
        "terminal": _YES_NO,
    },
    # every variant against the baseline on one workload: what pays, and by how much. Less is better.
    # `conditions`: of the record, shown beside: name to heading; `beside`: likewise metrics.
    # Only variants on as many ranks as the baseline are ranked at the top. With `noise` (the variant that is
    # the baseline again) the variants were interleaved: the speed-up has an interval, and the noise says
    # what is a difference. `draws`: rounds are draws, of which each counts, and not times of one thing
    "effects": {
        "where": _MAP,
        "workload": _TEXT,
        "conditions": _MAP,
        "beside": _MAP,
        "metric": _MUST,
        "method": _MUST,
        "unit": _MUST,
        "baseline": _MUST,
        "noise": _TEXT,
        "draws": _YES_NO,
        "same_within": {"type": "float", "at_least": 0, "default": 0.0},
        "terminal": _YES_NO,
    },
    # the speed-up of each variant, a column each, on each workload, a row each
    "speedups": {**_PAIRED, "where": _MAP, "heading": _TEXT, "terminal": _YES_NO},
    # each variant's speed-up on one workload beside that on another; `rows`: label to {alone, within}
    "beside": {
        **_PAIRED,
        "where": _MAP,
        "heading": _TEXT,
        "rows": {"type": "dict"},
        "alone": _MUST,  # how the two are headed
        "within": _MUST,
        "terminal": _YES_NO,
    },
    # each time beside its bound: the longer of bytes / bandwidth and FLOPs / rate of the variant's precision,
    # which the `baseline` reached in the same run on the first that was timed of the workloads named by
    # `bandwidth`, and by `rates` for each value of the condition `precision`
    "roofline": {**_ROOFLINE, "terminal": _YES_NO},
    # the same drawn: FLOP/s reached over FLOP per byte, one point per workload and variant
    "roofs": _ROOFLINE,
    # how far each method is off: `metric` is a relative error; `headline` is the method named at the top,
    # `remark` what is said there with it
    "errors": {"where": _MAP, "metric": _MUST, "headline": _TEXT, "remark": _TEXT, "terminal": _YES_NO},
    # every cell that did not end well
    "failures": {},
    # one bar a variant, stacked by metric; `stacks`: metric to its label
    "bars": {
        "where": _MAP,
        "workload": _TEXT,
        "method": _MUST,
        "stacks": {"type": "dict"},
        "unit": _MUST,
        "across": _TEXT,
    },
    # one line per variant over its workloads, or where `line` says so, one per workload over its variants;
    # both axes logarithmic. `references`: label to value, horizontal. `mark`: the ringed point (MARK)
    "lines": {
        "where": _MAP,
        "line": {"type": "str", "default": "optimization", "one_of": ["optimization", "workload"]},
        "x": {"type": "dict"},
        "y": {"type": "dict"},
        "references": _MAP,
        "mark": _MAP,
    },
    # what a metric did from sample to sample, a line a variant; `across` and `up` name the axes
    "course": {"where": _MAP, "workload": _TEXT, "metric": _MUST, "across": _TEXT, "up": _TEXT},
    # the errors of each method, every cell a point
    "spread": {"where": _MAP, "metric": _MUST, "across": _TEXT},
}
COLUMN: _Fields = {
    "title": _TEXT,
    "by": {"type": "str", "default": "", "one_of": ["", *_KEYS]},  # a column for each value of this key
    "metric": _TEXT,
    "method": _TEXT,
    "workload": _TEXT,  # where the rows do not say it
    "optimization": _TEXT,
    "unit": {"type": "str", "default": "1"},
    "at": {
        "type": "str",
        "default": "median",
        "one_of": ["median", "mean", "least", "most"],
    },  # of its samples
    "per": _TEXT,  # a metric to divide by
    "relative_to": _TEXT,  # a variant: show the change against it
    "signed": _YES_NO,
    "notes": _YES_NO,  # a footnote with what the suite remarked on the method
    "also": _MAP,  # a second figure, in brackets: the fields of a column
    "claim": _TEXT,  # instead of a figure, what the paper quotes: a claim's id, with {workload} in it
}
BESIDE: _Fields = {"alone": _MUST, "within": _MUST}
# a metric along x of a line's first cell that has it; `title` says in the tip what holds from there
MARK: _Fields = {"metric": _MUST, "method": _TEXT, "title": _TEXT}
AXIS: _Fields = {
    "metric": _TEXT,
    "field": _TEXT,  # instead of a metric, a field of the workload
    "method": _TEXT,
    "per": _TEXT,
    "against": _TEXT,  # a variant: the speed-up against it, with its interval
    "draws": _YES_NO,  # as in `effects`
    "unit": {"type": "str", "default": "1"},
    "title": _MUST,
}


class Block(NamedTuple):
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
    blocks: tuple[Block, ...]

    def name(self, key: str, identifier: str) -> str:
        """How people know `identifier`, a value of `key`."""
        return self.names.get(key, {}).get(identifier, identifier)


DEFAULT_BLOCKS = (
    Block("verdicts", "claims", "The paper's claims", "", {}),
    Block("failures", "failures", "Cells without a result", "", {}),
)


def load_spec(suite: str, folder: Path = REPORTS, titles: Mapping[str, str] | None = None) -> Spec:
    """The report of `suite`, whose variants have these titles; raises ConfigError naming block and field."""
    path, known = folder / f"{suite}.yaml", dict(titles or {})
    if not path.exists():
        return Spec(suite, suite, "", {"optimization": known}, DEFAULT_BLOCKS)
    data = check_fields(path.name, read_yaml(path), FILE)
    if data["suite"] != suite:
        raise ConfigError(f"{path.name}.suite: {data['suite']!r}; expected {suite!r}")
    names = check_fields(f"{path.name}.names", data["names"], NAMES)
    first = [variant for variant in data["optimization_order"] if variant in known]
    names["optimization"] = {variant: known[variant] for variant in [*first, *known]}
    blocks = tuple(_block(f"{path.name}.blocks[{i}]", block) for i, block in enumerate(data["blocks"]))
    seen = [block.id for block in blocks]
    if doubles := {one for one in seen if seen.count(one) > 1}:
        raise ConfigError(f"{path.name}.blocks: id {min(doubles)!r} stands twice")
    return Spec(suite, data["title"], data["question"], names, blocks)


def _block(where: str, data: Any) -> Block:
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
    if fields.get("mark"):
        fields["mark"] = check_fields(f"{where}.mark", fields["mark"], MARK)
    for name, workloads in fields.get("rates", {}).items():
        if not isinstance(workloads, list):
            raise ConfigError(f"{where}.rates.{name}: {workloads!r}; expected a list of workloads")
    if kind == "beside":
        fields["rows"] = {
            label: check_fields(f"{where}.rows.{label}", as_mapping(f"{where}.rows.{label}", one), BESIDE)
            for label, one in fields["rows"].items()
        }
    own = {name: value for name, value in fields.items() if name not in BLOCK}
    return Block(kind, fields["id"], fields["title"], fields["text"], own)


def _axis(where: str, data: Any) -> Mapping[str, Any]:
    axis = check_fields(where, as_mapping(where, data), AXIS)
    if bool(axis["metric"]) == bool(axis["field"]):
        raise ConfigError(f"{where}: expected either metric or field")
    return axis


def _column(where: str, data: Any) -> Mapping[str, Any]:
    column = check_fields(where, as_mapping(where, data), COLUMN)
    if bool(column["metric"]) == bool(column["claim"]):
        raise ConfigError(f"{where}: expected either metric or claim")
    if column["also"]:
        column["also"] = _column(f"{where}.also", column["also"])
    return column
