"""Figures of a report: axes, colours and labels, and `kinds`, one module per kind."""
