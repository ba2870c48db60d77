"""A user's config.json: whether its step fits with its float64 reference."""

from __future__ import annotations

import torch

from harness.instruments.memory.process.free_memory import shortage
from suites.portability.subject import Subject
from suites.training.models import huggingface

STEP_B, REFERENCE_B, ENGINE_B = 16 + 12, 8 * 7, 2 * 12
"""Bytes per parameter in fp32: of eager's weight, gradient, two moments and the graph's three inputs; of
float64's three inputs, gradient and three results; of one engine's inputs and results."""


def too_large(subject: Subject) -> str:
    """Return why a step of the model does not fit into this machine's memory; "" where it does."""
    workload = subject.workload
    if workload.hf_config is None:
        return ""
    with torch.device("meta"):
        model = huggingface.build(workload.hf_config)
    parameters = sum(one.numel() for one in model.parameters())
    lacking = shortage(parameters * (STEP_B + REFERENCE_B + ENGINE_B), torch.device("cpu"))
    if lacking is None:
        return ""
    size = f"{parameters / 1e6:,.0f} M parameters"
    fewer = "try a smaller suite.hf_defaults.num_hidden_layers"
    return f"a captured step of {size} with its float64 reference {lacking}; {fewer}"
