"""The optimizer in the backward pass: each parameter is updated as soon as its gradient exists (torchtune).

Its gradient is then released, so that few gradients exist at once (LOMO, arXiv 2306.09782). torch calls a
parameter's hook after its gradient is complete; FSDP2 calls it after the reduction. Gradients are neither
accumulated nor clipped.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from harness.records import Unavailable
from suites.training.declared import OptimizerInBackwardSettings
from suites.training.host_memory import Resources
from suites.training.optimizers import RankOptimizer, make_torch_optimizer, tensors_in
from suites.training.step import TrainingStep
from suites.training.workload import Workload


def applies_to(workload: Workload, settings: OptimizerInBackwardSettings) -> str | None:
    """Return why such a step cannot be updated so; None where it can."""
    if workload.gradient_accumulation_steps > 1:
        return "each gradient is used and released at once, so gradients cannot be accumulated"
    if workload.max_grad_norm is not None:
        return "clipping needs the norm of all gradients before the first update; set max_grad_norm=null"
    if workload.optimizer == "muon":
        return "muon is two optimizers, and a parameter alone does not show which of them is its own"
    return None


def apply(step: TrainingStep, settings: OptimizerInBackwardSettings) -> TrainingStep:
    """Return the step without an update of its own after the backward pass."""
    if step.make_optimizer is not None:
        raise Unavailable(
            "optimizer_in_backward works with torch's own optimizers; another technique has its own"
        )
    features = step.features.but(states="the formula has all gradients at once")
    return replace(step, make_optimizer=InBackward, features=features)


class InBackward(RankOptimizer):
    """One optimizer for each parameter, called by autograd."""

    def __init__(self, model: nn.Module, workload: Workload, resources: Resources) -> None:
        self._optimizers: dict[nn.Parameter, torch.optim.Optimizer] = {}
        for parameter in model.parameters():
            if parameter.requires_grad:
                self._optimizers[parameter] = make_torch_optimizer([parameter], workload)
                parameter.register_post_accumulate_grad_hook(self._update)  # type: ignore[no-untyped-call]

    def _update(self, parameter: nn.Parameter) -> None:
        self._optimizers[parameter].step()
        parameter.grad = None

    def step(self) -> None:
        """Do nothing: parameters were updated in the backward pass."""

    def zero_grad(self, keep: bool = False) -> None:
        """Do nothing: gradients were released in the backward pass."""

    def full_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """Raise `Unavailable`: there are none after a backward pass."""
        raise Unavailable("optimizer_in_backward releases gradients, so they cannot be compared")

    def state_tensors(self) -> list[Tensor]:
        """Return what the optimizers keep."""
        return [one for optimizer in self._optimizers.values() for one in tensors_in(optimizer)]
