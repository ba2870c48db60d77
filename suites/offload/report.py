"""Draw what the report of this suite alone shows."""

from __future__ import annotations

from statistics import fmean

from harness.report.axes import MOST_LINES, SERIES, Tip, linear, x_title
from harness.report.figure import Drawing, Figure, alt_text, not_drawn, origins, right_labels, y_title
from harness.report.results import ResultIndex
from harness.report.spec import OwnFigureBlock, Spec
from harness.units import number

LOSS = "loss_by_step"


def losses(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> Figure | None:
    """Draw the loss of each step, averaged over repeats, a line per variant; None without samples."""
    every = _by_variant(block, spec, index)
    series = dict(list(every.items())[:MOST_LINES])
    if all(len(line) < 2 for line, _ in series.values()):
        return None
    drawing = Drawing(block.id, 400)
    axes = drawing.axes
    heights = [value for line, _ in series.values() for value in line]
    margin = (max(heights) - min(heights)) * 0.06 or abs(max(heights)) * 0.05 or 1.0
    linear(axes, "y", min(heights) - margin, max(heights) + margin, "1")
    linear(axes, "x", 1, max(2, *(len(line) for line, _ in series.values())), "1")
    for i, (name, (line, cell)) in enumerate(series.items()):
        drawing.line(range(1, len(line) + 1), line, i, 1.6)
        drawing.points([(len(line), line[-1])], [Tip(f"{name}, {len(line)}: {number(line[-1])}", cell)], i)
    x_title(axes, "Steps")
    y_title(drawing, f"Loss ({origins(value.origin for value in index.select(LOSS, block.where))})")
    ends = [(line[-1], name, SERIES[i % len(SERIES)]) for i, (name, (line, _)) in enumerate(series.items())]
    right_labels(drawing, ends)
    text = block.text + not_drawn(list(every)[MOST_LINES:])
    return drawing.finish(block.title, text, alt_text(block.title, series))


def _by_variant(block: OwnFigureBlock, spec: Spec, index: ResultIndex) -> dict[str, tuple[list[float], str]]:
    """Return, of each variant that has it, the mean over repeats at each step that all of them took."""
    series = {}
    for workload in index.names("workload", block.where, LOSS):
        for variant in index.names("optimization", block.where, LOSS):
            runs = [
                (one.samples, record.cell.id)
                for record in index.right(workload, variant)
                for one in record.measurements
                if one.metric == LOSS
            ]
            if runs:
                steps = [fmean(step) for step in zip(*(samples for samples, _ in runs), strict=False)]
                series[spec.name("optimization", variant)] = steps, runs[0][1]
    return series
