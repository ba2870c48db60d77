"""bf16 compute over fp32 master states (arXiv 1710.03740), in the three ways that are called mixed precision.

They differ in what is held, and so in bytes a parameter before any activation; each states its tensors in
`notes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from harness.records import HostInfo
from suites.memory.step import TrainingStep, Workload
from suites.memory.training import plain_optimizer, state_tensors

TOLERANCE = 2e-2
"""Relative, of the loss: bf16 has 8 bits of significand, one part in 256 for every product."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`held`: "autocast", "bf16_grads" (16 bytes a parameter) or "fp32_grads" (18 bytes a parameter)."""

    held: str = "autocast"


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


def unavailable(host: HostInfo) -> str | None:
    """bf16 is computed wherever torch runs, at whatever speed."""
    return None


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """The step with bf16 compute, its tensors held as `settings.held` says."""
    if settings.held not in NOTES:
        raise ValueError(f"mixed_precision: held {settings.held!r} is none of {', '.join(NOTES)}")
    changed = replace(
        subject,
        features=replace(subject.features, precision=settings.held),
        tolerance=max(subject.tolerance, TOLERANCE),
        notes=(*subject.notes, *NOTES[settings.held]),
    )
    if settings.held == "autocast":
        return replace(changed, around=autocast_to_bf16)
    make = NarrowGradients if settings.held == "bf16_grads" else WideGradients
    return replace(changed, model_dtype=torch.bfloat16, make_optimizer=make)


def autocast_to_bf16(device_type: str) -> AbstractContextManager[Any]:
    """torch chooses for each operation whether it runs in bf16."""
    return torch.autocast(device_type, torch.bfloat16)


class Masters:
    """fp32 copies of bf16 parameters, which the optimizer updates; the parameters follow them."""

    def __init__(self, parameters: Iterable[nn.Parameter]):
        self.parameters = list(parameters)
        self.masters = [nn.Parameter(parameter.detach().float()) for parameter in self.parameters]

    @torch.no_grad()
    def publish(self, index: int) -> None:
        """Round master number `index` into its parameter."""
        self.parameters[index].copy_(self.masters[index])


class NarrowGradients(Masters):
    """Gradients stay bf16; each is widened alone while its parameter is updated."""

    def __init__(self, parameters: Iterable[nn.Parameter], workload: Workload):
        super().__init__(parameters)
        self._optimizers = [plain_optimizer([master], workload) for master in self.masters]

    def step(self) -> None:
        """Update the parameters one by one."""
        for index, (parameter, master) in enumerate(zip(self.parameters, self.masters, strict=True)):
            if parameter.grad is None:
                continue
            master.grad = parameter.grad.float()
            self._optimizers[index].step()
            master.grad = None
            self.publish(index)

    def zero_grad(self) -> None:
        """Let the bf16 gradients go."""
        for parameter in self.parameters:
            parameter.grad = None

    def state_tensors(self) -> list[Tensor]:
        """Masters and what the optimizers keep."""
        return [*self.masters, *(one for each in self._optimizers for one in state_tensors(each))]


class WideGradients(Masters):
    """Each bf16 gradient is added to an fp32 sum, `main_grad`, as soon as it is had, and let go."""

    def __init__(self, parameters: Iterable[nn.Parameter], workload: Workload):
        super().__init__(parameters)
        for parameter, master in zip(self.parameters, self.masters, strict=True):
            master.grad = torch.zeros_like(master)
            parameter.main_grad = master.grad  # type: ignore[attr-defined]
            register: Any = parameter.register_post_accumulate_grad_hook
            register(add_to_main_grad)
        self._optimizer = plain_optimizer(self.masters, workload)

    def step(self) -> None:
        """Update all masters, then the parameters."""
        if any(parameter.grad is not None for parameter in self.parameters):
            raise RuntimeError(
                "mixed_precision: held=fp32_grads needs autograd's hooks, which this sharding does not call; "
                "use held=bf16_grads or autocast"
            )
        self._optimizer.step()
        for index in range(len(self.masters)):
            self.publish(index)

    def zero_grad(self) -> None:
        """The sums begin at zero again; their memory stays."""
        self._optimizer.zero_grad(set_to_none=False)

    def clip_grad_norm(self, max_norm: float) -> None:
        """Clip the norm of the sums."""
        torch.nn.utils.clip_grad_norm_(self.masters, max_norm)

    def state_tensors(self) -> list[Tensor]:
        """Masters and what the optimizer keeps."""
        return [*self.masters, *state_tensors(self._optimizer)]


def add_to_main_grad(parameter: Tensor) -> None:
    """Add the gradient just had to the fp32 sum, and let it go."""
    if parameter.grad is not None:
        parameter.main_grad.add_(parameter.grad)  # type: ignore[attr-defined]
        parameter.grad = None
