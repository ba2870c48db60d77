"""Let several trainers of one process share weights and moments, as they are timed in turn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suites.training.optimizers.optimizers import RankOptimizer

SharedTensors = dict[tuple[str, str], Tensor]
"""By parameter and "weight", "exp_avg" or "exp_avg_sq"."""


def share_states(model: nn.Module, optimizer: RankOptimizer, shared: SharedTensors) -> None:
    """Let weights and AdamW's moments be those in `shared`, to which the first trainer gives its own.

    Variants of one process are timed in turn, and their speed does not depend on the values.
    """
    inner = getattr(optimizer, "inner", None)
    states = inner.state if isinstance(inner, torch.optim.Optimizer) else {}
    for name, parameter in model.named_parameters():
        parameter.data = fitting(shared, (name, "weight"), parameter.data)
        own = states.get(parameter, {})
        for key in ("exp_avg", "exp_avg_sq"):
            if key in own:
                own[key] = fitting(shared, (name, key), own[key])


def fitting(shared: SharedTensors, key: tuple[str, str], own: Tensor) -> Tensor:
    """Return the shared tensor where it has the shape and type of one's `own`, which else is kept."""
    one = shared.setdefault(key, own)
    return one if (one.shape, one.dtype) == (own.shape, own.dtype) else own
