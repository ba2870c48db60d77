"""Put the values of an answer into words: what a variant gains, changes, and what it is compared with.

Fill in the sentences and clauses of conf/report/ that state recorded values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from harness.report.comparison import Comparison, compared, compile_cost
from harness.report.report_data import ReportData
from harness.report.results import Value
from harness.report.spec import Also, Clause, PairedBlock, Pairing, Picked
from harness.report.tables import percent, show
from harness.units import best_unit, human, in_unit, marked, times


def stated(data: ReportData, sentences: Sequence[Clause]) -> Iterator[str]:
    """Yield the sentences of conf/report/; none of which a value is missing."""
    for one in sentences:
        if (text := _filled(data, one, "", "")) is not None:
            yield text


def set_up(data: ReportData, workload: str, variant: str) -> str:
    """Return what of the set-up decides the size of the effect, as a clause; "" where nothing is declared."""
    for one in data.spec.answer.set_up:
        if fnmatchcase(workload, one.workload):
            text = _filled(data, one, workload, variant)
            if text is not None:
                return text
    return ""


def _filled(data: ReportData, one: Clause, workload: str, variant: str) -> str | None:
    """Return the text with its values; None where one is missing."""
    values = [_shown(data, picked, workload, variant) for picked in one.values]
    return one.text.format(*values) if all(values) else None


def _shown(data: ReportData, picked: Picked, workload: str, variant: str) -> str:
    """Return a PICKED as text; "" where it is missing."""
    place = picked.workload or workload, picked.optimization or variant
    if picked.condition:
        return data.index.condition(*place, picked.condition)
    metric, method = picked.metric, picked.method
    if picked.over:
        comparison = compared(data.index, *place, Pairing(metric, method, picked.over, draws=picked.draws))
        return comparison.text if comparison else ""
    value = data.index.get(*place, metric, method)
    if value is None or not picked.per:
        return show(value, picked.unit) if value else ""
    names = [name for name in (picked.plus, picked.per) if name]
    *plus, per = (data.index.get(*place, name, method) for name in names)
    if per is None or None in plus:
        return ""
    whole = value.median + sum(one.median for one in plus if one)
    return marked(times(whole / per.median), per.origin)


class VariantEffect(NamedTuple):
    """One variant on the workload of the answer; `comparison` is None where none could be made."""

    name: str
    title: str
    comparison: Comparison | None
    ranks: str  # "" where it runs on as many as the baseline

    @property
    def size(self) -> str:
        """Return the speed-up or the change, without its interval; "" without a comparison."""
        if self.comparison is None:
            return ""
        ratio = self.comparison.ratio.value
        return times(1 / ratio) if self.comparison.unit == "s" else percent(ratio - 1, True)

    @property
    def effect(self) -> str:
        """Return pays, costs, no difference or undecided; "" without a comparison."""
        return self.comparison.effect if self.comparison else ""


def over_fairer(
    data: ReportData, block: PairedBlock, workload: str, variant: VariantEffect
) -> tuple[str, Comparison] | None:
    """Return the fairer baseline that conf/report/ names for this workload, and the variant over it.

    The noise was measured on the block's own baseline, so here an interval that excludes 1 decides.
    """
    for pattern, names in data.spec.answer.over.items():
        for name in names if fnmatchcase(workload, pattern) else ():
            pairing = block.pairing._replace(baseline=name, noise="")
            comparison = compared(data.index, workload, variant.name, pairing)
            if name != variant.name and comparison:
                return name, comparison
    return None


def gain(data: ReportData, block: PairedBlock, workload: str, variant: VariantEffect) -> str:
    """Return by how much a variant pays over what, and what it does to the other metrics of the answer."""
    comparison, spec = variant.comparison, data.spec
    assert comparison is not None
    base = spec.name("optimization", block.baseline)
    fairer = over_fairer(data, block, workload, variant)
    clause = set_up(data, workload, variant.name)
    paid_over = block.pairing
    if comparison.unit == "s":
        gained = f"{comparison.text} the speed of {base}"
        if fairer:
            name, over = fairer
            paid_over = block.pairing._replace(baseline=name, noise="")
            fair = spec.name("optimization", name)
            gained = f"{over.text} the speed of {fair}, {comparison.text} that of {base}"
    else:
        place = (block.metric, block.method)
        ours, other = (data.index.get(workload, one, *place) for one in (variant.name, block.baseline))
        assert ours is not None
        assert other is not None
        change = percent(comparison.ratio.value - 1, True)
        pair = instead_of(ours, other, getattr(block, "unit", "auto"))
        gained = f"{spec.name('metric', block.metric).lower()} {pair} with {base}, {change}"
    cost = compile_cost(data.index, workload, variant.name, paid_over) if comparison.unit == "s" else ""
    changes = [changed(data, workload, variant.name, block.baseline, one) for one in spec.answer.also]
    return "; ".join([", ".join(filter(None, [gained, clause])), *filter(None, [cost, *changes])])


def shown_in(value: Value, unit: str, like: Value | None = None) -> str:
    """Return a value in `unit`, or where both are less than one of it in the unit that reads best."""
    largest = max(value.median, like.median if like else 0.0)
    large = unit != "auto" and in_unit(largest, value.unit, unit) >= 1
    shown = unit if large else best_unit(largest, value.unit)
    return marked(human(value.median, value.unit, shown), value.origin)


def instead_of(ours: Value, other: Value, unit: str) -> str:
    """Return `1 GB instead of 2 GB`: bytes in one unit."""
    if ours.unit != "B":
        return f"{shown_in(ours, unit)} instead of {shown_in(other, unit)}"
    return f"{shown_in(ours, unit, other)} instead of {shown_in(other, unit, ours)}"


def values_of(data: ReportData, block: PairedBlock, workload: str, variants: Sequence[VariantEffect]) -> str:
    """Return the metric of each variant that has it, without a comparison."""
    unit = getattr(block, "unit", "auto")  # a block of speed-ups shows times in any
    found = ((one, data.index.get(workload, one.name, block.metric, block.method)) for one in variants)
    return ", ".join(f"{shown_in(value, unit)} with {one.title}" for one, value in found if value)


def changed(data: ReportData, workload: str, variant: str, baseline: str, also: Also) -> str:
    """Return another metric of the variant and of the baseline's; "" where either lacks it."""
    place = (also.metric, also.method)
    ours, other = (data.index.get(workload, one, *place) for one in (variant, baseline))
    if ours is None:
        return ""
    unit = "1" if ours.unit == "1" else also.unit
    shown = shown_in(ours, unit) if other is None else instead_of(ours, other, unit)
    return f"{also.title} {shown}"
