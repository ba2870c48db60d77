"""Declare the kinds of blocks of conf/report/<suite>.yaml, each with its description and its fields."""

from __future__ import annotations

from collections.abc import Mapping

from harness.report.language.fields import (
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
