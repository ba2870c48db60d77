"""Name the function that draws each kind of figure; imported where a figure is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.report.bar_plots import bars
from harness.report.curves_plot import curves
from harness.report.effect_plot import effect_plot
from harness.report.error_strip import error_strip
from harness.report.figure import Figure
from harness.report.line_plot import lines
from harness.report.result_index import ResultIndex
from harness.report.roofline_plot import roofline_plot
from harness.report.scatter_plot import scatter
from harness.report.series_over_steps import line_over_steps
from harness.report.spans_plot import spans
from harness.report.spec import ReportBlock, Spec
from harness.report.stacked_timeline import stacked_timeline

FIGURES: Mapping[str, Callable[[ReportBlock, Spec, ResultIndex], Figure | None]] = {
    "bars": bars,
    "curves": curves,
    "effect_plot": effect_plot,
    "error_strip": error_strip,
    "line_over_steps": line_over_steps,
    "lines": lines,
    "roofline_plot": roofline_plot,
    "scatter": scatter,
    "spans": spans,
    "stacked_timeline": stacked_timeline,
}
