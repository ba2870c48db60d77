"""Name the function that draws each kind of figure; imported where a figure is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.report.data.result_index import ResultIndex
from harness.report.figures.figure import Figure
from harness.report.figures.kinds.bar_plots import bars
from harness.report.figures.kinds.cascade_plot import cascade
from harness.report.figures.kinds.curves_plot import curves
from harness.report.figures.kinds.effect_plot import effect_plot
from harness.report.figures.kinds.error_strip import error_strip
from harness.report.figures.kinds.line_plot import lines
from harness.report.figures.kinds.roofline_plot import roofline_plot
from harness.report.figures.kinds.scatter_plot import scatter
from harness.report.figures.kinds.series_over_steps import line_over_steps
from harness.report.figures.kinds.spans_plot import spans
from harness.report.figures.kinds.stacked_timeline import stacked_timeline
from harness.report.figures.kinds.waterfall import waterfall
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
