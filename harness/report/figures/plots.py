"""Name the function that draws each kind of figure; imported where a figure is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.report.data.result_index import ResultIndex
from harness.report.figures.figure import Figure
from harness.report.figures.kinds.bars import bars, cascade, waterfall
from harness.report.figures.kinds.effect_plot import effect_plot
from harness.report.figures.kinds.lines import curves, line_over_steps, lines
from harness.report.figures.kinds.points import error_strip, roofline_plot, scatter
from harness.report.figures.kinds.timelines import spans, stacked_timeline
from harness.report.language.spec import ReportBlock, Spec

FIGURES: Mapping[str, Callable[[ReportBlock, Spec, ResultIndex], Figure | None]] = {
    "bars": bars,
    "cascade": cascade,
    "curves": curves,
    "effect_plot": effect_plot,
    "error_strip": error_strip,
    "line_over_steps": line_over_steps,
    "lines": lines,
    "roofline_plot": roofline_plot,
    "scatter": scatter,
    "spans": spans,
    "stacked_timeline": stacked_timeline,
    "waterfall": waterfall,
}
