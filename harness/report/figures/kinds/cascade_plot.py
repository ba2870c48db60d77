"""Draw a cascade: each variant's efficiencies from its best platform to its worst, ending where support ends.

Sewall, Pennycook, Jacobsen, Deakin and McIntosh-Smith, Interpreting and Visualizing Performance Portability
Metrics, P3HPC 2020, doi 10.1109/P3HPC51967.2020.00007.
"""

from __future__ import annotations

from harness.report.data.efficiency import application, performance_portability, time_of
from harness.report.data.result_index import ResultIndex
from harness.report.figures.axes import x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, not_drawn, right_labels, y_title
from harness.report.figures.svg import DASHES, MOST_LINES, SERIES, Tip
from harness.report.language.spec import ReportBlock, Spec


def cascade(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure; None with fewer than two platforms."""
    fields = block.fields
    found = application(index, fields)
    count = max((len(one) for one in found.values()), default=0)
    if count < 2:
        return None
    means = {name: performance_portability(list(one.values())) for name, one in found.items()}
    ordered = sorted(found, key=lambda name: -_area(found[name]))
    hidden = [spec.name("optimization", name) for name in ordered[MOST_LINES:]]
    drawing, ends = Drawing(block.id, 420), []
    for i, name in enumerate(ordered[:MOST_LINES]):
        supported = sorted(((e, place) for place, e in found[name].items() if e > 0), reverse=True)
        label = spec.name("optimization", name)
        heights = [e for e, _ in supported]
        xs = list(range(1, len(heights) + 1))
        style = DASHES[i % len(DASHES)] or (None, None)
        drawing.axes.plot(xs, heights, color=SERIES[i % len(SERIES)], linewidth=1.8, dashes=style)
        tips = []
        for e, place in supported:
            value = time_of(index, place, name, fields)
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


def _area(efficiencies: dict[str, float]) -> float:
    return sum(efficiencies.values())
