"""Mixed precision (arXiv 1710.03740): bf16 compute over fp32 master states, in its three conventions.

They differ in the type in which each tensor is stored, and so in bytes per parameter before any activation.
`fsdp1`, `fsdp2`, `zero` and `host_update` have mixed precision of their own, which takes the place of
autocast; `zero` and `host_update` refuse what theirs does not have.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from suites.training import optimizers
from suites.training.declared import MixedPrecisionSettings
from suites.training.host_memory import Resources
from suites.training.step import Contract, TrainingStep, Within
from suites.training.workload import Workload

TOLERANCE = 5e-3
"""Share of the first loss: bf16 has 8 bits of significand; a loss is a mean over thousands of products."""

PRECISIONS = {None: "autocast", "bf16": "bf16_grads", "fp32": "fp32_grads"}
"""Each setting, and its name in `Features.precision`."""

NOTES = {
    "autocast": (
        "fp32: parameters, gradients, optimizer states (16 B/param with AdamW)",
        "bf16: a copy of each weight made for its products and kept for the backward pass; their results",
    ),
    "bf16_grads": (
        "bf16: parameters, gradients (2 + 2 B/param), activations",
        "fp32: master parameters, optimizer states (12 B/param with AdamW); gradients widened one by one",
    ),
    "fp32_grads": (
        "bf16: parameters (2 B/param), activations, each gradient until it is added to its sum",
        "fp32: sums of gradients (4), master parameters, optimizer states (12 B/param with AdamW)",
    ),
}
"""autocast: torch.amp. bf16_grads: ZeRO's count (arXiv 1910.02054, 3.1). fp32_grads: Megatron-LM's."""


def contract(settings: MixedPrecisionSettings) -> Contract:
    """Return the tolerance of products rounded to bf16."""
    return Within(TOLERANCE)


def applies_to(workload: Workload, settings: MixedPrecisionSettings) -> str | None:
    """Return why a workload's optimizer cannot update fp32 copies; None where it can."""
    if settings.gradients is not None and workload.optimizer == "muon":
        return "muon needs to know a layer's matrices, and fp32 copies of them have no names"
    return None


def apply(step: TrainingStep, settings: MixedPrecisionSettings) -> TrainingStep:
    """Return the step with bf16 compute."""
    precision = PRECISIONS[settings.gradients]
    changed = replace(
        step,
        features=replace(step.features, precision=precision),
        notes=(*step.notes, *NOTES[precision]),
    )
    if precision == "autocast":
        return replace(changed, around=partial(torch.autocast, dtype=torch.bfloat16))
    make = NarrowGradients if precision == "bf16_grads" else WideGradients
    return replace(changed, model_dtype=torch.bfloat16, make_optimizer=make)


def with_masters(model: nn.Module) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Return each bf16 parameter that is trained, and an fp32 copy, whose updates it follows."""
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    return [(parameter, nn.Parameter(parameter.detach().float())) for parameter in trained]


@torch.no_grad()
def publish(parameter: nn.Parameter, master: nn.Parameter) -> None:
    """Round a master into its parameter."""
    parameter.copy_(master)


class NarrowGradients(optimizers.RankOptimizer):
    """Keep gradients in bf16; convert each to fp32 alone while its parameter is updated."""

    def __init__(self, model: nn.Module, workload: Workload, resources: Resources):
        self.pairs = with_masters(model)
        self.parameters, self.masters = (list(group) for group in zip(*self.pairs, strict=True))
        self._optimizers = [optimizers.make_torch_optimizer([master], workload) for master in self.masters]

    def step(self) -> None:
        """Update the parameters one by one."""
        for (parameter, master), optimizer in zip(self.pairs, self._optimizers, strict=True):
            if parameter.grad is None:
                continue
            master.grad = parameter.grad.float()
            optimizer.step()
            master.grad = None
            publish(parameter, master)

    def zero_grad(self, keep: bool = False) -> None:
        """Release the bf16 gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def set_gradients_to_zeros(self) -> bool:
        """Give each parameter a bf16 gradient of zeros."""
        return optimizers.give_zeros(self.parameters)

    def clip_grad_norm(self, max_norm: float) -> None:
        """Clip the norm of the bf16 gradients."""
        optimizers.clip_grad_norm(self.parameters, max_norm)

    def state_tensors(self) -> list[Tensor]:
        """Return the masters and the optimizers' states."""
        return [*self.masters, *(one for each in self._optimizers for one in optimizers.tensors_in(each))]


class WideGradients(optimizers.TorchOptimizer):
    """Add each bf16 gradient to an fp32 sum, `main_grad`, as soon as it exists, and release it."""

    def __init__(self, model: nn.Module, workload: Workload, resources: Resources):
        self.pairs = with_masters(model)
        for parameter, master in self.pairs:
            master.grad = torch.zeros_like(master)
            parameter.main_grad = master.grad  # type: ignore[attr-defined]
            parameter.register_post_accumulate_grad_hook(add_to_main_grad)  # type: ignore[no-untyped-call]
        self.masters = [one for _, one in self.pairs]
        super().__init__(self.masters, optimizers.make_torch_optimizer(self.masters, workload))

    def step(self) -> None:
        """Update all masters, then the parameters."""
        if any(parameter.grad is not None for parameter, _ in self.pairs):
            raise RuntimeError(
                "mixed_precision: gradients=fp32 needs autograd's hooks, which were not called"
            )
        super().step()
        for parameter, master in self.pairs:
            publish(parameter, master)

    def zero_grad(self, keep: bool = False) -> None:
        """Set the sums to zero; their memory stays."""
        super().zero_grad(keep=True)

    def set_gradients_to_zeros(self) -> bool:
        """Return True: the sums are zeros at first."""
        return True

    def state_tensors(self) -> list[Tensor]:
        """Return the masters and the optimizer's states."""
        return [*self.masters, *super().state_tensors()]


def add_to_main_grad(parameter: Tensor) -> None:
    """Add the gradient just computed to the fp32 sum, and release it."""
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
        parameter.grad = None
