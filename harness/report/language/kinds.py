"""Declare the kinds of blocks of conf/report/<suite>.yaml, each with its description and its fields.

Write the reference of conf/report/'s language, docs/extend/report-language.md, from its schema.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from harness.report.language import schema
from harness.report.language.schema import (
    EFFECTS,
    FACTORIAL,
    KEY,
    METHOD,
    PAIRED,
    ROOFLINE,
    SHOWN,
    TERMINAL,
    TOP,
    WHERE,
    WORKLOAD,
    FieldSet,
    mapping,
    must,
    text,
    yes_no,
)

KIND_DOCS: Mapping[str, str] = {
    "verdicts": "Every claim, its interpretations and their verdicts.",
    "table": "Rows by the values of one key; each column is a COLUMN.",
    "effects": (
        "Every variant compared with the baseline: its metric, the change, the effect. `extra_metrics` may "
        "name `break_even`: after how many steps `compile_time` has been saved."
    ),
    "effect_plot": "The same ratios drawn: a dot per variant with its interval as a whisker, sorted.",
    "speedups": "The speed-up of each variant, in a column each, on each workload, in a row each.",
    "performance_portability": (
        "Each variant's efficiency on every platform, which is the device with one workload, and their "
        "harmonic mean, 0 where one fails: performance portability after Pennycook, Sewall and Lee."
    ),
    "cascade": "The same efficiencies drawn, a line per variant, from its best platform to its worst.",
    "isolated_vs_e2e": "Each variant's speed-up on one workload next to that on another.",
    "roofline": "Each time next to its bound: bytes / bandwidth or FLOPs / rate, whichever is longer.",
    "roofline_plot": "FLOP/s over FLOPs per byte, a point per workload and variant, under the roofs.",
    "errors": (
        "How far each method is off: median, worst, and how often it underestimates. A report about accuracy "
        "begins with the first one."
    ),
    "error_strip": "The error of each method, a point per cell, about zero.",
    "failures": "Every cell that did not end `ok`, with its reason.",
    "bars": "One bar per variant, stacked by metric, the shortest first.",
    "lines": "One line per variant over its workloads, or per workload over its variants; logarithmic axes.",
    "curves": "A metric over another one, both by the samples of one cell in order: a line per variant.",
    "what_if": (
        "Values of metrics whose methods are combinations of inputs, `key=value, key=value`. The page has "
        "a control per key and shows what was recorded for that combination. Its table changes one key."
    ),
    "scatter": "One metric over another, a named dot per variant, on one workload.",
    "stacked_timeline": "Metrics over one run of a variant, stacked, with its phases and its peak.",
    "line_over_steps": "A metric over the training steps, a line per variant.",
    "spans": "When each lane of a run was busy: a row per lane, a panel per variant, on one axis of time.",
    "stack_values": (
        "What each factor of a full factorial gains: in the mean over all orders (its Shapley value), alone, "
        "added last."
    ),
    "stack_whole": (
        "What all factors gain together over each named baseline, the product of their single gains, and the "
        "order in which each next one gains most."
    ),
    "stack_pairs": "What two factors gain together over the product of what each gains alone.",
    "waterfall": "The Shapley values of a full factorial, each bar from where the last one ended.",
    "every_metric": "Every metric by workload and variant, with a figure each: the default report.",
}
_KINDS: Mapping[str, FieldSet] = {
    "verdicts": {},
    "table": {
        "where": WHERE,
        "workload": WORKLOAD,
        "rows": KEY,
        "heading": text("the heading of the first column"),
        "columns": {"type": "list", "doc": "a COLUMN each"},
        "terminal": TERMINAL,
    },
    "effects": {
        **EFFECTS,
        "conditions": mapping("conditions of the record to show: name to heading"),
        "extra_metrics": mapping(
            "other metrics to show: metric to heading, or to {title, unit, method}, see below"
        ),
        "training": yes_no("its rows are training steps: add tokens/s, TFLOP/s, MFU and peak GiB per device"),
        "terminal": TERMINAL,
    },
    "effect_plot": {**EFFECTS, "x_title": text("the title of the axis")},
    "speedups": {
        **PAIRED,
        "where": WHERE,
        "heading": text("the heading of the first column"),
        "terminal": TERMINAL,
    },
    "performance_portability": {
        **PAIRED,
        "where": WHERE,
        "work": text("a metric of the baseline: the FLOP of one call, for architectural efficiency"),
        "peak": text("a metric of the baseline: the rate that this device reaches, in FLOP/s"),
        "terminal": TERMINAL,
    },
    "cascade": {**PAIRED, "where": WHERE, "top": TOP},
    "isolated_vs_e2e": {
        **PAIRED,
        "where": WHERE,
        "heading": text("the heading of the first column"),
        "rows": {"type": "dict", "doc": "label to {isolated, end_to_end}: two workloads"},
        "isolated": must("the heading of the first"),
        "end_to_end": must("the heading of the second"),
        "terminal": TERMINAL,
    },
    "roofline": {**ROOFLINE, "terminal": TERMINAL},
    "roofline_plot": ROOFLINE,
    "errors": {
        "where": WHERE,
        "metric": must("a relative error"),
        "headline": text("the method named in the summary"),
        "headline_note": text("a remark that the summary adds to it"),
        "within": {
            "type": "float",
            "at_least": 0,
            "default": 0.0,
            "doc": "an error that is small enough: the answer says how many cells have at most that",
        },
        "terminal": TERMINAL,
    },
    "error_strip": {
        "where": WHERE,
        "metric": must("a relative error"),
        "x_title": text("the title of the axis"),
    },
    "stack_values": {**FACTORIAL, "workload": WORKLOAD, "terminal": TERMINAL},
    "stack_whole": {
        **FACTORIAL,
        "heading": text("the heading of the first column"),
        "baselines": {"type": "dict", "doc": "variant to its name: what all together is compared with"},
        "terminal": TERMINAL,
    },
    "stack_pairs": {**FACTORIAL, "workload": WORKLOAD, "terminal": TERMINAL},
    "waterfall": {**FACTORIAL, "workload": WORKLOAD},
    "failures": {},
    "bars": {
        "where": WHERE,
        "workload": WORKLOAD,
        "method": METHOD,
        "stacks": {"type": "dict", "doc": "metric to its label, in the order of the stack"},
        "x_title": text("the title of the axis"),
    },
    "lines": {
        "where": WHERE,
        "line": {
            "type": "str",
            "default": "optimization",
            "one_of": ["optimization", "workload"],
            "doc": "what each line represents",
        },
        "series": {"type": "list", "default": [], "doc": "lines of chosen cells instead, a SERIES each"},
        "x": {"type": "dict", "doc": "an AXIS"},
        "y": {"type": "dict", "doc": "an AXIS"},
        "references": mapping("labelled horizontal lines: label to value"),
        "mark": mapping("marks a point of each line with a ring: a MARK"),
    },
    "curves": {
        "where": WHERE,
        "workload": WORKLOAD,
        "x_metric": must("the metric along x, on a logarithmic axis"),
        "y_metric": must("the metric along y, on an axis that begins at 0"),
        "x_title": text("the title of the x axis"),
        "y_title": text("the title of the y axis"),
        "method": METHOD,
        "band": mapping("shades what lies between two methods of a variant: a BAND"),
        "dots": {"type": "list", "default": [], "doc": "points of other cells, a DOTS each"},
        "references": mapping("labelled vertical lines: label to value"),
    },
    "what_if": {
        "where": WHERE,
        "workload": WORKLOAD,
        "optimization": {"type": "str", "default": "baseline", "doc": "the variant"},
        "metrics": {"type": "dict", "doc": "metric to {title, unit}"},
        "controls": {"type": "dict", "doc": "key to a CONTROL; keys in the order of the methods"},
        "terminal": TERMINAL,
    },
    "scatter": {
        "where": WHERE,
        "workload": WORKLOAD,
        "x": {"type": "dict", "doc": "an AXIS"},
        "y": {"type": "dict", "doc": "an AXIS"},
    },
    "line_over_steps": {
        "where": WHERE,
        "workload": WORKLOAD,
        "metric": must("the metric, whose samples are the steps"),
        "x_title": text("the title of the x axis"),
        "y_title": text("the title of the y axis"),
    },
    "stacked_timeline": {
        "where": WHERE,
        "workload": WORKLOAD,
        "optimization": must("the variant"),
        "stacks": {"type": "dict", "doc": "metric to its label, in the order of the stack; samples in order"},
        "phases": text("`<phases>/<name>` is the metric with the sample at which a phase begins"),
        "peak_note": text("what begins the cell's note on the peak; the rest is written at the peak"),
        "x_title": text("the title of the x axis"),
        "y_title": text("the title of the y axis"),
    },
    "spans": {
        "where": WHERE,
        "workload": WORKLOAD,
        "begin": must("the metric whose samples are the begins of spans; its method names the lane"),
        "end": must("the metric whose samples are their ends, in the same order"),
        "x_title": text("the title of the axis"),
    },
    "every_metric": {"terminal": TERMINAL},
}
_FIGURES = (
    "curves",
    "effect_plot",
    "roofline_plot",
    "error_strip",
    "bars",
    "lines",
    "scatter",
    "line_over_steps",
    "waterfall",
    "spans",
)
KINDS: Mapping[str, FieldSet] = {
    kind: {
        **fields,
        **({} if kind in ("verdicts", "failures", "every_metric") else {"shown": SHOWN}),
        **({"top": TOP} if kind in _FIGURES else {}),
    }
    for kind, fields in _KINDS.items()
}


HEAD = """# The language of conf/report/

`conf/report/<suite>.yaml` defines the tables and figures of a suite's report. The report is generated from
records alone, so this file names metrics, methods and workloads and contains no code. A suite without such a
file shows every metric by workload and variant, with the change against the baseline and a figure each.

`python -m harness.report.language.kinds` writes this page from the schema; a test compares them.
Fields without a default are required. A mistake is refused with the name of the file, block and field.

```yaml
suite: memory
title: How much device memory does a training step take?
question: What was compared with what, in a paragraph.
blocks:
  - kind: effects
    id: pays
    title: "What each optimization does to {workload}"
    workload: llama_7b
    metric: peak_memory
    method: fake_step
    unit: auto
    baseline: baseline
    equal_within: 0.005
```
"""

TERMS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "NAMES": schema.NAMES,
    "ANSWER": schema.ANSWER,
    "ALSO": schema.ALSO,
    "STATED": schema.STATED,
    "CLAUSE": schema.CLAUSE,
    "PICKED": schema.PICKED,
    "ASSUMED": schema.ASSUMED,
    "COLUMN": schema.COLUMN,
    "AXIS": schema.AXIS,
    "MARK": schema.MARK,
    "BAND": schema.BAND,
    "DOTS": schema.DOTS,
    "SERIES": schema.ONE_LINE,
    "CONTROL": schema.CONTROL,
}


def reference() -> str:
    """Return the page."""
    parts = [HEAD, "## The file", _table(schema.FILE), "## A BLOCK", _table(schema.BLOCK)]
    common = _common_fields()
    parts += ["## Fields of many kinds of blocks", _table(common)]
    rows = ["| kind | what it shows | fields of its own | others |", "|---|---|---|---|"]
    for kind, fields in KINDS.items():
        own = {name: field for name, field in fields.items() if common.get(name) != field}
        others = ", ".join(f"`{name}`" for name in fields if name not in own)
        rows.append(f"| `{kind}` | {KIND_DOCS[kind]} | {_listed(own)} | {others} |")
    parts += ["## Kinds of blocks", "\n".join(rows), "## What fields consist of"]
    terms = [f"| {name} | {_listed(fields)} |" for name, fields in TERMS.items()]
    parts.append("\n".join(["| name | fields |", "|---|---|", *terms]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _common_fields() -> dict[str, Mapping[str, Any]]:
    """Return the fields that at least three kinds of blocks have alike, in the schema's order."""
    every = [(name, field) for fields in KINDS.values() for name, field in fields.items()]
    return {name: field for name, field in every if every.count((name, field)) > 2}


def _table(fields: Mapping[str, Mapping[str, Any]]) -> str:
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in fields.items():
        rows.append(f"| `{name}` | {_type(field)} | {_default(field)} | {field['doc']} |")
    return "\n".join(rows)


def _listed(fields: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the fields as lines of one cell: name, type, default, meaning."""
    lines = []
    for name, field in fields.items():
        default = f" = {found}" if (found := _default(field)) else ""
        lines.append(f"`{name}` ({_type(field)}{default}): {field['doc']}")
    return "<br>".join(lines)


def _type(field: Mapping[str, Any]) -> str:
    return ", ".join(f"`{one}`" for one in field["one_of"] if one) if "one_of" in field else field["type"]


def _default(field: Mapping[str, Any]) -> str:
    return f"`{_yaml(field['default'])}`" if "default" in field else ""


def _yaml(value: Any) -> str:
    return {"": '""', "False": "false", "True": "true"}.get(str(value), str(value))


if __name__ == "__main__":
    sys.stdout.write(reference())
