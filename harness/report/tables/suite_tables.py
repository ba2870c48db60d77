"""Tables of a suite or two: factors, portability, errors of methods, an operation alone and in a step.

Show what each factor of a full factorial is worth: alone, added last, over all orders, in pairs.

Make the table of efficiencies: each variant's on every platform, and its performance portability.

Show how far each method is off, over all cells in which the truth was measured.

Show what an operation gains alone next to what the full step gains where it alone is replaced.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import NamedTuple

from harness.claims.judge import Factorial, factorial_of, variant_name
from harness.claims.values import NoPairsError, compare
from harness.report.data.result_index import ResultIndex, Value
from harness.report.data.speedup import SIGNS_LEGEND
from harness.report.data.training_metrics import (
    application,
    architectural,
    performance_portability,
    platforms,
    time_of,
)
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.effect_tables import speed_up_cell, timed_variants
from harness.report.tables.tables import Footnotes, Table, TableCell, percent
from harness.statistics import Ratio
from harness.units import marked, times

MEASURED = "measured"

LEGEND = (
    "▲ above 1, ▼ below 1: its 95 % interval, in brackets, excludes 1. Gains are in tokens/s, of equal work."
)


def factorial_on(block: ReportBlock, index: ResultIndex, workload: str) -> Factorial | None:
    """Return the times of all combinations on a workload; None where they are complete for no two factors."""
    fields = block.fields
    records = [one for one in index.records if one.cell.workload == workload]
    return factorial_of(
        records,
        list(fields["factors"]),
        fields["optimization"],
        fields["baseline"],
        fields["metric"],
        fields["method"],
    )


def gain_text(ratio: Ratio) -> str:
    """Return `1.41× (1.38 … 1.44) ᵐ`."""
    low, high = (times(end).removesuffix("×") for end in (ratio.low, ratio.high))
    ends = f" ({low} … {high})" if ratio.low > 0 and ratio.high < float("inf") else ""
    return marked(f"{times(ratio.value)}{ends}", MEASURED)


def gain_cell(ratio: Ratio, cell: str = "") -> TableCell:
    """Return a gain with the sign of whether its interval excludes 1."""
    sign, look = ("▲", "good") if ratio.low > 1 else ("▼", "bad") if ratio.high < 1 else ("=", "muted")
    return TableCell(f"{sign} {gain_text(ratio)}", cell, look)


def stack_values(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per factor: what it gains alone, added last, and in the mean over all orders."""
    rows: list[tuple[TableCell, ...]] = []
    notes = Footnotes()
    for workload in index.names("workload", block.fields["where"]):
        whole = factorial_on(block, index, workload)
        if whole is None:
            continue
        ordered = sorted(whole.factors, key=lambda one: whole.shapley(one).value, reverse=True)
        for factor in ordered:
            name = TableCell(block.fields["factors"][factor], look="word")
            cells = [gain_cell(one(factor)) for one in (whole.shapley, whole.alone, whole.added_last)]
            rows.append((name, *cells))
        lacking = ", ".join(block.fields["factors"][one] for one in whole.left_out)
        left_out = (
            f"not all combinations with {lacking} have a right result that was timed here: they are left out"
        )
        mark = f" {notes.mark(left_out)}" if lacking else ""
        rows.append((TableCell("all, or the product", look="word", note=mark), *_totals(whole)))
    header = ("Technique", "Mean over all orders", "Alone", "Added last")
    text = f"{block.text} {LEGEND}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts))


def _totals(whole: Factorial) -> tuple[TableCell, ...]:
    """Return what all gain together, to which Shapley values multiply, and the other columns' products."""
    last = {whole.every: float(len(whole.factors))}
    for factor in whole.factors:
        last[whole.every - {factor}] = last.get(whole.every - {factor}, 0.0) - 1.0
    return gain_cell(whole.whole()), gain_cell(whole.product_of_singles()), gain_cell(whole.gain(last))


def stack_whole(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per workload: all over each named baseline, the product of singles, an order."""
    fields, notes = block.fields, Footnotes()
    rows = []
    for workload in index.names("workload", fields["where"]):
        whole = factorial_on(block, index, workload)
        if whole is None:
            continue
        over = [_over(block, index, workload, whole, one) for one in fields["baselines"]]
        order = " → ".join(
            f"{fields['factors'][one.factor]} {times(one.gain.value)}" for one in whole.greedy()
        )
        cells = (gain_cell(whole.product_of_singles()), gain_cell(whole.whole_over_product()))
        place = TableCell(spec.name("workload", workload), look="word")
        rows.append((place, *over, *cells, TableCell(marked(order, MEASURED))))
    header = (
        fields["heading"] or "Workload",
        *(f"All over {title}" for title in fields["baselines"].values()),
        "Product of single gains",
        "All over that product",
        "Greedy order",
    )
    return Table(
        block.id, block.title, f"{block.text} {LEGEND}".strip(), header, tuple(rows), tuple(notes.texts)
    )


def _over(
    block: ReportBlock, index: ResultIndex, workload: str, whole: Factorial, baseline: str
) -> TableCell:
    """Return what the variant with all factors gains over a named baseline; a dash where it was not timed."""
    fields = block.fields
    best = variant_name(fields["optimization"], list(fields["factors"]), whole.every, fields["baseline"])
    ours, base = (index.cells.get((workload, one), ()) for one in (best, baseline))
    try:
        return gain_cell(
            compare(base, ours, fields["metric"], fields["method"]), ours[0].cell.id if ours else ""
        )
    except NoPairsError:
        return TableCell("–", look="muted")


def stack_pairs(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return for each pair of factors what both gain together over the product of what each gains alone."""
    rows: list[tuple[TableCell, ...]] = []
    header: tuple[str, ...] = ("Technique",)
    for workload in index.names("workload", block.fields["where"])[:1]:
        whole = factorial_on(block, index, workload)
        if whole is None:
            continue
        titles = block.fields["factors"]
        header = ("Technique", *(titles[one] for one in whole.factors[1:]))
        for at, one in enumerate(whole.factors[:-1]):
            cells = [
                gain_cell(whole.pair(one, other)) if place > at else TableCell("", look="muted")
                for place, other in enumerate(whole.factors)
                if place
            ]
            rows.append((TableCell(titles[one], look="word"), *cells))
    return Table(block.id, block.title, f"{block.text} {LEGEND}".strip(), header, tuple(rows))


def portability_table(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per variant: how many platforms it supports, both means, each efficiency."""
    fields = block.fields
    places = platforms(index, fields)
    by_time, by_rate = application(index, fields), architectural(index, fields)
    rows = []
    for variant, efficiencies in by_time.items():
        first = next(value for place in places if (value := time_of(index, place, variant, fields)))
        supported = sum(1 for one in efficiencies.values() if one > 0)
        cells = [
            TableCell(spec.name("optimization", variant), look="word"),
            TableCell(f"{supported} of {len(places)}", first.cell),
            _mean(efficiencies, first.origin, first.cell),
            _mean(by_rate[variant], first.origin, first.cell),
        ]
        for place in places:
            value = time_of(index, place, variant, fields)
            cells.append(
                TableCell(_share(efficiencies[place]), value.cell) if value else TableCell("0", look="muted")
            )
        rows.append((-performance_portability(list(efficiencies.values())), tuple(cells)))
    header = (
        "Variant",
        "Platforms",
        "PP, application",
        "PP, architectural",
        *(spec.name("workload", place).partition(" (")[0] for place in places),
    )
    ordered = tuple(cells for _, cells in sorted(rows, key=lambda row: row[0]))
    return Table(block.id, block.title, block.text, header, ordered, ())


def _mean(efficiencies: Mapping[str, float], origin: str, cell: str) -> TableCell:
    if not efficiencies:
        return TableCell("–", look="muted")
    return TableCell(marked(_share(performance_portability(list(efficiencies.values()))), origin), cell)


def _share(value: float) -> str:
    return f"{100 * value:.3g} %" if value else "0"


class Errors(NamedTuple):
    """How far one method is off: relative errors over cells, signed."""

    method: str
    cells: int
    median: float
    worst: float
    worst_at: Value
    under: float  # share of cells in which it underestimates
    lowest: float  # the lowest error: the worst underestimate, where below zero
    worst_sample: float  # of a single sample; the other errors are of each cell's median
    several: bool  # whether a cell has several samples
    each: tuple[float, ...] = ()  # of every cell


def error_rows(block: ReportBlock, index: ResultIndex) -> list[Errors]:
    """Return one row per method, the most accurate first."""
    groups: dict[str, list[Value]] = {}
    for value in index.select(block.fields["metric"], block.fields["where"]):
        groups.setdefault(value.method, []).append(value)
    rows = []
    for method, values in groups.items():
        worst = max(values, key=lambda one: abs(one.median))
        median = statistics.median(abs(one.median) for one in values)
        under = sum(one.median < 0 for one in values) / len(values)
        lowest = min(one.median for one in values)
        sample = max((end for one in values for end in (one.min, one.max)), key=abs)
        several = any(one.min < one.max for one in values)
        each = tuple(one.median for one in values)
        rows.append(
            Errors(method, len(values), median, worst.median, worst, under, lowest, sample, several, each)
        )
    return sorted(rows, key=lambda row: (row.median, row.method))


def errors(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return each method with its median error, the worst and where, and how often it underestimates.

    Where cells have several samples, also the worst of a single one.
    """
    rows = []
    found = error_rows(block, index)
    several = any(row.several for row in found)
    for row in found:
        place = ", ".join(spec.name(key, getattr(row.worst_at, key)) for key in ("optimization", "workload"))
        rows.append(
            (
                TableCell(spec.name("method", row.method), look="word"),
                TableCell(str(row.cells)),
                TableCell(marked(percent(row.median), row.worst_at.origin)),
                TableCell(marked(percent(row.worst, True), row.worst_at.origin), row.worst_at.cell),
                TableCell(place, row.worst_at.cell, "word"),
                TableCell(percent(row.under)),
                TableCell(marked(percent(row.lowest, True), row.worst_at.origin) if row.under else "–"),
                *(
                    [TableCell(marked(percent(row.worst_sample, True), row.worst_at.origin))]
                    if several
                    else []
                ),
            )
        )
    header = (
        "Method",
        "Cells",
        "Median |error|",
        "Worst error",
        "Worst at",
        "Underestimates in",
        "Worst underestimate",
        *(["Worst single sample"] if several else []),
    )
    return Table(block.id, block.title, block.text, header, tuple(rows))


def isolated_vs_end_to_end(block: ReportBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return, per row and variant that was timed, the speed-up on one workload and that on another."""
    fields, notes = block.fields, Footnotes()
    rows = []
    for label, pair in fields["rows"].items():
        both = [pair["isolated"], pair["end_to_end"]]
        where = {**fields["where"], "workload": both}
        for variant in timed_variants(index, both, index.names("optimization", where), fields)[0]:
            cells = [speed_up_cell(index, notes, workload, variant, fields) for workload in both]
            name = TableCell(spec.name("optimization", variant), look="word")
            rows.append((TableCell(label, look="word"), name, *cells))
    header = (fields["heading"] or "Part", "Optimization", fields["isolated"], fields["end_to_end"])
    text = f"{block.text} {SIGNS_LEGEND}".strip()
    return Table(block.id, block.title, text, header, tuple(rows), tuple(notes.texts))
