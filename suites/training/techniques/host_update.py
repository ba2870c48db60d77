"""ZeRO-Offload's partition in plain PyTorch: parameters and computation on the device, all else on the host.

The device has parameters in the type in which they are multiplied. Each gradient is copied to the host as
soon as it exists, in that type. The host has fp32 parameters and moments, updates them, and copies parameters
back. That moves two parameters' worth of bytes per step, the least with all states on the host (arXiv
2101.06840, section 4). Each parameter has one rank that updates it.

With `delay` the update of one step runs alongside the computation of the next (delayed parameter update,
section 5.2): parameters then miss the last step's gradients. `mixed_precision` without settings makes all of
the device bf16. It neither accumulates nor clips gradients, and its states are Adam's.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.records import Unavailable
from suites.training.declared import HOST_UPDATE_HAS_NO_DRY_RUN, HostUpdateSettings
from suites.training.host_memory import HostMemory, Resources, states_on_host
from suites.training.optimizers import RankOptimizer, make_torch_optimizer
from suites.training.step import CHANGES_THE_MATHEMATICS, EXACT, Contract, TrainingStep, no_context
from suites.training.workload import Workload


def contract(settings: HostUpdateSettings) -> Contract:
    """Return `EXACT` for the same update on the host; a delayed one changes the mathematics."""
    return CHANGES_THE_MATHEMATICS if settings.delay else EXACT


def applies_to(workload: Workload, settings: HostUpdateSettings) -> str | None:
    """Return why such a step cannot be updated so; None where it can."""
    if workload.gradient_accumulation_steps > 1 or workload.max_grad_norm is not None:
        return "each gradient is copied to the host as it comes, so it is neither accumulated nor clipped"
    if workload.optimizer != "adamw":
        return f"the states that it keeps on the host are Adam's, not those of {workload.optimizer}"
    return None


def apply(step: TrainingStep, settings: HostUpdateSettings) -> TrainingStep:
    """Return one of `dp_size` ranks' step; under mixed precision all tensors on the device are bf16."""
    if step.features.precision not in ("fp32", "autocast"):
        raise Unavailable("host_update has fp32 masters of its own; use mixed_precision without settings")
    narrow = step.features.precision == "autocast"
    return replace(
        step,
        ranks=step.workload.dp_size,
        features=replace(step.features, sharding="ddp", optimizer_on="host"),
        model_dtype=torch.bfloat16 if narrow else step.model_dtype,
        around=no_context,
        make_optimizer=partial(HostOptimizer, settings),
        no_dry_run=HOST_UPDATE_HAS_NO_DRY_RUN,
    )


class HostOptimizer(RankOptimizer):
    """Update on the host."""

    def __init__(
        self, settings: HostUpdateSettings, model: nn.Module, workload: Workload, resources: Resources
    ) -> None:
        self.delay, self.ordinary = settings.delay, settings.delay_after
        self.owners = owners_of(list(model.parameters()), dist.get_world_size())
        mine = [one for one, owner in self.owners.items() if owner == dist.get_rank()]
        self.owned = [OwnedParameter(one, resources.host) for one in mine]
        by_parameter = {one.parameter: one for one in self.owned}
        for parameter, owner in self.owners.items():
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda one, owner=owner: gradient_down(one, owner, by_parameter.get(one))
            )
        self.inner = make_torch_optimizer([one.master for one in self.owned], workload)
        states_on_host(self.inner, resources.host)
        self.alongside = ThreadPoolExecutor(1)
        self.running: Future[None] | None = None

    def step(self) -> None:
        """Update on the host and copy parameters to the device; if delayed, those of the previous update."""
        self.ordinary -= 1
        if self.delay and self.ordinary < 0:
            if self.running is not None:  # the previous step's update
                self.running.result()
                self._up()
            self._widen()
            self.running = self.alongside.submit(self._update)
        else:
            self._widen()
            self._update()
            self._up()

    def zero_grad(self, keep: bool = False) -> None:
        """Do nothing: gradients were copied to the host as they came."""

    def full_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """Send each gradient from the rank that has it to all."""
        by_parameter = {one.parameter: one.gradient for one in self.owned}
        full = {}
        for name, parameter in model.named_parameters():
            gradient = by_parameter.get(parameter)
            full[name] = torch.empty_like(parameter) if gradient is None else gradient.to(parameter.device)
            dist.broadcast(full[name], self.owners[parameter])
        return full

    def close(self) -> None:
        """Wait for a running update."""
        self.alongside.shutdown()

    def _widen(self) -> None:
        """Convert gradients to fp32 on the host; their bf16 copies may be overwritten from here on."""
        for one in self.owned:
            assert one.master.grad is not None
            one.master.grad.copy_(one.gradient)

    def _update(self) -> None:
        """Update on the host."""
        self.inner.step()
        with torch.no_grad():
            for one in self.owned:
                one.narrow.copy_(one.master)

    def _up(self) -> None:
        """Copy parameters to the device and to the other ranks."""
        with torch.no_grad():
            for one in self.owned:
                one.parameter.copy_(one.narrow)
            for parameter, owner in self.owners.items():
                dist.broadcast(parameter, owner)


class OwnedParameter:
    """Keep a parameter that this rank updates, and its data on the host."""

    def __init__(self, parameter: nn.Parameter, host: HostMemory) -> None:
        self.parameter = parameter
        self.gradient = host.empty(parameter.shape, parameter.dtype)
        self.narrow = host.empty(parameter.shape, parameter.dtype)
        self.master = nn.Parameter(host.keep(parameter.detach().float()))
        self.master.grad = host.empty(parameter.shape, torch.float32)


def owners_of(parameters: list[nn.Parameter], ranks: int) -> dict[nn.Parameter, int]:
    """Return a rank for each parameter: the largest first, to the rank with the least."""
    elements = [0] * ranks
    owners = {}
    for parameter in sorted(parameters, key=lambda one: -one.numel()):
        owner = elements.index(min(elements))
        elements[owner] += parameter.numel()
        owners[parameter] = owner
    return {parameter: owners[parameter] for parameter in parameters}


def gradient_down(parameter: nn.Parameter, owner: int, mine: OwnedParameter | None) -> None:
    """Copy a gradient's mean over ranks to the owner's host and release it on the device."""
    gradient = parameter.grad
    assert gradient is not None
    gradient /= dist.get_world_size()
    dist.reduce(gradient, owner)
    if mine is not None:
        mine.gradient.copy_(gradient)
    parameter.grad = None
