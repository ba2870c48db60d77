"""How a field of conf/report/<suite>.yaml is declared, and the fields that several kinds of blocks have."""

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
