"""Make what the report of this suite alone shows: efficiencies over platforms, and their harmonic mean.

Pennycook, Sewall and Lee, arXiv 1611.07409, define performance portability as |H| / sum(1 / e_i) over the
platforms i of a set H, and as 0 where one is not supported. Application efficiency e_i is the best observed
time on i over this one's; architectural efficiency is the achieved rate over the platform's peak. Here a
platform is this device with one workload. The cascade is that of Sewall et al., P3HPC 2020, doi
10.1109/P3HPC51967.2020.00007.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.report.axes import MOST_LINES, SERIES, Tip, x_title
from harness.report.figure import Drawing, Figure, alt_text, not_drawn, right_labels, y_title
from harness.report.results import ResultIndex, Value
from harness.report.spec import OwnBlock, OwnFigureBlock, OwnTableBlock, Pairing, Spec
from harness.report.tables import DASH, Table, TableCell, word
from harness.units import marked

TIMED = Pairing("time", "warm", "baseline", "baseline_again")


def harmonic_mean(efficiencies: Sequence[float]) -> float:
    """Return the harmonic mean, 0 where one is 0; raises ValueError without any."""
    if not efficiencies:
        raise ValueError("performance portability is defined over at least one platform")
    if min(efficiencies) <= 0:
        return 0.0
    return len(efficiencies) / sum(1 / one for one in efficiencies)


def platforms(index: ResultIndex, block: OwnBlock) -> list[str]:
    """Return the workloads on which any variant was timed."""
    return index.names("workload", block.where, TIMED.metric)


def variants(index: ResultIndex, block: OwnBlock) -> list[str]:
    """Return the variants that were timed on any of them, without the one that repeats the baseline."""
    names = index.names("optimization", block.where, TIMED.metric)
    return [name for name in names if name != TIMED.noise]


def application(index: ResultIndex, block: OwnBlock) -> dict[str, dict[str, float]]:
    """Return by variant and platform the best time of any variant over its own; 0 where it has none."""
    found: dict[str, dict[str, float]] = {variant: {} for variant in variants(index, block)}
    for workload in platforms(index, block):
        times = {variant: time_of(index, workload, variant) for variant in found}
        best = min(value.median for value in times.values() if value is not None)
        for variant, value in times.items():
            found[variant][workload] = best / value.median if value is not None else 0.0
    return found


def architectural(index: ResultIndex, block: OwnBlock) -> dict[str, dict[str, float]]:
    """Return by variant and platform its rate over this device's own; only platforms with products count.

    The rate is the FLOP of one call over the variant's time; the device's is that of a large product.
    """
    found: dict[str, dict[str, float]] = {variant: {} for variant in variants(index, block)}
    for workload in platforms(index, block):
        work = index.first(workload, TIMED.baseline, "flops")
        peak = index.first(workload, TIMED.baseline, "matmul_rate")
        if work is None or peak is None or not work.median:
            continue
        for variant in found:
            value = time_of(index, workload, variant)
            found[variant][workload] = work.median / value.median / peak.median if value is not None else 0.0
    return found


def time_of(index: ResultIndex, workload: str, variant: str) -> Value | None:
    """Return a variant's time; None where it has none, as where its result is wrong."""
    return index.get(workload, variant, TIMED.metric, TIMED.method)


def performance_portability(block: OwnTableBlock, spec: Spec, index: ResultIndex) -> Table:
    """Return a row per variant: how many platforms it supports, both means, each efficiency."""
    places = platforms(index, block)
    by_time, by_rate = application(index, block), architectural(index, block)
    rows = []
    for variant, efficiencies in by_time.items():
        first = next(value for place in places if (value := time_of(index, place, variant)))
        supported = sum(1 for one in efficiencies.values() if one > 0)
        cells = [
            word(spec.name("optimization", variant)),
            TableCell(f"{supported} of {len(places)}", first.cell),
            _mean(efficiencies, first.origin, first.cell),
            _mean(by_rate[variant], first.origin, first.cell),
        ]
        for place in places:
            value = time_of(index, place, variant)
            cells.append(
                TableCell(_share(efficiencies[place]), value.cell) if value else TableCell("0", look="muted")
            )
        rows.append((-harmonic_mean(list(efficiencies.values())), tuple(cells)))
    header = (
        "Variant",
        "Platforms",
        "PP, application",
        "PP, architectural",
        *(spec.name("workload", place).partition(" (")[0] for place in places),
    )
    ordered = tuple(cells for _, cells in sorted(rows, key=lambda row: row[0]))
    return Table(block.id, block.title, block.text, header, ordered)


def _mean(efficiencies: Mapping[str, float], origin: str, cell: str) -> TableCell:
    if not efficiencies:
        return DASH
    return TableCell(marked(_share(harmonic_mean(list(efficiencies.values()))), origin), cell)


def _share(value: float) -> str:
    return f"{100 * value:.3g} %" if value else "0"


def cascade(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure; None with fewer than two platforms."""
    found = application(index, block)
    count = max((len(one) for one in found.values()), default=0)
    if count < 2:
        return None
    means = {name: harmonic_mean(list(one.values())) for name, one in found.items()}
    ordered = sorted(found, key=lambda name: -sum(found[name].values()))
    hidden = [spec.name("optimization", name) for name in ordered[MOST_LINES:]]
    drawing, ends = Drawing(block.id, 420), []
    for i, name in enumerate(ordered[:MOST_LINES]):
        supported = sorted(((e, place) for place, e in found[name].items() if e > 0), reverse=True)
        label = spec.name("optimization", name)
        heights = [e for e, _ in supported]
        xs = list(range(1, len(heights) + 1))
        drawing.line(xs, heights, i)
        tips = []
        for e, place in supported:
            value = time_of(index, place, name)
            cell = value.cell if value is not None else ""
            tips.append(Tip(f"{label}, {spec.name('workload', place)}: {e:.0%} of the best", cell))
        drawing.points(list(zip(xs, heights, strict=True)), tips, i)
        ends.append((heights[-1], f"{label}: PP {means[name]:.2f}", SERIES[i % len(SERIES)]))
    drawing.axes.set_ylim(0, 1.05)
    drawing.axes.set_xlim(0.7, count + 0.3)
    drawing.axes.set_xticks(range(1, count + 1))
    drawing.axes.grid(axis="y")
    x_title(drawing.axes, "Platforms, from each variant's best to its worst")
    y_title(drawing, "Application efficiency (best time / time, measured)")
    right_labels(drawing, ends)
    text = (block.text + not_drawn(hidden)).strip()
    return drawing.finish(
        block.title, text, alt_text(block.title, [spec.name("optimization", n) for n in ordered])
    )
