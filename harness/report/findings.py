"""Answer a suite's question at the top of its report: what pays, what is undecided, what was not compared.

A suite without a report of its own has a sentence per metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import product
from typing import NamedTuple

from msgspec.structs import replace

from harness.config.optimizations import AGAIN
from harness.records import Status
from harness.report.block_tables import Errors, error_rows
from harness.report.comparison import BUSY, OTHERS, Comparison, compared, compile_cost, why_none
from harness.report.report_data import ReportData
from harness.report.results import Value
from harness.report.spec import (
    Clause,
    EffectsBlock,
    ErrorsBlock,
    PairedBlock,
    Pairing,
    Picked,
    Shown,
    SpeedupsBlock,
)
from harness.report.tables import percent, show
from harness.units import best_unit, counted, human, in_unit, marked, times

NAMED = 3  # variants that are named at most, of those that pay and of those that are undecided
METRICS = 4  # metrics that have a sentence at most, of a suite without a report of its own


def stated(data: ReportData, sentences: Sequence[Clause]) -> Iterator[str]:
    """Yield the sentences of conf/report/; none of which a value is missing."""
    for one in sentences:
        if (text := _filled(data, one, "", "")) is not None:
            yield text


def _filled(data: ReportData, one: Clause, workload: str, variant: str) -> str | None:
    """Return the text with its values; None where one is missing."""
    values = [_picked(data, picked, workload, variant) for picked in one.values]
    return one.text.format(*values) if all(values) else None


def _picked(data: ReportData, picked: Picked, workload: str, variant: str) -> str:
    place = picked.workload or workload, picked.optimization or variant
    metric, method = picked.metric, picked.method
    if picked.condition:
        return data.index.condition(*place, picked.condition)
    if picked.over:
        comparison = compared(data.index, *place, Pairing(metric, method, picked.over, draws=picked.draws))
        return comparison.text if comparison else ""
    value = data.index.get(*place, metric, method)
    if value is None or not picked.per:
        return show(value, picked.unit) if value else ""
    *plus, per = (data.index.get(*place, name, method) for name in (picked.plus, picked.per) if name)
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
    def effect(self) -> str:
        """Return pays, costs, no difference or undecided; "" without a comparison."""
        return self.comparison.effect if self.comparison else ""


@dataclass(frozen=True)
class WorkloadAnswer:
    """What a block that compares variants says of one workload."""

    data: ReportData
    block: PairedBlock
    workload: str

    def title(self, variant: str = "") -> str:
        """Return how people know a variant, by default the baseline."""
        return self.data.spec.name("optimization", variant or self.block.baseline)

    @property
    def on(self) -> str:
        """Return how people know the workload."""
        return self.data.spec.name("workload", self.workload)

    @property
    def metric(self) -> str:
        """Return the compared metric in a sentence."""
        return self.data.spec.name("metric", self.block.metric).lower()

    def value(self, variant: str, one: Shown | None = None) -> Value | None:
        """Return a variant's value of a metric, by default of the compared one."""
        of = one or self.block
        return self.data.index.get(self.workload, variant, of.metric, of.method)

    @cached_property
    def variants(self) -> list[VariantEffect]:
        """Return the variants that were run, without those that are nothing to turn on."""
        index, block = self.data.index, self.block
        ranks = index.condition(self.workload, block.baseline, "ranks")
        left_out = [block.baseline, block.noise, AGAIN, *self.data.spec.answer.leave_out]
        found = []
        for name in index.names("optimization", block.where):
            if (self.workload, name) in index.cells and not any(fnmatchcase(name, one) for one in left_out):
                own = index.condition(self.workload, name, "ranks")
                other = counted(int(own), "rank") if own.isdigit() and own != ranks else ""
                comparison = compared(index, self.workload, name, block.pairing)
                found.append(VariantEffect(name, self.title(name), comparison, other))
        return found

    def best_first(self, effect: str, other_ranks: bool = False) -> list[VariantEffect]:
        """Return the variants with this effect, on as many ranks as the baseline or on others."""
        chosen = [one for one in self.variants if one.effect == effect and bool(one.ranks) == other_ranks]
        return sorted(chosen, key=lambda one: one.comparison.ratio.value if one.comparison else 1.0)

    def set_up(self, variant: str) -> str:
        """Return what of the set-up decides the size of the effect, as a clause; "" for nothing."""
        for one in self.data.spec.answer.set_up:
            if fnmatchcase(self.workload, one.workload):
                text = _filled(self.data, one, self.workload, variant)
                if text is not None:
                    return text
        return ""

    @property
    def baseline_with_set_up(self) -> str:
        """Return the baseline's title, with what of the set-up decides the size of an effect over it."""
        return ", ".join(filter(None, [self.title(), self.set_up(self.block.baseline)]))

    def over_fairer(self, variant: str) -> tuple[str, Comparison] | None:
        """Return the fairer baseline that conf/report/ names for this workload, and the variant over it.

        The noise was measured on the block's own baseline, so here an interval that excludes 1 decides.
        """
        for pattern, names in self.data.spec.answer.over.items():
            for name in names if fnmatchcase(self.workload, pattern) else ():
                pairing = self.block.pairing._replace(baseline=name, noise="")
                comparison = compared(self.data.index, self.workload, variant, pairing)
                if name != variant and comparison:
                    return name, comparison
        return None

    def gain(self, variant: VariantEffect) -> str:
        """Return by how much a variant pays over what, and what it does to the answer's other metrics."""
        comparison, base = variant.comparison, self.title()
        assert comparison is not None
        cost = ""
        if comparison.unit == "s":
            gained, pairing = f"{comparison.text} the speed of {base}", self.block.pairing
            if fairer := self.over_fairer(variant.name):
                name, over = fairer
                pairing = pairing._replace(baseline=name, noise="")
                gained = f"{over.text} the speed of {self.title(name)}, {comparison.text} that of {base}"
            cost = compile_cost(self.data.index, self.workload, variant.name, pairing)
        else:
            unit = getattr(self.block, "unit", "auto")
            pair = instead_of(self.value(variant.name), self.value(self.block.baseline), unit)
            gained = f"{self.metric} {pair} with {base}, {comparison.size}"
        clause = self.set_up(variant.name)
        return "; ".join(
            filter(None, [", ".join(filter(None, [gained, clause])), cost, self.changes(variant)])
        )

    def changes(self, variant: VariantEffect) -> str:
        """Return what a variant does to the other metrics of the answer."""
        changed = []
        for one in self.data.spec.answer.also:
            ours, other = self.value(variant.name, one), self.value(self.block.baseline, one)
            pair = instead_of(ours, other, "1" if ours and ours.unit == "1" else one.unit)
            changed += [f"{one.title} {pair}"] if pair else []
        return "; ".join(changed)

    def best(self) -> str:
        """Return what pays most, first of what runs on the baseline's ranks; "" for nothing."""
        paying = [*self.best_first("pays"), *self.best_first("pays", other_ranks=True)]
        if not paying:
            return ""
        best, base = paying[0], self.title()
        assert best.comparison is not None
        size = best.comparison.size
        said = f"On {self.on}{f', {best.ranks}' if best.ranks else ''}, {best.title}"
        if best.comparison.unit != "s":
            said += f": {self.metric} {size} against {base}"
        elif fairer := self.over_fairer(best.name):
            said += f" is {fairer[1].size} as fast as {self.title(fairer[0])}, {size} as fast as {base}"
        else:
            said += f" is {size} as fast as {base}"
        return ", ".join(filter(None, [said, self.set_up(best.name)]))

    def sentences(self) -> list[str]:
        """Return what pays, what is undecided, and what was not compared."""
        paying, undecided = self.best_first("pays"), self.best_first("undecided")
        lacking = [one for one in self.variants if one.comparison is None]
        told = [] if paying else self.none_pays()
        if paying:
            first, *rest = paying
            told.append(f"On {self.on}, {first.title} pays most: {self.gain(first)}.")
            over = f", over {self.title()}" if self.over_fairer(first.name) else ""
            told += [f"Also{over}: {_listed(rest)}."] if rest else []
        if undecided:
            begin = "Undecided" if told else f"On {self.on}, undecided over {self.baseline_with_set_up}"
            told.append(f"{begin}: {_listed(undecided)}{_what_decides(undecided[:NAMED])}.")
        for best in self.best_first("pays", other_ranks=True)[:1]:
            told.append(f"On {self.on}, {best.title} on {best.ranks}: {self.gain(best)}.")
        if lacking and len(lacking) == len(self.variants):
            told.append(self._none_compared(lacking))
        elif lacking and not paying:
            _, reason = why_none(self.data.index, self.workload, lacking[0].name, self.block.pairing)
            others = f"; nor {counted(len(lacking) - 1, 'other variant')}" if len(lacking) > 1 else ""
            told.append(f"Not compared: {lacking[0].title}: {reason}{others}.")
        if not told and not self._has_others():
            told.append(f"On {self.on}, only the baseline was run.")
        return told

    def none_pays(self) -> list[str]:
        """Return that no variant pays, where all were decided, and which one improves other metrics.

        The last sentence alone is the finding.
        """
        told, over = [], self.baseline_with_set_up
        tried = [one for one in self.variants if one.comparison and not one.ranks]
        if tried and all(one.effect != "undecided" for one in tried):
            none = f"none of {counted(len(tried), 'variant')} lowers {self.metric} against {over}"
            told.append(f"On {self.on}, {none}.")
            over = self.title()
        for first in self.data.spec.answer.also[:1]:
            free = [one for one in tried if one.effect == "no difference"]
            values = {one: value for one in free if (value := self.value(one.name, first))}
            base = self.value(self.block.baseline, first)
            best = min(values, key=lambda one: values[one].median, default=None)
            if best and base and values[best].median < base.median:
                told.append(f"At the same {self.metric} as {over}, {best.title} has {self.changes(best)}.")
        return told

    def _none_compared(self, lacking: Sequence[VariantEffect]) -> str:
        """Return the values of variants that could not be compared, and why the first could not."""
        word, reason = why_none(self.data.index, self.workload, lacking[0].name, self.block.pairing)
        reason = f"{lacking[0].title}: {reason}" if word == "unavailable" else reason
        unit = getattr(self.block, "unit", "auto")  # a block of speed-ups shows times in any
        found = ((one, self.value(one.name)) for one in lacking[:NAMED])
        values = ", ".join(f"{shown_in(value, unit)} with {one.title}" for one, value in found if value)
        begin = f"On {self.on}, {self.metric} is {values}; no" if values else f"On {self.on}, no"
        return f"{begin} variant could be compared with the baseline ({reason})."

    def _has_others(self) -> bool:
        """Return whether a variant has a result, though the answer is to leave it out."""
        index, bases = self.data.index, (self.block.baseline, self.block.noise, AGAIN)
        names = [one for one in index.names("optimization", self.block.where) if one not in bases]
        records = [record for name in names for record in index.cells.get((self.workload, name), [])]
        return any(record.status == Status.OK for record in records)

    def others(self) -> Iterator[str]:
        """Yield in a sentence each what pays most on further workloads of the user's."""
        index, where = self.data.index, {k: v for k, v in self.block.where.items() if k != "workload"}
        own = [one for one in index.names("workload", where, self.block.metric) if one in index.own]
        for workload in own[1:]:
            about = replace(self.block, where={**where, "workload": workload})
            best = WorkloadAnswer(self.data, about, workload).best()
            yield f"{best or f'On {workload}, no variant pays'}."

    def assumed(self) -> Iterator[str]:
        """Yield in a sentence what the values rest on, where conf/report names it."""
        baseline, parts = self.block.baseline, []
        records = self.data.index.cells.get((self.workload, baseline), [])
        for one in self.data.spec.answer.assumes if records else ():
            if one.field:
                given = records[0].cell.config.get("workload", {}).get(one.field)
                parts += [one.title.format(given)] if given not in (None, "") else []
            elif value := self.value(baseline, one):
                unit = None if one.unit == "auto" else one.unit
                parts.append(one.title.format(human(value.median, value.unit, unit)))
        if parts:
            yield f"Assumes {''.join(parts)}."

    def disturbed(self) -> Iterator[str]:
        """Yield in a sentence how much other processes disturbed what was timed, where they did."""
        others = self.data.index.first(self.workload, self.block.baseline, OTHERS)
        if others is not None and others.max > BUSY:
            yield f"The machine was busy: other processes took up to {percent(others.max)} of its time."


def shown_in(value: Value, unit: str, like: Value | None = None) -> str:
    """Return a value in `unit`, or where both are less than one of it in the unit that reads best."""
    largest = max(value.median, like.median if like else 0.0)
    large = unit != "auto" and in_unit(largest, value.unit, unit) >= 1
    shown = unit if large else best_unit(largest, value.unit)
    return marked(human(value.median, value.unit, shown), value.origin)


def instead_of(ours: Value | None, other: Value | None, unit: str) -> str:
    """Return `1 GB instead of 2 GB`, bytes in one unit; ours alone without the other, "" without ours."""
    if ours is None:
        return ""
    if other is None:
        return shown_in(ours, unit)
    pair = (ours, other) if ours.unit == "B" else (None, None)
    return f"{shown_in(ours, unit, pair[1])} instead of {shown_in(other, unit, pair[0])}"


def _listed(variants: Sequence[VariantEffect]) -> str:
    named = [f"{one.title} {one.comparison.text}" for one in variants[:NAMED] if one.comparison]
    more = len(variants) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _what_decides(undecided: Sequence[VariantEffect]) -> str:
    """Return how many repeats would decide the most of them."""
    comparisons = [one.comparison for one in undecided if one.comparison]
    most = max(comparisons, key=lambda one: one.more_repeats or 0)
    return f"; {most.what_decides}" if most.what_decides else ""


def by_metric(data: ReportData) -> list[str]:
    """Return a sentence per metric, first of those that are better lower or higher."""
    blocks = [block for block in data.blocks if isinstance(block, EffectsBlock)]
    blocks.sort(key=lambda block: block.better == "neither")
    sentences = [one for block in blocks if (one := _of_metric(data, block))]
    rest = len(sentences) - METRICS
    more = [f"The tables show {counted(rest, 'more metric')}."] if rest > 0 else []
    return [*sentences[:METRICS], *more]


def _of_metric(data: ReportData, block: PairedBlock) -> str:
    """Return in a sentence what pays in a metric; of one without a better direction, what changes it most."""
    alike, others = _comparisons(data, block)
    if block.better == "neither":
        largest = max(alike, key=lambda one: abs(one[1].ratio.value - 1), default=None)
        if largest is None or largest[1].ratio.value == 1:
            return ""
        unjudged = "not judged, since its unit does not say whether less is better"
        return f"{block.title}: up to {largest[1].size} ({largest[0]}), {unjudged}."
    paying = sorted((one.ratio.value, name, one.size) for name, one in alike if one.effect == "pays")
    if paying:
        _, name, text = paying[-1 if block.better == "higher" else 0]
        rest = len(paying) - 1
        more = f", and {counted(rest, 'more pays', 'more pay')}" if rest else ""
        return f"{block.title}: {name} {text}{more}."
    if alike:
        return f"{block.title}: no variant pays."
    none = "Every variant runs on other ranks than the baseline: see the table, which does not rank them."
    return f"{block.title}: {none if others else 'No variant could be compared with the baseline.'}"


def _comparisons(data: ReportData, block: PairedBlock) -> tuple[list[tuple[str, Comparison]], bool]:
    """Return the variants on as many ranks as the baseline with how they compare; whether others compare."""
    index, spec = data.index, data.spec
    workloads = index.names("workload", block.where)
    alike, others = [], False
    for workload, variant in product(workloads, index.names("optimization", block.where)):
        comparison = compared(index, workload, variant, block.pairing)
        if comparison is None or variant in (block.baseline, block.noise, AGAIN):
            continue
        ours, ranks = (index.condition(workload, one, "ranks") for one in (variant, block.baseline))
        if ours == ranks:
            on = f", {spec.name('workload', workload)}" if len(workloads) > 1 else ""
            alike.append((spec.name("optimization", variant) + on, comparison))
        others |= ours != ranks
    return alike, others


def answer(data: ReportData) -> list[str]:
    """Return one to four sentences; those about wrong results come first."""
    return [*wrong_results(data), *what_pays(data)]


def answer_block(data: ReportData) -> PairedBlock | None:
    """Return the block of which the answer speaks: the first about an effect that has a value in this run."""
    blocks = (one for one in data.blocks if isinstance(one, EffectsBlock | SpeedupsBlock))
    names = data.index.names
    return next((b for b in blocks if b.better == "lower" and names("workload", b.where, b.metric)), None)


def _about(data: ReportData) -> WorkloadAnswer | None:
    block = answer_block(data)
    if block is None:
        return None
    return WorkloadAnswer(data, block, data.index.names("workload", block.where, block.metric)[0])


def what_pays(data: ReportData) -> list[str]:
    """Return the answer without what is wrong."""
    if not data.spec.blocks:
        return by_metric(data)
    about = _about(data)
    states = _with_set_up(data, about, data.spec.answer.states)
    if about is None:
        return [*_accuracy(data), *states]
    return [*about.sentences(), *about.assumed(), *about.others(), *states, *about.disturbed()]


def finding(data: ReportData) -> str:
    """Return the answer in a few words and what it is over, for a list of reports."""
    about, sentences = _about(data), what_pays(data)
    if found := _with_set_up(data, about, data.spec.answer.finding):
        return found[0].removesuffix(".")
    if about is None or not data.spec.blocks:
        return sentences[0].removesuffix(".") if sentences else "no value"
    if best := about.best():
        return best
    said = about.none_pays()[-1:] or sentences[:1]
    return said[0].partition("; ")[0].removesuffix(".")


def _with_set_up(data: ReportData, about: WorkloadAnswer | None, clauses: Sequence[Clause]) -> list[str]:
    """Return stated sentences, the first with what of the set-up decides it where no variant is compared."""
    sentences = list(stated(data, clauses))
    about = about or WorkloadAnswer(data, PairedBlock(id="", title="", baseline=""), "")
    if not sentences or any(one.comparison for one in about.variants):
        return sentences
    clause = about.set_up(about.block.baseline)
    return [f"{sentences[0].removesuffix('.')}, {clause}.", *sentences[1:]] if clause else sentences


def wrong_results(data: ReportData) -> list[str]:
    """Return in a sentence which variants computed something else than the baseline, if any did."""
    wrong: dict[str, set[str]] = {}
    for record in data.index.records:
        if record.status == Status.WRONG_RESULT:
            wrong.setdefault(record.cell.optimization, set()).add(record.cell.workload)
    names = [
        f"{data.spec.name('optimization', one)} on {counted(len(on), 'workload')}"
        for one, on in wrong.items()
    ]
    return [f"Wrong results: {', '.join(names)}. They count as no value."] if wrong else []


def _accuracy(data: ReportData) -> list[str]:
    """Return how far off the estimates are of a report about estimates.

    Where the report gives an error that is small enough, each method has a sentence with how many cells are
    within it; the headline method comes first.
    """
    for block in data.blocks:
        if isinstance(block, ErrorsBlock):
            rows = error_rows(block, data.index)
            if block.within:
                rows.sort(key=lambda row: row.method != block.headline)
                return [_passed(data, row, block.within) for row in rows]
            for row in rows[:1]:
                name, cells = data.spec.name("method", row.method), counted(len(row.each), "cell")
                return [f"{name}: {_off(data, row)}, in {cells}."]
    return []


def _off(data: ReportData, row: Errors) -> str:
    return f"median error {percent(row.median)}, worst {percent(row.worst, True)}"


def _passed(data: ReportData, row: Errors, within: float) -> str:
    """Return how many cells of a method are off by no more than that."""
    count, cells = sum(abs(error) <= within for error in row.each), len(row.each)
    passed = "all" if count == cells else f"not all: {count}"
    values = f"{counted(cells, 'published value')} {'are' if cells > 1 else 'is'}"
    name = data.spec.name("method", row.method)
    return f"{name}: {passed} of {values} met within {percent(within)}; {_off(data, row)}."
