"""Draw what a metric did from step to step, one line per variant."""

from __future__ import annotations

from statistics import fmean

from harness.report.data.result_index import ResultIndex
from harness.report.figures.axes import linear, x_title
from harness.report.figures.figure import Drawing, Figure, alt_text, not_drawn, origins, right_labels, y_title
from harness.report.figures.svg import DASHES, MOST_LINES, SERIES, Tip
from harness.report.language.spec import ReportBlock, Spec
from harness.units import number


def line_over_steps(block: ReportBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Return the figure: the metric's samples in their order, averaged over repeats; None without samples."""
    every = _series(block, spec, index)
    series = dict(list(every.items())[:MOST_LINES])
    if all(len(line) < 2 for line, _ in series.values()):
        return None
    drawing = Drawing(block.id, 400)
    axes = drawing.axes
    heights = [value for line, _ in series.values() for value in line]
    margin = (max(heights) - min(heights)) * 0.06 or abs(max(heights)) * 0.05 or 1.0
    linear(axes, "y", min(heights) - margin, max(heights) + margin, "1")
    longest = max(len(line) for line, _ in series.values())
    linear(axes, "x", 1, max(longest, 2), "1")
    for i, (name, (line, cell)) in enumerate(series.items()):
        axes.plot(range(1, len(line) + 1), line, color=SERIES[i % len(SERIES)], linewidth=1.6,
                  dashes=DASHES[i % len(DASHES)] or (None, None))  # fmt: skip
        tip = Tip(f"{name}, {len(line)}: {number(line[-1])}", cell)
        drawing.points([(len(line), line[-1])], [tip], i)
    x_title(axes, block.fields["x_title"])
    values = index.select(block.fields["metric"], block.fields["where"])
    y_title(drawing, f"{block.fields['y_title']} ({origins(value.origin for value in values)})".strip())
    labels = [(line[-1], name, SERIES[i % len(SERIES)]) for i, (name, (line, _)) in enumerate(series.items())]
    right_labels(drawing, labels)
    text = block.text + not_drawn(list(every)[MOST_LINES:])
    return drawing.finish(block.title, text, alt_text(block.title, series))


def _series(block: ReportBlock, spec: Spec, index: ResultIndex) -> dict[str, tuple[list[float], str]]:
    """Return, of each variant that has it, the mean over repeats at each step that all of them took."""
    where, metric = block.fields["where"], block.fields["metric"]
    series = {}
    for workload in index.names("workload", where, metric):
        for variant in index.names("optimization", where, metric):
            runs = [
                (one.samples, record.cell.id)
                for record in index.right(workload, variant)
                for one in record.measurements
                if one.metric == metric
            ]
            if runs:
                steps = [fmean(step) for step in zip(*(samples for samples, _ in runs), strict=False)]
                series[spec.name("optimization", variant)] = (steps, runs[0][1])
    return series
