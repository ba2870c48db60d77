"""The kinds of figures, a module each; `harness.report.figures.plots` names them."""
