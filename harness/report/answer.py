"""Answer a suite's question at the top of its report: what pays, what is undecided, what was not compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from harness.optimizations import AGAIN
from harness.records import Status
from harness.report.answer_by_metric import by_metric
from harness.report.errors import error_rows
from harness.report.report_data import ReportData
from harness.report.result_index import Value
from harness.report.spec import DEFAULT_BLOCKS, ReportBlock
from harness.report.speedup import Comparison, compared, compile_cost, why_none
from harness.report.tables import percent
from harness.units import best_unit, counted, human, in_unit, marked, times

NAMED = 3
"""So many of those that pay, or are undecided, are named."""


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


def answer(data: ReportData) -> list[str]:
    """Return one to four sentences; those about wrong results come first."""
    return [*wrong_results(data), *what_pays(data)]


def what_pays(data: ReportData) -> list[str]:
    """Return the answer without what is wrong."""
    return by_metric(data) if data.spec.blocks == DEFAULT_BLOCKS else _what_pays(data)


def finding(data: ReportData) -> str:
    """Return the answer in a few words, for a list of reports."""
    block = answer_block(data)
    sentences = what_pays(data)
    if block is None or data.spec.blocks == DEFAULT_BLOCKS:
        return sentences[0].removesuffix(".") if sentences else "no value"
    workload = data.index.names("workload", block.fields["where"], block.fields["metric"])[0]
    paying = [one for one in _variants(data, block, workload) if one.effect == "pays"]
    alike = _best_first([one for one in paying if not one.ranks]) or _best_first(paying)
    if not alike:
        return sentences[-1].partition("; ")[0].removesuffix(".")
    best = alike[0]
    on = f"{data.spec.name('workload', workload)}{f', {best.ranks}' if best.ranks else ''}"
    assert best.comparison is not None
    if best.comparison.unit == "s":
        return f"On {on}, {best.title} is {best.size} as fast"
    metric = data.spec.name("metric", block.fields["metric"])
    return f"On {on}, {best.title}: {metric.lower()} {best.size}"


def wrong_results(data: ReportData) -> list[str]:
    """Return in a sentence which variants computed something else than the baseline, if any did."""
    wrong: dict[str, set[str]] = {}
    for record in data.index.records:
        if record.status == Status.WRONG_RESULT:
            wrong.setdefault(record.cell.optimization, set()).add(record.cell.workload)
    if not wrong:
        return []
    each = [
        f"{data.spec.name('optimization', one)} on {counted(len(on), 'workload')}"
        for one, on in wrong.items()
    ]
    return [f"Wrong results: {', '.join(each)}. They count as no value."]


def answer_block(data: ReportData) -> ReportBlock | None:
    """Return the block of which the answer speaks: the first about an effect that has a value in this run."""
    kinds = ("effects", "speedups")
    blocks = [
        one for one in data.blocks if one.kind in kinds and one.fields.get("better", "lower") == "lower"
    ]
    for block in blocks:
        if data.index.names("workload", block.fields["where"], block.fields["metric"]):
            return block
    return None


def _what_pays(data: ReportData) -> list[str]:
    block = answer_block(data)
    if block is None:
        return _accuracy(data)
    workload = data.index.names("workload", block.fields["where"], block.fields["metric"])[0]
    on = f"On {data.spec.name('workload', workload)}"
    variants = list(_variants(data, block, workload))
    alike = [one for one in variants if not one.ranks]
    paying = _best_first([one for one in alike if one.effect == "pays"])
    undecided = _best_first([one for one in alike if one.effect == "undecided"])
    sentences = []
    if paying:
        first, *rest = paying
        sentences.append(f"{on}, {first.title} pays most: {_gain(data, block, workload, first)}.")
        if rest:
            sentences.append(f"Also: {_listed(rest)}.")
    elif tried := [one for one in alike if one.comparison]:
        sentences += _none_pays(data, block, workload, tried, len(undecided))
    if undecided:
        sentences.append(f"Undecided: {_listed(undecided)}{_what_decides(undecided[:NAMED])}.")
    if other := _best_first([one for one in variants if one.ranks and one.effect == "pays"]):
        best = other[0]
        sentences.append(f"{on}, {best.title} on {best.ranks}: {_gain(data, block, workload, best)}.")
    lacking = [one for one in variants if one.comparison is None]
    if lacking and len(lacking) == len(variants):
        reason = why_none(data.index, workload, lacking[0].name, block.fields)[1]
        values = _values(data, block, workload, lacking[:NAMED])
        metric = data.spec.name("metric", block.fields["metric"]).lower()
        begin = f"{on}, {metric} is {values}; no" if values else f"{on}, no"
        sentences.append(f"{begin} variant could be compared with the baseline ({reason}).")
    elif lacking and not paying:
        sentences.append(f"{counted(len(lacking), 'variant')} could not be compared here.")
    return sentences or [f"{on}, only the baseline was run."]


def _variants(data: ReportData, block: ReportBlock, workload: str) -> Iterator[VariantEffect]:
    fields, index = block.fields, data.index
    ranks = index.condition(workload, fields["baseline"], "ranks")
    left_out = [fields["baseline"], fields.get("noise", ""), AGAIN, *data.spec.answer["leave_out"]]
    for name in index.names("optimization", fields["where"]):
        if (workload, name) in index.cells and not any(fnmatchcase(name, one) for one in left_out):
            own = index.condition(workload, name, "ranks")
            other = counted(int(own), "rank") if own.isdigit() and own != ranks else ""
            yield VariantEffect(
                name, data.spec.name("optimization", name), compared(index, workload, name, fields), other
            )


def _best_first(variants: Sequence[VariantEffect]) -> list[VariantEffect]:
    return sorted(variants, key=lambda one: one.comparison.ratio.value if one.comparison else 1.0)


def _listed(variants: Sequence[VariantEffect]) -> str:
    named = [f"{one.title} {one.comparison.text}" for one in variants[:NAMED] if one.comparison]
    more = len(variants) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _what_decides(undecided: Sequence[VariantEffect]) -> str:
    """Return how many repeats would decide the most of them, and whether the machine was busy."""
    comparisons = [one.comparison for one in undecided if one.comparison]
    most = max(comparisons, key=lambda one: one.more_repeats or 0)
    return f"; {most.undecided}" if most.undecided else ""


def _gain(data: ReportData, block: ReportBlock, workload: str, variant: VariantEffect) -> str:
    """Return by how much a variant pays, and what it does to the other metrics of the answer."""
    comparison, fields, spec = variant.comparison, block.fields, data.spec
    assert comparison is not None
    base = spec.name("optimization", fields["baseline"])
    if comparison.unit == "s":
        gained = f"{comparison.text} the speed of {base}"
        if cost := compile_cost(data.index, workload, variant.name, fields):
            gained += f"; {cost}"
    else:
        place = (fields["metric"], fields["method"])
        ours, other = (data.index.get(workload, one, *place) for one in (variant.name, fields["baseline"]))
        assert ours is not None
        assert other is not None
        change = percent(comparison.ratio.value - 1, True)
        gained = (
            f"{spec.name('metric', fields['metric']).lower()} {_in_unit(ours, fields['unit'])} instead of "
            f"{_in_unit(other, fields['unit'])} ({change})"
        )
    changes = [_changed(data, workload, variant.name, fields["baseline"], one) for one in spec.answer["also"]]
    return "; ".join([gained, *filter(None, changes)])


def _in_unit(value: Value, unit: str) -> str:
    large = unit != "auto" and in_unit(value.median, value.unit, unit) >= 1
    shown = unit if large else best_unit(value.median, value.unit)
    return marked(human(value.median, value.unit, shown), value.origin)


def _values(data: ReportData, block: ReportBlock, workload: str, variants: Sequence[VariantEffect]) -> str:
    """Return the metric of each variant that has it, without a comparison."""
    fields = block.fields
    found = (
        (one, data.index.get(workload, one.name, fields["metric"], fields["method"])) for one in variants
    )
    return ", ".join(f"{_in_unit(value, fields['unit'])} with {one.title}" for one, value in found if value)


def _changed(data: ReportData, workload: str, variant: str, baseline: str, also: Mapping[str, Any]) -> str:
    """Return another metric of the variant and of the baseline's; "" where either lacks it."""
    place = (also["metric"], also["method"])
    ours, other = (data.index.get(workload, one, *place) for one in (variant, baseline))
    if ours is None:
        return ""
    unit = "1" if ours.unit == "1" else also["unit"]
    instead = f" instead of {_in_unit(other, unit)}" if other is not None else ""
    return f"{also['title']} {_in_unit(ours, unit)}{instead}"


def _none_pays(
    data: ReportData, block: ReportBlock, workload: str, tried: Sequence[VariantEffect], undecided: int
) -> list[str]:
    """Return that no variant pays, where all were decided, and which one improves other metrics."""
    on = data.spec.name("workload", workload)
    metric = data.spec.name("metric", block.fields["metric"]).lower()
    sentences = []
    if undecided == 0:
        sentences.append(f"On {on}, none of {counted(len(tried), 'variant')} lowers {metric}.")
    first = next(iter(data.spec.answer["also"]), None)
    free = [one for one in tried if one.effect == "no difference"]
    if first is None or not free:
        return sentences
    place = (first["metric"], first["method"])
    values = {one: value for one in free if (value := data.index.get(workload, one.name, *place))}
    base = data.index.get(workload, block.fields["baseline"], *place)
    if base is None or not values:
        return sentences
    best = min(values, key=lambda one: values[one].median)
    if values[best].median < base.median:
        changes = [
            _changed(data, workload, best.name, block.fields["baseline"], one)
            for one in data.spec.answer["also"]
        ]
        sentences.append(f"At the same {metric}, {best.title} has {'; '.join(filter(None, changes))}.")
    return sentences


def _accuracy(data: ReportData) -> list[str]:
    """Return how far off the estimates are of a report about estimates."""
    for block in data.blocks:
        if block.kind == "errors":
            for row in error_rows(block, data.index)[:1]:
                return [
                    f"{data.spec.name('method', row.method)}: median error {percent(row.median)}, worst "
                    f"{percent(row.worst, True)}, in {counted(row.cells, 'cell')}."
                ]
    return []
