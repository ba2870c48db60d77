"""Read conf/report/<suite>.yaml: which tables and figures a suite's report has, as data.

What only one suite shows is a function of the suite's own report.py, named by its block.
docs/extend/report-language.md describes the fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from harness.claims.load import read_yaml, titles_of
from harness.config.optimizations import CONF, titles_of_rows, workloads_of
from harness.config.validation import ConfigError, as_mapping

REPORTS = CONF / "report"

T = TypeVar("T", bound=Struct)

Where = dict[str, Any]
"""Which cells: `workload`, `optimization` or `method` to a pattern or a list of them (`fsdp*`, `!zero*`); any
other key is a field of the workload and its value, or patterns of its text. No pattern of names leaves out a
user's own workload."""

Key = Literal["workload", "optimization", "method"]
Better = Literal["lower", "higher", "neither"]
Names = Mapping[Literal["workload", "method", "metric"], Mapping[str, str]]


class _Declared(Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of a report; what is not declared is refused."""


class Pairing(NamedTuple):
    """What is compared with what: a metric of each variant with that of the baseline."""

    metric: str
    method: str
    baseline: str
    noise: str = ""  # the variant that repeats the baseline: their difference is the noise
    draws: bool = False  # rounds are independent: random draws, or fresh processes each
    equal_within: float = 0.0  # without `noise`: relative differences up to this count as none
    better: Better = "lower"


class Shown(_Declared, frozen=True, kw_only=True):
    """A value of a cell and how it is shown; the cell is that of the place where it is not named."""

    title: str = ""
    metric: str = ""
    condition: str = ""  # of the record, as text, in place of a metric
    field: str = ""  # of the workload, in place of a metric
    method: str = ""
    workload: str = ""
    optimization: str = ""
    unit: str = "auto"  # the one that reads best
    per: str = ""  # a metric of the same cell to divide by
    over: str = ""  # a variant: the speed-up over it, or the change against it, with its interval
    draws: bool = False  # of `over`: see Pairing

    def __post_init__(self) -> None:
        if sum(bool(getattr(self, name, "")) for name in ("metric", "condition", "field", "claim")) != 1:
            raise ValueError("expected one of metric, condition, field and claim")


class Block(_Declared, frozen=True, kw_only=True):
    """One table or figure of a report."""

    id: str  # its anchor on the page, and the name of its figure's file
    title: str
    text: str = ""  # a paragraph above it
    where: Where = {}
    workload: str = ""  # the workload that it is about, or the first one that was run
    shown: bool = False  # in view on the page; where none is, the first three are
    top: bool = False  # next to the answer: a figure on the page, a table on the terminal


class PairedBlock(Block, frozen=True, kw_only=True):
    """A block that compares variants with the baseline; see `Pairing`."""

    metric: str = "time"
    method: str = ""
    baseline: str = "baseline"
    noise: str = ""
    draws: bool = False
    equal_within: float = 0.0
    better: Better = "lower"

    @property
    def pairing(self) -> Pairing:
        """Return what it compares with what."""
        return Pairing(*(getattr(self, name) for name in Pairing._fields))


class Metric(_Declared, frozen=True, kw_only=True):
    """A metric in a column of its own."""

    title: str
    unit: str = "auto"
    method: str = ""


class EffectPlotBlock(PairedBlock, frozen=True, kw_only=True):
    """Every variant's ratio to the baseline: a dot with its interval as a whisker, sorted."""

    x_title: str = ""


class EffectsBlock(PairedBlock, frozen=True, kw_only=True):
    """Every variant compared with the baseline: its metric, the change, the effect."""

    unit: str = "auto"
    conditions: dict[str, str] = {}  # of the record: name to heading
    extra_metrics: dict[str, str | Metric] = {}  # to a heading, or to more
    training: bool = False  # its rows are training steps: add tokens/s, TFLOP/s, MFU and peak memory
    plot: str = ""  # the title of the same ratios, drawn


class SpeedupsBlock(PairedBlock, frozen=True, kw_only=True):
    """The speed-up of each variant, in a column each, on each workload, in a row each."""

    heading: str = "Workload"


class Column(Shown, frozen=True, kw_only=True):
    """A column of a table: a metric, a condition of the record, or a claim's value."""

    by: Key | Literal[""] = ""  # a column for each value of this key, which is `{}` in the title
    claim: str = ""  # the id of a claim, with {workload} in it: the quoted value
    statistic: Literal["median", "mean", "min", "max"] = "median"
    range: bool = False  # in brackets the statistic's lowest and highest of single repeats
    relative_to: str = ""  # a variant: the change against it, of a time too
    signed: bool = False
    notes: bool = False  # a footnote with what the suite noted on the method
    also: Column | None = None  # a second value, in brackets: by default of the same metric in its unit


class TableBlock(Block, frozen=True, kw_only=True):
    """Rows by the values of one key; each column shows a value of its own."""

    rows: dict[Key, str]  # the key to the heading of its column
    columns: list[Column]

    @property
    def key(self) -> Key:
        """Return what the rows are."""
        return next(iter(self.rows))


class ErrorsBlock(Block, frozen=True, kw_only=True):
    """How far each method is off: median, worst, and how often it underestimates."""

    metric: str
    headline: str = ""  # the method named in the summary
    headline_note: str = ""
    within: float = 0.0  # an error that is small enough: the answer says how many cells have at most that


class ErrorStripBlock(Block, frozen=True, kw_only=True):
    """The error of each method, a point per cell, about zero."""

    metric: str
    x_title: str = ""


class BarsBlock(Block, frozen=True, kw_only=True):
    """One bar per variant, stacked by metric, the shortest first."""

    stacks: dict[str, str]  # metric to its label, in the order of the stack
    method: str = ""
    x_title: str = ""


class Axis(Shown, frozen=True, kw_only=True):
    """What is along an axis: a metric, or a field of the workload."""

    ticks: Literal["names", "values"] = "names"  # of x: the names of the points, or round values


class ChosenLine(_Declared, frozen=True, kw_only=True):
    """A line of chosen cells."""

    title: str
    where: Where


class LinesBlock(Block, frozen=True, kw_only=True):
    """One line per variant over its workloads, per workload over its variants, or of chosen cells."""

    x: Axis
    y: Axis
    line: Literal["optimization", "workload"] = "optimization"
    series: list[ChosenLine] = []
    references: dict[str, float] = {}  # label to the value of a horizontal line

    def __post_init__(self) -> None:
        if self.line == "workload" and self.x.field:
            raise ValueError("x: a workload's field is the same all along its line; expected metric")


class InputControl(_Declared, frozen=True, kw_only=True):
    """A choice among the recorded values of an input."""

    title: str
    start: str  # the value chosen at the beginning
    names: dict[str, str] = {}  # value to how people read it


class WhatIfBlock(Block, frozen=True, kw_only=True):
    """Values of metrics whose methods are combinations of inputs, `key=value, key=value`."""

    metrics: dict[str, Metric]
    controls: dict[str, InputControl]  # in the order of the methods
    optimization: str = "baseline"


class OwnBlock(Block, frozen=True, kw_only=True):
    """What a function of the suite's report.py makes of the block, the report's spec and the run's values."""

    function: str


class OwnTableBlock(OwnBlock, frozen=True, kw_only=True):
    """A table of the suite's own."""


class OwnFigureBlock(OwnBlock, frozen=True, kw_only=True):
    """A figure of the suite's own."""

    over_time: list[str] = []  # metrics whose samples are a course over time


KINDS: Mapping[str, type[Block]] = {
    "table": TableBlock,
    "effects": EffectsBlock,
    "effect_plot": EffectPlotBlock,
    "speedups": SpeedupsBlock,
    "errors": ErrorsBlock,
    "error_strip": ErrorStripBlock,
    "bars": BarsBlock,
    "lines": LinesBlock,
    "what_if": WhatIfBlock,
    "own_table": OwnTableBlock,
    "own_figure": OwnFigureBlock,
}


class Picked(Shown, frozen=True, kw_only=True):
    """A value of a sentence; of a clause it is by default the answer's workload and what pays most."""

    plus: str = ""  # with `per`: a metric of the same cell to add before dividing


class Clause(_Declared, frozen=True, kw_only=True):
    """A sentence or clause with `{}` for each value, left out where one is missing."""

    text: str
    values: list[Picked]
    workload: str = "*"  # of a clause on the set-up: the workloads that it is about

    def __post_init__(self) -> None:
        if self.text.count("{}") != len(self.values):
            raise ValueError(f"text: expected as many {{}} as values ({len(self.values)})")


class AnswerWords(_Declared, frozen=True, kw_only=True):
    """What the sentences at the top name."""

    finding: list[Clause] = []  # the answer in a few words, for lists of reports: the first with all values
    states: list[Clause] = []  # sentences after what pays or how accurate it is
    leave_out: list[str] = []  # patterns of variants that are nothing to turn on, such as other links
    over: dict[str, list[str]] = {}  # a pattern of workloads to fairer baselines: the first with a value
    set_up: list[Clause] = []  # what of the set-up decides the size of the effect: the first with all values
    assumes: list[Shown] = []  # what the values rest on: their titles have `{}` for the value
    also: list[Shown] = []  # other metrics to name with the effect: their titles are in lower case

    def __post_init__(self) -> None:
        picked = (one for clause in (*self.finding, *self.states) for one in clause.values)
        if not all(one.workload and one.optimization for one in picked):
            raise ValueError("finding, states: expected workload and optimization of each value")


class Heading(_Declared, frozen=True, kw_only=True):
    """A title, and a paragraph below it."""

    title: str = ""
    text: str = ""


class _File(_Declared, frozen=True, kw_only=True):
    title: str
    question: str
    blocks: list[dict[str, Any]]
    caveats: list[str] = []
    answer: AnswerWords = AnswerWords()
    optimization_order: list[str] = []  # variants that come first, in this order
    names: Names = {}
    workload: str = ""  # of every block whose title names {workload}
    compare: dict[str, Any] = {}  # fields of every block that compares variants
    each: dict[str, dict[str, Any]] = {}  # a kind of blocks to fields of all of them
    claims: Heading = Heading()
    failures: Heading = Heading()
    shown: list[str] = []  # ids of the blocks that are in view
    top: str = ""  # the id of the block next to the answer


FAILURES = Heading(
    title="Cells without a result",
    text="Each with its reason. None of them counts as a value in any table or figure.",
)


class Spec(NamedTuple):
    """What a suite's report holds."""

    suite: str
    title: str
    question: str
    names: Mapping[str, Mapping[str, str]]
    blocks: tuple[Block, ...]  # none: every metric, see `harness.report.report_data`
    order: Mapping[str, tuple[str, ...]] = {}
    caveats: tuple[str, ...] = ()
    answer: AnswerWords = AnswerWords()
    claims: Heading = Heading(title="Claims")
    failures: Heading = FAILURES

    def name(self, key: str, identifier: str) -> str:
        """Return how people know `identifier`, a value of `key`; a metric without a title by its words."""
        words = identifier.replace("_", " ").capitalize() if key == "metric" else identifier
        return self.names.get(key, {}).get(identifier, words)

    @property
    def ranking(self) -> dict[str, list[str]]:
        """Return, for each key, the names that come first, in their order."""
        own = {key: list(names) for key, names in self.names.items()}
        return {**own, **{key: list(names) for key, names in self.order.items()}}


def load_spec(
    suite: str, titles: Mapping[str, str] | None = None, folder: Path | None = None, question: str = ""
) -> Spec:
    """Return the report of `suite`, its variants named by `titles`; raises ConfigError.

    `question` is the title where the suite has no report of its own.
    """
    path = (folder or REPORTS) / f"{suite}.yaml"
    named = {"optimization": dict(titles or {})}
    if rows := titles_of_rows(suite):
        named["workload"] = rows
    if not path.exists():
        return Spec(suite, question or suite, "", named, (), {"optimization": ("baseline",)})
    data = _converted(path.name, dict(read_yaml(path)), _File)
    blocks = [
        block for i, one in enumerate(data.blocks) for block in _blocks(f"{path.name}.blocks[{i}]", one, data)
    ]
    ids = [block.id for block in blocks]
    if doubles := {one for one in ids if ids.count(one) > 1}:
        raise ConfigError(f"{path.name}.blocks: id {min(doubles)!r} is used twice")
    if unknown := {*data.shown, data.top} - {*ids, ""}:
        raise ConfigError(f"{path.name}: no block has the id {min(unknown)!r}, which is to be shown")
    names = {**{str(key): one for key, one in data.names.items()}, **named}
    names["workload"] = titles_of(
        f"{path.name}.names.workload", names.get("workload", {}), workloads_of(suite)
    )
    return Spec(
        suite,
        data.title,
        data.question,
        names,
        tuple(replace(one, shown=one.id in data.shown, top=one.id == data.top) for one in blocks),
        {"optimization": tuple(data.optimization_order or ("baseline",))},
        tuple(data.caveats),
        data.answer,
        Heading(title=data.claims.title or "The claims", text=data.claims.text),
        Heading(title=data.failures.title or FAILURES.title, text=data.failures.text or FAILURES.text),
    )


def _blocks(where: str, data: Any, file: _File) -> list[Block]:
    """Return a block with the fields that the file gives all of its kind, and its plot."""
    given = dict(as_mapping(where, data))
    kinds = [key for key in given if key in KINDS]
    if len(kinds) != 1:
        raise ConfigError(f"{where}: {', '.join(given)}; expected one of {', '.join(KINDS)}, with an id")
    id, kind = given.pop(kinds[0]), KINDS[kinds[0]]
    common: dict[str, Any] = dict(file.compare) if issubclass(kind, PairedBlock) else {}
    common |= file.each.get(kinds[0], {})
    common |= {"workload": file.workload} if "{workload}" in str(given.get("title")) else {}
    common |= {"function": id} if issubclass(kind, OwnBlock) else {}
    if isinstance(given.get("columns"), list):
        given["columns"] = [_with_metric(column) for column in given["columns"]]
    block = _converted(f"{where} ({id})", {"id": id, **common, **given}, kind)
    if not isinstance(block, EffectsBlock) or not block.plot:
        return [block]
    return [block, plot_of(block, "effects", block.plot)]


def _with_metric(column: Any) -> Any:
    """Return a column whose `also` has its metric and unit, where that names neither."""
    also = column.get("also") if isinstance(column, dict) else None
    if not isinstance(also, dict) or also.keys() & {"metric", "claim"}:
        return column
    own = {name: column[name] for name in ("metric", "unit") if name in column}
    return {**column, "also": {**own, **also}}


def plot_of(block: EffectsBlock, id: str, title: str) -> EffectPlotBlock:
    """Return the figure of a table's ratios."""
    alike = {name: getattr(block, name) for name in EffectPlotBlock.__struct_fields__ if hasattr(block, name)}
    return EffectPlotBlock(**{**alike, "id": id, "title": title, "text": ""})


def _converted(where: str, data: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}") from None
