"""Answer a suite's question at the top of its report: what pays, what is undecided, what was not compared.

A suite without a report of its own has a sentence per metric.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from msgspec.structs import replace

from harness.config.optimizations import AGAIN
from harness.records import Status
from harness.report.block_tables import Errors, error_rows
from harness.report.comparison import BUSY, OTHERS, Comparison, compared, compile_cost, why_none
from harness.report.report_data import ReportData
from harness.report.results import ResultIndex, Value
from harness.report.spec import (
    DEFAULT_BLOCKS,
    Also,
    Clause,
    EffectsBlock,
    ErrorsBlock,
    PairedBlock,
    Pairing,
    Picked,
    SpeedupsBlock,
)
from harness.report.tables import percent, show
from harness.units import best_unit, counted, human, in_unit, marked, times


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


SHOWN = 4
"""Metrics at most."""


def by_metric(data: ReportData) -> list[str]:
    """Return a sentence per metric, first of those that are better lower or higher."""
    blocks = [block for block in data.blocks if isinstance(block, EffectsBlock)]
    blocks.sort(key=lambda block: block.better == "neither")
    sentences = [one for block in blocks if (one := _of_metric(data, block))]
    rest = len(sentences) - SHOWN
    more = [f"The tables show {counted(rest, 'more metric')}."] if rest > 0 else []
    return [*sentences[:SHOWN], *more]


def _of_metric(data: ReportData, block: PairedBlock) -> str:
    """Return in a sentence what pays in a metric; of one without a better direction, what changes it most."""
    if block.better == "neither":
        changes = [(abs(one.ratio.value - 1), name, _size(one)) for name, one in _comparisons(data, block)]
        change, name, text = max(changes, default=(0.0, "", ""))
        unjudged = "not judged, since its unit does not say whether less is better"
        return f"{block.title}: up to {text} ({name}), {unjudged}." if change else ""
    paying = sorted(_paying(data, block))
    if not paying:
        return f"{block.title}: {_none_pays_in(data.index, block, 'no variant pays.')}"
    if block.better == "higher":
        paying.reverse()
    _, name, text = paying[0]
    rest = len(paying) - 1
    more = f", and {counted(rest, 'more pays', 'more pay')}" if rest else ""
    return f"{block.title}: {name} {text}{more}."


def _none_pays_in(index: ResultIndex, block: PairedBlock, none: str) -> str:
    """Return the sentence `none` for no variant that pays, or why none could be compared."""
    baseline = block.baseline
    alike = [
        index.condition(workload, variant, "ranks") == index.condition(workload, baseline, "ranks")
        for workload in index.names("workload", block.where)
        for variant in index.names("optimization", block.where)
        if variant not in (baseline, block.noise) and compared(index, workload, variant, block.pairing)
    ]
    if not alike:
        return "No variant could be compared with the baseline."
    if not any(alike):
        return "Every variant runs on other ranks than the baseline: see the table, which does not rank them."
    return none


def _paying(data: ReportData, block: PairedBlock) -> list[tuple[float, str, str]]:
    """Return the variants that pay, on as many ranks as the baseline: the ratio, the name, the change."""
    pays = "costs" if block.better == "higher" else "pays"  # an effect is that of a time
    comparisons = [one for one in _comparisons(data, block) if one[1].effect == pays]
    return [(comparison.ratio.value, name, _size(comparison)) for name, comparison in comparisons]


def _comparisons(data: ReportData, block: PairedBlock) -> Iterator[tuple[str, Comparison]]:
    """Yield each variant that runs on as many ranks as the baseline: its name, and how it compares."""
    index, spec = data.index, data.spec
    workloads = index.names("workload", block.where)
    for workload in workloads:
        ranks = index.condition(workload, block.baseline, "ranks")
        for variant in index.names("optimization", block.where):
            comparison = compared(index, workload, variant, block.pairing)
            ours = variant not in (block.baseline, block.noise, AGAIN)
            if comparison and ours and index.condition(workload, variant, "ranks") == ranks:
                name = spec.name("optimization", variant)
                name += f", {spec.name('workload', workload)}" if len(workloads) > 1 else ""
                yield name, comparison


def _size(comparison: Comparison) -> str:
    return (
        times(comparison.speed_up.value)
        if comparison.unit == "s"
        else percent(comparison.ratio.value - 1, True)
    )


NAMED = 3
"""Variants that are named at most, of those that pay and of those that are undecided."""


def answer(data: ReportData) -> list[str]:
    """Return one to four sentences; those about wrong results come first."""
    return [*wrong_results(data), *what_pays(data)]


def what_pays(data: ReportData) -> list[str]:
    """Return the answer without what is wrong."""
    if data.spec.blocks == DEFAULT_BLOCKS:
        return by_metric(data)
    return [
        *_what_pays(data),
        *_with_set_up(data, list(stated(data, data.spec.answer.states))),
        *_disturbed(data),
    ]


def finding(data: ReportData) -> str:
    """Return the answer in a few words and what it is over, for a list of reports."""
    if found := _with_set_up(data, list(stated(data, data.spec.answer.finding))):
        return found[0].removesuffix(".")
    block = answer_block(data)
    sentences = what_pays(data)
    if block is None or data.spec.blocks == DEFAULT_BLOCKS:
        return sentences[0].removesuffix(".") if sentences else "no value"
    workload = data.index.names("workload", block.where, block.metric)[0]
    if best := _best_of(data, block, workload):
        return best
    alike = [one for one in _variants(data, block, workload) if not one.ranks]
    said = _none_pays(data, block, workload, alike)[-1:] or sentences[:1]
    return said[0].partition("; ")[0].removesuffix(".")


def _best_of(data: ReportData, block: PairedBlock, workload: str) -> str:
    """Return what pays most on a workload, first of what runs on the baseline's ranks; "" for nothing."""
    paying = [one for one in _variants(data, block, workload) if one.effect == "pays"]
    alike = _best_first([one for one in paying if not one.ranks]) or _best_first(paying)
    if not alike:
        return ""
    best, name = alike[0], data.spec.name
    on = f"{name('workload', workload)}{f', {best.ranks}' if best.ranks else ''}"
    base = name("optimization", block.baseline)
    fairer, clause = over_fairer(data, block, workload, best), set_up(data, workload, best.name)
    assert best.comparison is not None
    if best.comparison.unit != "s":
        metric = name("metric", block.metric).lower()
        said = f"On {on}, {best.title}: {metric} {best.size} against {base}"
    elif fairer:
        over = f"{times(1 / fairer[1].ratio.value)} as fast as {name('optimization', fairer[0])}"
        said = f"On {on}, {best.title} is {over}, {best.size} as fast as {base}"
    else:
        said = f"On {on}, {best.title} is {best.size} as fast as {base}"
    return f"{said}, {clause}" if clause else said


def _with_set_up(data: ReportData, sentences: list[str]) -> list[str]:
    """Return stated sentences, the first with what of the set-up decides it where no variant is compared."""
    block = answer_block(data)
    workload = baseline = ""
    if block:
        workload = data.index.names("workload", block.where, block.metric)[0]
        baseline = block.baseline
        if any(one.comparison for one in _variants(data, block, workload)):
            return sentences
    clause = set_up(data, workload, baseline) if sentences else ""
    return [f"{sentences[0].removesuffix('.')}, {clause}.", *sentences[1:]] if clause else sentences


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


def answer_block(data: ReportData) -> PairedBlock | None:
    """Return the block of which the answer speaks: the first about an effect that has a value in this run."""
    blocks = (one for one in data.blocks if isinstance(one, EffectsBlock | SpeedupsBlock))
    names = data.index.names
    return next((b for b in blocks if b.better == "lower" and names("workload", b.where, b.metric)), None)


def _what_pays(data: ReportData) -> list[str]:
    block = answer_block(data)
    if block is None:
        return _accuracy(data)
    workload = data.index.names("workload", block.where, block.metric)[0]
    on = f"On {data.spec.name('workload', workload)}"
    variants = list(_variants(data, block, workload))
    alike = [one for one in variants if not one.ranks]
    paying = _best_first([one for one in alike if one.effect == "pays"])
    undecided = _best_first([one for one in alike if one.effect == "undecided"])
    sentences = []
    if paying:
        first, *rest = paying
        sentences.append(f"{on}, {first.title} pays most: {gain(data, block, workload, first)}.")
        if rest:
            fairer = over_fairer(data, block, workload, first)
            over = f", over {data.spec.name('optimization', block.baseline)}" if fairer else ""
            sentences.append(f"Also{over}: {_listed(rest)}.")
    else:
        sentences += _none_pays(data, block, workload, alike)
    if undecided:
        over = _baseline_with_set_up(data, block, workload)
        begin = "Undecided" if sentences else f"{on}, undecided over {over}"
        sentences.append(f"{begin}: {_listed(undecided)}{_what_decides(undecided[:NAMED])}.")
    if other := _best_first([one for one in variants if one.ranks and one.effect == "pays"]):
        best = other[0]
        sentences.append(f"{on}, {best.title} on {best.ranks}: {gain(data, block, workload, best)}.")
    lacking = [one for one in variants if one.comparison is None]
    if lacking and len(lacking) == len(variants):
        reason = _reason(data, block, workload, lacking[0])
        with_values = values_of(data, block, workload, lacking[:NAMED])
        metric = data.spec.name("metric", block.metric).lower()
        begin = f"{on}, {metric} is {with_values}; no" if with_values else f"{on}, no"
        sentences.append(f"{begin} variant could be compared with the baseline ({reason}).")
    elif lacking and not paying:
        _, reason = why_none(data.index, workload, lacking[0].name, block.pairing)
        others = f"; nor {counted(len(lacking) - 1, 'other variant')}" if len(lacking) > 1 else ""
        sentences.append(f"Not compared: {lacking[0].title}: {reason}{others}.")
    if not sentences and not _has_others(data, block, workload):
        sentences.append(f"{on}, only the baseline was run.")
    return [*sentences, *_assumed(data, block, workload), *_others(data, block)]


def _reason(data: ReportData, block: PairedBlock, workload: str, variant: VariantEffect) -> str:
    """Return why a variant could not be compared, with its name."""
    word, reason = why_none(data.index, workload, variant.name, block.pairing)
    return f"{variant.title}: {reason}" if word == "unavailable" else reason


def _others(data: ReportData, block: PairedBlock) -> Iterator[str]:
    """Yield in a sentence each what pays most on further workloads of the user's."""
    index, where = data.index, {k: v for k, v in block.where.items() if k != "workload"}
    own = [one for one in index.names("workload", where, block.metric) if one in index.own]
    for workload in own[1:]:
        about = replace(block, where={**where, "workload": workload})
        yield f"{_best_of(data, about, workload) or f'On {workload}, no variant pays'}."


def _assumed(data: ReportData, block: PairedBlock, workload: str) -> list[str]:
    """Return in a sentence what the values rest on, where conf/report names it."""
    baseline, parts = block.baseline, []
    records = data.index.cells.get((workload, baseline), [])
    for one in data.spec.answer.assumes if records else ():
        if one.field:
            stated = records[0].cell.config.get("workload", {}).get(one.field)
            parts += [one.title.format(stated)] if stated not in (None, "") else []
        elif value := data.index.get(workload, baseline, one.metric, one.method):
            parts.append(one.title.format(human(value.median, value.unit, one.unit or None)))
    return [f"Assumes {''.join(parts)}."] if parts else []


def _disturbed(data: ReportData) -> list[str]:
    """Return in a sentence how much other processes disturbed what was timed; nothing where they did not."""
    block = answer_block(data)
    if block is None:
        return []
    workload = data.index.names("workload", block.where, block.metric)[0]
    others = data.index.first(workload, block.baseline, OTHERS)
    if others is None or others.max <= BUSY:
        return []
    return [f"The machine was busy: other processes took up to {percent(others.max)} of its time."]


def _variants(data: ReportData, block: PairedBlock, workload: str) -> Iterator[VariantEffect]:
    index = data.index
    ranks = index.condition(workload, block.baseline, "ranks")
    left_out = [block.baseline, block.noise, AGAIN, *data.spec.answer.leave_out]
    for name in index.names("optimization", block.where):
        if (workload, name) in index.cells and not any(fnmatchcase(name, one) for one in left_out):
            own = index.condition(workload, name, "ranks")
            other = counted(int(own), "rank") if own.isdigit() and own != ranks else ""
            yield VariantEffect(
                name,
                data.spec.name("optimization", name),
                compared(index, workload, name, block.pairing),
                other,
            )


def _has_others(data: ReportData, block: PairedBlock, workload: str) -> bool:
    """Return whether a variant has a result, though the answer is to leave it out."""
    bases = (block.baseline, block.noise, AGAIN)
    names = [one for one in data.index.names("optimization", block.where) if one not in bases]
    records = [record for name in names for record in data.index.cells.get((workload, name), [])]
    return any(record.status == Status.OK for record in records)


def _best_first(variants: Sequence[VariantEffect]) -> list[VariantEffect]:
    return sorted(variants, key=lambda one: one.comparison.ratio.value if one.comparison else 1.0)


def _listed(variants: Sequence[VariantEffect]) -> str:
    named = [f"{one.title} {one.comparison.text}" for one in variants[:NAMED] if one.comparison]
    more = len(variants) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def _what_decides(undecided: Sequence[VariantEffect]) -> str:
    """Return how many repeats would decide the most of them."""
    comparisons = [one.comparison for one in undecided if one.comparison]
    most = max(comparisons, key=lambda one: one.more_repeats or 0)
    return f"; {most.what_decides}" if most.what_decides else ""


def _none_pays(
    data: ReportData, block: PairedBlock, workload: str, variants: Sequence[VariantEffect]
) -> list[str]:
    """Return that no variant pays, where all were decided, and which one improves other metrics.

    The last sentence alone is the finding.
    """
    on = data.spec.name("workload", workload)
    metric = data.spec.name("metric", block.metric).lower()
    sentences = []
    tried = [one for one in variants if one.comparison]
    over = _baseline_with_set_up(data, block, workload)
    if tried and all(one.effect != "undecided" for one in tried):
        none = f"On {on}, none of {counted(len(tried), 'variant')} lowers {metric} against {over}"
        sentences.append(f"{none}.")
        over = data.spec.name("optimization", block.baseline)
    first = next(iter(data.spec.answer.also), None)
    free = [one for one in tried if one.effect == "no difference"]
    if first is None or not free:
        return sentences
    place = (first.metric, first.method)
    values = {one: value for one in free if (value := data.index.get(workload, one.name, *place))}
    base = data.index.get(workload, block.baseline, *place)
    if base is None or not values:
        return sentences
    best = min(values, key=lambda one: values[one].median)
    if values[best].median < base.median:
        changes = [changed(data, workload, best.name, block.baseline, one) for one in data.spec.answer.also]
        changed_by = "; ".join(filter(None, changes))
        sentences.append(f"At the same {metric} as {over}, {best.title} has {changed_by}.")
    return sentences


def _baseline_with_set_up(data: ReportData, block: PairedBlock, workload: str) -> str:
    """Return the baseline's title, with what of the set-up decides the size of an effect over it."""
    baseline = block.baseline
    parts = [data.spec.name("optimization", baseline), set_up(data, workload, baseline)]
    return ", ".join(filter(None, parts))


def _accuracy(data: ReportData) -> list[str]:
    """Return how far off the estimates are of a report about estimates.

    Where the report gives an error that is small enough, each method has a sentence with how many cells are
    within it; the headline method comes first.
    """
    for block in data.blocks:
        if isinstance(block, ErrorsBlock):
            rows = error_rows(block, data.index)
            if within := block.within:
                rows.sort(key=lambda row: row.method != block.headline)
                return [_passed(data, row, within) for row in rows]
            for row in rows[:1]:
                return [
                    f"{data.spec.name('method', row.method)}: median error {percent(row.median)}, worst "
                    f"{percent(row.worst, True)}, in {counted(row.cells, 'cell')}."
                ]
    return []


def _passed(data: ReportData, row: Errors, within: float) -> str:
    """Return how many cells of a method are off by no more than that."""
    count = sum(abs(error) <= within for error in row.each)
    name = data.spec.name("method", row.method)
    passed = "all" if count == row.cells else f"not all: {count}"
    values = f"{counted(row.cells, 'published value')} {'are' if row.cells > 1 else 'is'}"
    return (
        f"{name}: {passed} of {values} met within "
        f"{percent(within)}; median error {percent(row.median)}, worst {percent(row.worst, True)}."
    )
