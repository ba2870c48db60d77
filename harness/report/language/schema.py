"""Declare every field of conf/report/<suite>.yaml, with its description.

docs/extend/report-language.md is generated from these by harness/report/language/reference.py; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_Fields = Mapping[str, Mapping[str, Any]]


def _text(doc: str) -> dict[str, Any]:
    return {"type": "str", "default": "", "doc": doc}


def _must(doc: str) -> dict[str, Any]:
    return {"type": "str", "doc": doc}


def _yes_no(doc: str) -> dict[str, Any]:
    return {"type": "bool", "default": False, "doc": doc}


def _map(doc: str) -> dict[str, Any]:
    return {"type": "dict", "default": {}, "doc": doc}


KEYS = ("workload", "optimization", "method")
_KEY = {"type": "str", "one_of": list(KEYS), "doc": "what the rows are: workload, optimization or method"}
_WHERE = _map(
    "the cells that it covers: `workload`, `optimization`, `method` to a pattern or a list of patterns "
    "(`fsdp*`, `!zero*`), any other key to the value of that field of the workload, or to "
    "patterns of its text"
)
_WORKLOAD = _text(
    "the workload that it covers, or the first one that was run; its title and text name it by `{workload}`"
)
_SHOWN = _yes_no(
    "in view on the page; where a suite marks no block, the first three are, and the rest is folded"
)
_TOP = _yes_no("the figure at the top, next to the answer; else the first plot of effects")
_TERMINAL = _yes_no("print it on the terminal too")
_METHOD = _must('the method of the metric; "" where it has only one')
_BASELINE = _must("the variant that the others are compared with")
_NOISE = _text("the variant that repeats the baseline: their difference is the noise")
_DRAWS = _yes_no(
    "rounds are independent: random draws, or fresh processes each; not timings of the same process"
)
_PAIRED: _Fields = {
    "metric": {"type": "str", "default": "time", "doc": "the metric, of which less is better"},
    "method": _METHOD,
    "baseline": _BASELINE,
    "noise": _NOISE,
    "draws": _DRAWS,
}
_ROOFLINE: _Fields = {
    "where": _WHERE,
    "metric": {"type": "str", "default": "time", "doc": "the metric that is a time"},
    "method": _METHOD,
    "bytes": _must("the metric that counts the bytes that must move"),
    "flops": _must("the metric that counts floating-point operations"),
    "baseline": _must("the variant that reached the rates of this host"),
    "bandwidth": {"type": "list", "doc": "workloads that copy: the first that was timed gives the bandwidth"},
    "rates": {
        "type": "dict",
        "doc": "precision to workloads that multiply matrices: the first gives its rate",
    },
    "precision": _must("the condition of a cell that names its precision"),
}
_EFFECTS: _Fields = {
    "where": _WHERE,
    "workload": _WORKLOAD,
    "metric": _must("the metric"),
    "method": _METHOD,
    "unit": _must("the unit to show it in; `auto` chooses the one that reads best"),
    "baseline": _BASELINE,
    "noise": _NOISE,
    "draws": _DRAWS,
    "equal_within": {
        "type": "float",
        "at_least": 0,
        "default": 0.0,
        "doc": "without `noise`: relative differences up to this count as none",
    },
    "better": {
        "type": "str",
        "default": "lower",
        "one_of": ["lower", "higher", "neither"],
        "doc": "which values of the metric are better",
    },
}
_FACTORIAL: _Fields = {
    "where": _WHERE,
    "metric": {"type": "str", "default": "time", "doc": "the metric, of which less is better"},
    "method": _METHOD,
    "baseline": _BASELINE,
    "optimization": _must("the optimization whose variants are the combinations, named by factors and `_`"),
    "factors": {"type": "dict", "doc": "factor to its title, in the order in which variants name them"},
}
ANSWER: _Fields = {
    "finding": {
        "type": "list",
        "default": [],
        "doc": "the answer in a few words, for lists of reports: the first STATED with all its values",
    },
    "states": {
        "type": "list",
        "default": [],
        "doc": "sentences with recorded values, a STATED each, after what pays or how accurate it is",
    },
    "leave_out": {
        "type": "list",
        "default": [],
        "doc": "patterns of variants that are nothing to turn on, such as other links",
    },
    "assumes": {
        "type": "list",
        "default": [],
        "doc": "what the values rest on: an ASSUMED each, put together into a sentence",
    },
    "also": {
        "type": "list",
        "default": [],
        "doc": "other metrics to name with the effect, each an ALSO; where nothing pays, the variant with "
        "the least of the first one is named",
    },
}
ALSO: _Fields = {
    "metric": _must("the metric"),
    "method": _METHOD,
    "title": _must("its name in a sentence, in lower case"),
    "unit": {"type": "str", "default": "auto", "doc": "the unit to show it in"},
}
STATED: _Fields = {
    "text": _must("the sentence, with `{}` for each value; left out where one is missing"),
    "values": {"type": "list", "doc": "a PICKED each"},
}
PICKED: _Fields = {
    "workload": _must("the workload"),
    "optimization": _must("the variant"),
    "metric": _must("the metric"),
    "method": _text("its method"),
    "unit": {"type": "str", "default": "auto", "doc": "the unit to show it in; `auto` chooses"},
}
ASSUMED: _Fields = {
    "title": _must("its words, with `{}` for the value"),
    "field": _text("a field of the workload; either this or `metric`"),
    "metric": _text("a metric of the baseline"),
    "method": _text("its method"),
    "unit": _text("the unit to show it in; the one that reads best without it"),
}
FILE: _Fields = {
    "suite": _must("the suite's name"),
    "title": _must("the title of the report"),
    "question": _must("the question that the suite answers, in a paragraph"),
    "names": _map("titles, by NAMES; names that are listed come first, in this order"),
    "optimization_order": {"type": "list", "default": [], "doc": "variants that come first, in this order"},
    "answer": _map("what the sentences at the top name, an ANSWER"),
    "caveats": {
        "type": "list",
        "default": [],
        "doc": "limits of the results, a sentence or two each, shown at the end",
    },
    "blocks": {
        "type": "list",
        "doc": "the tables and figures in their order, each a BLOCK with the fields of its kind",
    },
}
NAMES: _Fields = {
    "workload": _map("identifier to title; along an axis, text in brackets is left out"),
    "method": _map("identifier to title"),
    "metric": _map("identifier to title"),
}
BLOCK: _Fields = {
    "kind": _must("one of the kinds below"),
    "id": _must("its anchor on the page, and the name of its figure's file"),
    "title": _must("its heading"),
    "text": _text("a paragraph above it"),
}
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
_KINDS: Mapping[str, _Fields] = {
    "verdicts": {},
    "table": {
        "where": _WHERE,
        "workload": _WORKLOAD,
        "rows": _KEY,
        "heading": _text("the heading of the first column"),
        "columns": {"type": "list", "doc": "a COLUMN each"},
        "terminal": _TERMINAL,
    },
    "effects": {
        **_EFFECTS,
        "conditions": _map("conditions of the record to show: name to heading"),
        "extra_metrics": _map(
            "other metrics to show: metric to heading, or to {title, unit, method}, see below"
        ),
        "training": _yes_no(
            "its rows are training steps: add tokens/s, TFLOP/s, MFU and peak GiB per device"
        ),
        "terminal": _TERMINAL,
    },
    "effect_plot": {**_EFFECTS, "x_title": _text("the title of the axis")},
    "speedups": {
        **_PAIRED,
        "where": _WHERE,
        "heading": _text("the heading of the first column"),
        "terminal": _TERMINAL,
    },
    "performance_portability": {
        **_PAIRED,
        "where": _WHERE,
        "work": _text("a metric of the baseline: the FLOP of one call, for architectural efficiency"),
        "peak": _text("a metric of the baseline: the rate that this device reaches, in FLOP/s"),
        "terminal": _TERMINAL,
    },
    "cascade": {**_PAIRED, "where": _WHERE, "top": _TOP},
    "isolated_vs_e2e": {
        **_PAIRED,
        "where": _WHERE,
        "heading": _text("the heading of the first column"),
        "rows": {"type": "dict", "doc": "label to {isolated, end_to_end}: two workloads"},
        "isolated": _must("the heading of the first"),
        "end_to_end": _must("the heading of the second"),
        "terminal": _TERMINAL,
    },
    "roofline": {**_ROOFLINE, "terminal": _TERMINAL},
    "roofline_plot": _ROOFLINE,
    "errors": {
        "where": _WHERE,
        "metric": _must("a relative error"),
        "headline": _text("the method named in the summary"),
        "headline_note": _text("a remark that the summary adds to it"),
        "within": {
            "type": "float",
            "at_least": 0,
            "default": 0.0,
            "doc": "an error that is small enough: the answer says how many cells have at most that",
        },
        "terminal": _TERMINAL,
    },
    "error_strip": {
        "where": _WHERE,
        "metric": _must("a relative error"),
        "x_title": _text("the title of the axis"),
    },
    "stack_values": {**_FACTORIAL, "workload": _WORKLOAD, "terminal": _TERMINAL},
    "stack_whole": {
        **_FACTORIAL,
        "heading": _text("the heading of the first column"),
        "baselines": {"type": "dict", "doc": "variant to its name: what all together is compared with"},
        "terminal": _TERMINAL,
    },
    "stack_pairs": {**_FACTORIAL, "workload": _WORKLOAD, "terminal": _TERMINAL},
    "waterfall": {**_FACTORIAL, "workload": _WORKLOAD},
    "failures": {},
    "bars": {
        "where": _WHERE,
        "workload": _WORKLOAD,
        "method": _METHOD,
        "stacks": {"type": "dict", "doc": "metric to its label, in the order of the stack"},
        "x_title": _text("the title of the axis"),
    },
    "lines": {
        "where": _WHERE,
        "line": {
            "type": "str",
            "default": "optimization",
            "one_of": ["optimization", "workload"],
            "doc": "what each line represents",
        },
        "x": {"type": "dict", "doc": "an AXIS"},
        "y": {"type": "dict", "doc": "an AXIS"},
        "references": _map("labelled horizontal lines: label to value"),
        "mark": _map("marks a point of each line with a ring: a MARK"),
    },
    "curves": {
        "where": _WHERE,
        "workload": _WORKLOAD,
        "x_metric": _must("the metric along x, on a logarithmic axis"),
        "y_metric": _must("the metric along y, on an axis that begins at 0"),
        "x_title": _text("the title of the x axis"),
        "y_title": _text("the title of the y axis"),
        "method": _METHOD,
        "band": _map("shades what lies between two methods of a variant: a BAND"),
        "dots": {"type": "list", "default": [], "doc": "points of other cells, a DOTS each"},
        "references": _map("labelled vertical lines: label to value"),
    },
    "what_if": {
        "where": _WHERE,
        "workload": _WORKLOAD,
        "optimization": {"type": "str", "default": "baseline", "doc": "the variant"},
        "metrics": {"type": "dict", "doc": "metric to {title, unit}"},
        "controls": {"type": "dict", "doc": "key to a CONTROL; keys in the order of the methods"},
        "terminal": _TERMINAL,
    },
    "scatter": {
        "where": _WHERE,
        "workload": _WORKLOAD,
        "x": {"type": "dict", "doc": "an AXIS"},
        "y": {"type": "dict", "doc": "an AXIS"},
    },
    "line_over_steps": {
        "where": _WHERE,
        "workload": _WORKLOAD,
        "metric": _must("the metric, whose samples are the steps"),
        "x_title": _text("the title of the x axis"),
        "y_title": _text("the title of the y axis"),
    },
    "stacked_timeline": {
        "where": _WHERE,
        "workload": _WORKLOAD,
        "optimization": _must("the variant"),
        "stacks": {"type": "dict", "doc": "metric to its label, in the order of the stack; samples in order"},
        "phases": _text("`<phases>/<name>` is the metric with the sample at which a phase begins"),
        "peak_note": _text("what begins the cell's note on the peak; the rest is written at the peak"),
        "x_title": _text("the title of the x axis"),
        "y_title": _text("the title of the y axis"),
    },
    "spans": {
        "where": _WHERE,
        "workload": _WORKLOAD,
        "begin": _must("the metric whose samples are the begins of spans; its method names the lane"),
        "end": _must("the metric whose samples are their ends, in the same order"),
        "x_title": _text("the title of the axis"),
    },
    "every_metric": {"terminal": _TERMINAL},
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
KINDS: Mapping[str, _Fields] = {
    kind: {
        **fields,
        **({} if kind in ("verdicts", "failures", "every_metric") else {"shown": _SHOWN}),
        **({"top": _TOP} if kind in _FIGURES else {}),
    }
    for kind, fields in _KINDS.items()
}
COLUMN: _Fields = {
    "title": _text("its heading; with `by`, `{}` is replaced by the name"),
    "by": {"type": "str", "default": "", "one_of": ["", *KEYS], "doc": "a column for each value of this key"},
    "metric": _text("the metric; either this, `claim` or `condition`"),
    "method": _text("its method"),
    "workload": _text("the workload, where the rows do not name it; by default the one that `where` names"),
    "optimization": _text("the variant, where the rows do not name it"),
    "unit": {"type": "str", "default": "1", "doc": "the unit to show it in; `auto` chooses"},
    "statistic": {
        "type": "str",
        "default": "median",
        "one_of": ["median", "mean", "min", "max"],
        "doc": "of all its samples",
    },
    "range": _yes_no(
        "in brackets the statistic's lowest and highest of single repeats; not with `per`, `relative_to`"
    ),
    "per": _text("a metric to divide by"),
    "relative_to": _text("a variant: show the change against it"),
    "speed_up": _yes_no("with `relative_to`: show how many times as fast instead of the change of time"),
    "draws": _DRAWS,
    "signed": _yes_no("write + before positive values"),
    "notes": _yes_no("a footnote with what the suite noted on the method"),
    "also": _map("a second value, in brackets: a COLUMN"),
    "claim": _text("instead of a metric, the id of a claim, with {workload} in it: the quoted value"),
    "condition": _text("instead of a metric, a condition of the record, as text"),
}
BAND: _Fields = {
    "optimization": _must("the variant"),
    "low": _must("the method of its lower end"),
    "high": _must("the method of its upper end"),
    "title": _must("what it is"),
}
DOTS: _Fields = {
    "title": _must("what they are"),
    "where": _WHERE,
    "x_method": _must("the method of the metric along x"),
    "y_method": _must("the method of the metric along y"),
}
CONTROL: _Fields = {
    "title": _must("its name"),
    "names": _map("value to how people read it; by default as recorded"),
    "start": _must("the value chosen at the beginning, as text"),
}
SHOWN_METRIC: _Fields = {
    "title": _must("its name"),
    "unit": {"type": "str", "default": "auto", "doc": "the unit to show it in; `auto` chooses"},
}
PAIR: _Fields = {"isolated": _must("a workload"), "end_to_end": _must("a workload")}
MARK: _Fields = {
    "metric": _must("a metric along x, of the first cell of the line that has it"),
    "method": _text("its method"),
    "title": _text("what the ring means, shown in its tooltip"),
}
AXIS: _Fields = {
    "metric": _text("the metric; either this or `field`"),
    "field": _text("a field of the workload"),
    "method": _text("the metric's method"),
    "per": _text("a metric to divide by"),
    "against": _text("a variant: the speed-up over it, with its interval"),
    "draws": _DRAWS,
    "ticks": {
        "type": "str",
        "default": "names",
        "one_of": ["names", "values"],
        "doc": "of x: the names of the points, or round values",
    },
    "title": _must("the title of the axis"),
}
