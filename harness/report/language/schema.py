"""How a field of conf/report/<suite>.yaml is declared, and the fields that several kinds of blocks have.

Declare the fields of conf/report/<suite>.yaml and of what its blocks consist of, with their descriptions.

`kinds` declares what each kind of block has.

docs/extend/report-language.md is generated from both by harness/report/language/kinds.py; a test
compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FieldSet = Mapping[str, Mapping[str, Any]]


def text(doc: str) -> dict[str, Any]:
    """Return a field of text that may be left out."""
    return {"type": "str", "default": "", "doc": doc}


def must(doc: str) -> dict[str, Any]:
    """Return a field of text that must be given."""
    return {"type": "str", "doc": doc}


def yes_no(doc: str) -> dict[str, Any]:
    """Return a field that is false where it is left out."""
    return {"type": "bool", "default": False, "doc": doc}


def mapping(doc: str) -> dict[str, Any]:
    """Return a field with keys of its own, empty where it is left out."""
    return {"type": "dict", "default": {}, "doc": doc}


KEYS = ("workload", "optimization", "method")
KEY = {"type": "str", "one_of": list(KEYS), "doc": "what the rows are: workload, optimization or method"}
WHERE = mapping(
    "the cells that it covers: `workload`, `optimization`, `method` to a pattern or a list of patterns "
    "(`fsdp*`, `!zero*`), any other key to the value of that field of the workload, or to "
    "patterns of its text"
)
WORKLOAD = text(
    "the workload that it covers, or the first one that was run; its title and text name it by `{workload}`"
)
SHOWN = yes_no(
    "in view on the page; where a suite marks no block, the first three are, and the rest is folded"
)
TOP = yes_no("the figure at the top, next to the answer; else the first plot of effects")
TERMINAL = yes_no("print it on the terminal too")
METHOD = must('the method of the metric; "" where it has only one')
BASELINE = must("the variant that the others are compared with")
NOISE = text("the variant that repeats the baseline: their difference is the noise")
DRAWS = yes_no(
    "rounds are independent: random draws, or fresh processes each; not timings of the same process"
)
PAIRED: FieldSet = {
    "metric": {"type": "str", "default": "time", "doc": "the metric, of which less is better"},
    "method": METHOD,
    "baseline": BASELINE,
    "noise": NOISE,
    "draws": DRAWS,
}
ROOFLINE: FieldSet = {
    "where": WHERE,
    "metric": {"type": "str", "default": "time", "doc": "the metric that is a time"},
    "method": METHOD,
    "bytes": must("the metric that counts the bytes that must move"),
    "flops": must("the metric that counts floating-point operations"),
    "baseline": must("the variant that reached the rates of this host"),
    "bandwidth": {"type": "list", "doc": "workloads that copy: the first that was timed gives the bandwidth"},
    "rates": {
        "type": "dict",
        "doc": "precision to workloads that multiply matrices: the first gives its rate",
    },
    "precision": must("the condition of a cell that names its precision"),
}
EFFECTS: FieldSet = {
    "where": WHERE,
    "workload": WORKLOAD,
    "metric": must("the metric"),
    "method": METHOD,
    "unit": must("the unit to show it in; `auto` chooses the one that reads best"),
    "baseline": BASELINE,
    "noise": NOISE,
    "draws": DRAWS,
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
FACTORIAL: FieldSet = {
    "where": WHERE,
    "metric": {"type": "str", "default": "time", "doc": "the metric, of which less is better"},
    "method": METHOD,
    "baseline": BASELINE,
    "optimization": must("the optimization whose variants are the combinations, named by factors and `_`"),
    "factors": {"type": "dict", "doc": "factor to its title, in the order in which variants name them"},
}


ANSWER: FieldSet = {
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
    "over": mapping(
        "fairer baselines than the block's: a pattern of workloads to variants; what pays most is stated "
        "over the first of them with a value, then over the baseline"
    ),
    "set_up": {
        "type": "list",
        "default": [],
        "doc": "what of the set-up decides the size of the effect: a clause of the first sentence, the first "
        "CLAUSE with all its values",
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
ALSO: FieldSet = {
    "metric": must("the metric"),
    "method": METHOD,
    "title": must("its name in a sentence, in lower case"),
    "unit": {"type": "str", "default": "auto", "doc": "the unit to show it in"},
}
STATED: FieldSet = {
    "text": must("the sentence, with `{}` for each value; left out where one is missing"),
    "values": {"type": "list", "doc": "a PICKED each"},
}
CLAUSE: FieldSet = {
    "text": must("what follows the baseline's name, or the first sentence, with `{}` for each value"),
    "values": {"type": "list", "doc": "a PICKED each"},
    "workload": {"type": "str", "default": "*", "doc": "a pattern: the workloads of which it speaks"},
}
PICKED: FieldSet = {
    "workload": text("the workload; of a CLAUSE by default the answer's"),
    "optimization": text("the variant; of a CLAUSE by default the one that pays most"),
    "metric": text("the metric; either this or `condition`"),
    "condition": text("a condition of the record, as text"),
    "method": text("its method"),
    "unit": {"type": "str", "default": "auto", "doc": "the unit to show it in; `auto` chooses"},
    "over": text("a variant: the speed-up over it, or the change against it, with its interval"),
    "draws": DRAWS,
    "per": text("a metric of the same cell to divide by: shown as a factor"),
    "plus": text("with `per`: a metric of the same cell to add before dividing"),
}
ASSUMED: FieldSet = {
    "title": must("its words, with `{}` for the value"),
    "field": text("a field of the workload; either this or `metric`"),
    "metric": text("a metric of the baseline"),
    "method": text("its method"),
    "unit": text("the unit to show it in; the one that reads best without it"),
}
FILE: FieldSet = {
    "suite": must("the suite's name"),
    "title": must("the title of the report"),
    "question": must("the question that the suite answers, in a paragraph"),
    "names": mapping("titles, by NAMES; names that are listed come first, in this order"),
    "optimization_order": {"type": "list", "default": [], "doc": "variants that come first, in this order"},
    "answer": mapping("what the sentences at the top name, an ANSWER"),
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
NAMES: FieldSet = {
    "workload": mapping("identifier to title; along an axis, text in brackets is left out"),
    "method": mapping("identifier to title"),
    "metric": mapping("identifier to title"),
}
BLOCK: FieldSet = {
    "kind": must("one of the kinds below"),
    "id": must("its anchor on the page, and the name of its figure's file"),
    "title": must("its heading"),
    "text": text("a paragraph above it"),
}
COLUMN: FieldSet = {
    "title": text("its heading; with `by`, `{}` is replaced by the name"),
    "by": {"type": "str", "default": "", "one_of": ["", *KEYS], "doc": "a column for each value of this key"},
    "metric": text("the metric; either this, `claim` or `condition`"),
    "method": text("its method"),
    "workload": text("the workload, where the rows do not name it; by default the one that `where` names"),
    "optimization": text("the variant, where the rows do not name it"),
    "unit": {"type": "str", "default": "1", "doc": "the unit to show it in; `auto` chooses"},
    "statistic": {
        "type": "str",
        "default": "median",
        "one_of": ["median", "mean", "min", "max"],
        "doc": "of all its samples",
    },
    "range": yes_no(
        "in brackets the statistic's lowest and highest of single repeats; not with `per`, `relative_to`"
    ),
    "per": text("a metric to divide by"),
    "relative_to": text("a variant: show the change against it"),
    "speed_up": yes_no("with `relative_to`: show how many times as fast instead of the change of time"),
    "draws": DRAWS,
    "signed": yes_no("write + before positive values"),
    "notes": yes_no("a footnote with what the suite noted on the method"),
    "also": mapping("a second value, in brackets: a COLUMN"),
    "claim": text("instead of a metric, the id of a claim, with {workload} in it: the quoted value"),
    "condition": text("instead of a metric, a condition of the record, as text"),
}
BAND: FieldSet = {
    "optimization": must("the variant"),
    "low": must("the method of its lower end"),
    "high": must("the method of its upper end"),
    "title": must("what it is"),
}
DOTS: FieldSet = {
    "title": must("what they are"),
    "where": WHERE,
    "x_method": must("the method of the metric along x"),
    "y_method": must("the method of the metric along y"),
}
ONE_LINE: FieldSet = {
    "title": must("what it represents"),
    "where": WHERE,
}
CONTROL: FieldSet = {
    "title": must("its name"),
    "names": mapping("value to how people read it; by default as recorded"),
    "start": must("the value chosen at the beginning, as text"),
}
SHOWN_METRIC: FieldSet = {
    "title": must("its name"),
    "unit": {"type": "str", "default": "auto", "doc": "the unit to show it in; `auto` chooses"},
}
PAIR: FieldSet = {"isolated": must("a workload"), "end_to_end": must("a workload")}
MARK: FieldSet = {
    "metric": must("a metric along x, of the first cell of the line that has it"),
    "method": text("its method"),
    "title": text("what the ring means, shown in its tooltip"),
}
AXIS: FieldSet = {
    "metric": text("the metric; either this or `field`"),
    "field": text("a field of the workload"),
    "method": text("the metric's method"),
    "per": text("a metric to divide by"),
    "against": text("a variant: the speed-up over it, with its interval"),
    "draws": DRAWS,
    "ticks": {
        "type": "str",
        "default": "names",
        "one_of": ["names", "values"],
        "doc": "of x: the names of the points, or round values",
    },
    "title": must("the title of the axis"),
}
