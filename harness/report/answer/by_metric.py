"""Answer for a suite without a report of its own: what pays in each metric that it records."""

from __future__ import annotations

from collections.abc import Iterator

from harness.config.variants.optimizations import AGAIN
from harness.report.data.result_index import ResultIndex
from harness.report.data.speedup import Comparison, compared
from harness.report.language.spec import ReportBlock
from harness.report.report_data import ReportData
from harness.report.tables.tables import percent
from harness.units import counted, times

SHOWN = 4
"""Metrics at most."""


def by_metric(data: ReportData) -> list[str]:
    """Return a sentence per metric, first of those that are better lower or higher."""
    blocks = [block for block in data.blocks if block.kind == "effects"]
    blocks.sort(key=lambda block: block.fields["better"] == "neither")
    sentences = [one for block in blocks if (one := _of_metric(data, block))]
    rest = len(sentences) - SHOWN
    more = [f"The tables show {counted(rest, 'more metric')}."] if rest > 0 else []
    return [*sentences[:SHOWN], *more]


def _of_metric(data: ReportData, block: ReportBlock) -> str:
    """Return in a sentence what pays in a metric; of one without a better direction, what changes it most."""
    if block.fields["better"] == "neither":
        changes = [(abs(one.ratio.value - 1), name, _size(one)) for name, one in _comparisons(data, block)]
        change, name, text = max(changes, default=(0.0, "", ""))
        unjudged = "not judged, since its unit does not say whether less is better"
        return f"{block.title}: up to {text} ({name}), {unjudged}." if change else ""
    paying = sorted(_paying(data, block))
    if not paying:
        return f"{block.title}: {_none_pays(data.index, block, 'no variant pays.')}"
    if block.fields["better"] == "higher":
        paying.reverse()
    _, name, text = paying[0]
    rest = len(paying) - 1
    more = f", and {counted(rest, 'more pays', 'more pay')}" if rest else ""
    return f"{block.title}: {name} {text}{more}."


def _none_pays(index: ResultIndex, block: ReportBlock, none: str) -> str:
    """Return the sentence `none` for no variant that pays, or why none could be compared."""
    fields, baseline = block.fields, block.fields["baseline"]
    alike = [
        index.condition(workload, variant, "ranks") == index.condition(workload, baseline, "ranks")
        for workload in index.names("workload", fields["where"])
        for variant in index.names("optimization", fields["where"])
        if variant not in (baseline, fields["noise"]) and compared(index, workload, variant, fields)
    ]
    if not alike:
        return "No variant could be compared with the baseline."
    if not any(alike):
        return "Every variant runs on other ranks than the baseline: see the table, which does not rank them."
    return none


def _paying(data: ReportData, block: ReportBlock) -> list[tuple[float, str, str]]:
    """Return the variants that pay, on as many ranks as the baseline: the ratio, the name, the change."""
    pays = "costs" if block.fields.get("better") == "higher" else "pays"  # an effect is that of a time
    comparisons = [one for one in _comparisons(data, block) if one[1].effect == pays]
    return [(comparison.ratio.value, name, _size(comparison)) for name, comparison in comparisons]


def _comparisons(data: ReportData, block: ReportBlock) -> Iterator[tuple[str, Comparison]]:
    """Yield each variant that runs on as many ranks as the baseline: its name, and how it compares."""
    fields, index, spec = block.fields, data.index, data.spec
    workloads = index.names("workload", fields["where"])
    for workload in workloads:
        ranks = index.condition(workload, fields["baseline"], "ranks")
        for variant in index.names("optimization", fields["where"]):
            comparison = compared(index, workload, variant, fields)
            ours = variant not in (fields["baseline"], fields["noise"], AGAIN)
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
