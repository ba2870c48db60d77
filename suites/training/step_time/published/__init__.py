"""Training steps that others published, and the run that Table III quotes.

Its model, nodes, links and seconds per step are shared by the suite that scales links to this host and by the
suite of closed formulas.
"""

from __future__ import annotations

PARAMETERS = 12.2e9  # Gemma 3 12B
ELEMENT_B = 2  # bf16
NODES, GPUS_PER_NODE = 2, 8
FAST_B_PER_S, FAST_STEP_S = 400e9, 4.4
"""Zhu, "Network and Storage Benchmarks for LLM Training on the Cloud", 2025, which Table III quotes."""
