"""Show what each factor of a full factorial is worth: alone, added last, over all orders, in pairs."""

from __future__ import annotations

from harness.claims.factorial import Factorial, factorial_of, variant_name
from harness.claims.paired_ratio import NoPairsError, compare
from harness.report.data.result_index import ResultIndex
from harness.report.language.spec import ReportBlock, Spec
from harness.report.tables.tables import Footnotes, Table, TableCell
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
