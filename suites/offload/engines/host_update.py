"""ZeRO-Offload's cut written out: parameters and computation on the device, everything else on the host.

The device keeps parameters in the type that they are multiplied in; each gradient goes down as soon as it is
there, in that type; the host holds fp32 parameters and moments, updates them and sends parameters up. That
moves two parameters' worth of bytes a step, the least with all states below (arXiv 2101.06840, section 4).
Each parameter has one rank that updates it.

With `delay` 1 the update of one step runs beside the computation of the next (delayed parameter update,
section 5.2): parameters then miss the last step's gradients.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor, nn

from suites.offload.engines import adamw, states_on_host
from suites.offload.subject import Plan, Workload
from suites.training.host_memory import HostMemory as Host
from suites.training.model import Transformer


class Engine:
    """See the module."""

    host_private_B = 0

    def __init__(self, model: Transformer, plan: Plan, workload: Workload, host: Host) -> None:
        self.model = model.to(torch.bfloat16 if workload.precision == "bf16" else torch.float32)
        self.delay, self.ordinary = plan.delay, plan.delay_after
        owners = owners_of(list(model.parameters()), dist.get_world_size())
        self.owned = [Owned(one, host) for one, owner in owners.items() if owner == dist.get_rank()]
        self.owners = owners
        by_parameter = {one.parameter: one for one in self.owned}
        for parameter, owner in owners.items():
            parameter.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                lambda one, owner=owner: gradient_down(one, owner, by_parameter.get(one))
            )
        self.optimizer = adamw([one.master for one in self.owned], workload)
        states_on_host(self.optimizer, host)
        self.beside = ThreadPoolExecutor(1)
        self.running: Future[None] | None = None

    def step(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """See `suites.offload.engines.Engine`."""
        loss: Tensor = self.model(tokens_BT, targets_BT)
        loss.backward()  # type: ignore[no-untyped-call]
        self.ordinary -= 1
        if self.delay and self.ordinary < 0:
            self._finish()
            self._widen()
            self.running = self.beside.submit(self._update)
        else:
            self._widen()
            self._update()
            self._up()
        return loss.detach()

    def close(self) -> None:
        """Wait for an update that runs beside."""
        self.beside.shutdown()

    def _finish(self) -> None:
        """Take up what the update of the step before gave."""
        if self.running is not None:
            self.running.result()
            self._up()

    def _widen(self) -> None:
        """Gradients to fp32, on the host: what came down may be overwritten from here on."""
        for one in self.owned:
            assert one.master.grad is not None
            one.master.grad.copy_(one.gradient)

    def _update(self) -> None:
        """On the host alone."""
        self.optimizer.step()
        with torch.no_grad():
            for one in self.owned:
                one.narrow.copy_(one.master)

    def _up(self) -> None:
        """Parameters to the device, and to the other ranks."""
        with torch.no_grad():
            for one in self.owned:
                one.parameter.copy_(one.narrow)
            for parameter, owner in self.owners.items():
                dist.broadcast(parameter, owner)


class Owned:
    """A parameter that this rank updates, and what the host has of it."""

    def __init__(self, parameter: nn.Parameter, host: Host) -> None:
        self.parameter = parameter
        self.gradient = host.empty(parameter.shape, parameter.dtype)
        self.narrow = host.empty(parameter.shape, parameter.dtype)
        self.master = nn.Parameter(host.keep(parameter.detach().float()))
        self.master.grad = host.empty(parameter.shape, torch.float32)


def owners_of(parameters: list[nn.Parameter], ranks: int) -> dict[nn.Parameter, int]:
    """A rank for each parameter, the largest first to whom has least."""
    held = [0] * ranks
    found = {}
    for parameter in sorted(parameters, key=lambda one: -one.numel()):
        owner = held.index(min(held))
        held[owner] += parameter.numel()
        found[parameter] = owner
    return {parameter: found[parameter] for parameter in parameters}


def gradient_down(parameter: nn.Parameter, owner: int, mine: Owned | None) -> None:
    """A gradient's mean over ranks to the owner's host; the device lets it go."""
    gradient = parameter.grad
    assert gradient is not None
    gradient /= dist.get_world_size()
    dist.reduce(gradient, owner)
    if mine is not None:
        mine.gradient.copy_(gradient)
    parameter.grad = None
