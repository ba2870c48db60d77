"""Optimizers by name, and the one interface by which a `trainer.Trainer` updates parameters.

torch's own are `TorchOptimizer`; a technique that keeps states or gradients elsewhere subclasses
`RankOptimizer`. `PlainNumbers` lets code that reads numbers from tensors run on fake ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from harness.instruments import torch_internals
from suites.training.host_memory import Resources
from suites.training.models.model import blocks_of
from suites.training.quantization import AdamW8bit
from suites.training.workload import Workload

LEARNING_RATE = 1e-3
BETAS = (0.9, 0.999)
EPSILON = 1e-8
WEIGHT_DECAY = 0.01


class PlainNumbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes `tensor.item()` return 1.0, or 0 for integers and flags."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run any other operation unchanged."""
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 0
        return func(*args, **(kwargs or {}))


@contextmanager
def values_not_read(fake: bool) -> Iterator[None]:
    """Return plain numbers inside the block where fake tensors are read by deepspeed's engine.

    It gets 1 (norms) or 0 (overflow flags); its checks that ranks agree are skipped.
    """
    if not fake:
        yield
        return
    from deepspeed.runtime.zero import partitioned_param_coordinator

    original = partitioned_param_coordinator.assert_ints_same_as_other_ranks
    partitioned_param_coordinator.assert_ints_same_as_other_ranks = lambda ints: None
    try:
        with PlainNumbers():  # type: ignore[no-untyped-call]
            yield
    finally:
        partitioned_param_coordinator.assert_ints_same_as_other_ranks = original


IMPLEMENTATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "for_loop": {"foreach": False, "fused": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}
"""`Workload.optimizer_impl` as arguments of torch's optimizers."""

LEARNING_RATES = {"adamw": 1e-3, "sgd_momentum": 1e-2, "adafactor": 1e-2, "adamw_8bit": 1e-3, "muon": 1e-3}

ONE_IMPLEMENTATION = frozenset({"adamw_8bit", "muon"})
"""Optimizers without a choice of implementation; for others see `Workload.optimizer_impl`."""

ADAMW_FLOPS = 14
"""FLOPs of AdamW per parameter, as it is written: decay 1, first moment 3, second 4, denominator 3 (root,
correction, epsilon), update 3 (quotient, step size, difference). Corrections of scalars are not counted."""

Parameters = Iterable[nn.Parameter]


class Adafactor(torch.optim.Adafactor):
    """torch's Adafactor (arXiv 1804.04235): second moments of a matrix as a row and a column.

    It reads norms as numbers, which fake tensors do not have.
    """

    def step(self, closure: Any = None) -> Any:
        """Update the parameters."""
        fake = torch_internals.is_fake(self.param_groups[0]["params"][0])
        with PlainNumbers() if fake else nullcontext():  # type: ignore[no-untyped-call]
            return super().step(closure)  # type: ignore[no-untyped-call]


def make_torch_optimizer(parameters: Parameters, workload: Workload) -> torch.optim.Optimizer:
    """Return torch's own optimizer of the workload's name, with its implementation and learning rate.

    Of Adam's kind with torch's betas; SGD with momentum, whose losses, unlike Adam's, depend on the scale of
    gradients; Muon for matrices, scaled to suit AdamW's learning rate (arXiv 2502.16982).
    """
    name, rate = workload.optimizer, workload.learning_rate
    given: dict[str, Any] = {} if name in ONE_IMPLEMENTATION else IMPLEMENTATIONS[workload.optimizer_impl]
    given = {**given, "lr": LEARNING_RATES[name] if rate is None else rate}
    groups: Any = by_mesh(list(parameters))
    if name == "sgd_momentum":
        return torch.optim.SGD(groups, momentum=0.9, **given)
    given["weight_decay"] = workload.weight_decay
    if name == "adafactor":
        given.pop("fused", None)
        return Adafactor(groups, **given)
    if name == "muon":
        return torch.optim.Muon(groups, adjust_lr_fn="match_rms_adamw", **given)
    kind = {"adamw": torch.optim.AdamW, "adamw_8bit": AdamW8bit}[name]
    optimizer: torch.optim.Optimizer = kind(groups, eps=workload.adam_epsilon, **given)
    return optimizer


def by_mesh(parameters: list[nn.Parameter]) -> list[nn.Parameter] | list[dict[str, Any]]:
    """Return the parameters; in groups, where they are sharded over different meshes.

    An operation takes the tensors of one mesh alone, and an optimizer's operations those of one group.
    """
    groups = on_meshes(parameters)
    return parameters if len(groups) < 2 else [{"params": group} for group in groups]


def on_meshes(tensors: Iterable[Any]) -> list[list[Any]]:
    """Return the tensors of each mesh; plain ones are of none."""
    groups: dict[Any, list[Any]] = {}
    for one in tensors:
        groups.setdefault(one.device_mesh if isinstance(one, DTensor) else None, []).append(one)
    return list(groups.values())


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """Return the norm of all gradients together, a plain tensor, where they are sharded over any meshes."""
    norms = [full(torch.nn.utils.get_total_norm(group)) for group in on_meshes(gradients)]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float) -> None:
    """Clip the norm of all `.grad` together, as torch's `clip_grad_norm_` does on one mesh."""
    parameters = list(parameters)
    groups = on_meshes(parameters)
    if len(groups) < 2:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        return
    norm = total_norm(one.grad for one in parameters if one.grad is not None)
    scale = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for one in parameters:
        if one.grad is not None:
            one.grad.mul_(scale)


def not_for_shards(workload: Workload) -> str | None:
    """Return why torch has no such optimizer for distributed tensors; None where it has."""
    if workload.optimizer == "sgd_momentum" and workload.optimizer_impl == "fused":
        return "torch has no fused SGD for distributed tensors; set optimizer_impl=foreach"
    if workload.optimizer == "adafactor":
        return "torch's Adafactor does not work on distributed tensors"
    if workload.optimizer == "muon":
        return "Muon orthogonalizes full matrices, and each rank has a part of them"
    return None


class RankOptimizer:
    """What updates a rank's parameters; its defaults suit gradients in `.grad`."""

    host_private_B = 0
    """Private memory of this process that represents the host's, not the device's."""

    def step(self) -> None:
        """Update the parameters."""
        raise NotImplementedError

    def zero_grad(self, keep: bool = False) -> None:
        """Release the gradients; `keep`: set them to zero in place."""
        raise NotImplementedError

    def set_gradients_to_zeros(self) -> bool:
        """Prepare `step` without a backward pass; return False where it needs one, as by default.

        A dry run then skips the first step's passes. Whatever a pass makes and keeps needs False.
        """
        return False

    def clip_grad_norm(self, max_norm: float) -> None:
        """Clip the norm of all gradients together."""
        raise NotImplementedError

    def state_tensors(self) -> list[Tensor]:
        """Return the tensors kept from step to step besides parameters and gradients."""
        return []

    def tensors_by_kind(self) -> list[tuple[Tensor, str]]:
        """Return tensors that the optimizer stores itself, with their kind of memory."""
        return []

    def full_parameters(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the unsharded parameters by name; a collective where they are sharded."""
        return {name: full(one.detach()) for name, one in model.named_parameters()}

    def full_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the unsharded gradients by name, between a backward pass and the update."""
        gradients = ((name, getattr(one, "main_grad", one.grad)) for name, one in model.named_parameters())
        return {name: full(one) for name, one in gradients if one is not None}

    def files_B(self) -> int:
        """Return the bytes of files that hold part of the state."""
        return 0

    def close(self) -> None:
        """Release threads and files."""


class TorchOptimizer(RankOptimizer):
    """One of torch.optim's."""

    def __init__(self, parameters: Parameters, inner: torch.optim.Optimizer) -> None:
        self.parameters, self.inner = list(parameters), inner

    def step(self) -> None:
        """Update the parameters."""
        self.inner.step()

    def zero_grad(self, keep: bool = False) -> None:
        """Release the gradients, or set them to zero in place."""
        self.inner.zero_grad(set_to_none=not keep)

    def set_gradients_to_zeros(self) -> bool:
        """Give each parameter that is trained a gradient of zeros."""
        return give_zeros(self.parameters)

    def clip_grad_norm(self, max_norm: float) -> None:
        """Clip the norm of all `.grad` together."""
        clip_grad_norm(self.parameters, max_norm)

    def state_tensors(self) -> list[Tensor]:
        """Return what torch's optimizer keeps."""
        return tensors_in(self.inner)


def torch_optimizer(model: nn.Module, workload: Workload, resources: Resources) -> RankOptimizer:
    """Return the workload's own optimizer over all parameters; the default of a `TrainingStep`."""
    if workload.optimizer == "muon":
        return MuonAndAdamW(model, workload)
    parameters = list(model.parameters())
    return TorchOptimizer(parameters, make_torch_optimizer(parameters, workload))


class MuonAndAdamW(TorchOptimizer):
    """Muon for the matrices of the layers, AdamW for embeddings, the output layer and vectors."""

    def __init__(self, model: nn.Module, workload: Workload) -> None:
        parameters = [one for one in model.parameters() if one.requires_grad]
        in_layers = {id(one) for one in blocks_of(model).parameters()}
        matrices = [one for one in parameters if one.ndim == 2 and id(one) in in_layers]
        super().__init__(parameters, make_torch_optimizer(matrices, workload))
        others = [one for one in parameters if one.ndim != 2 or id(one) not in in_layers]
        self.of_others = make_torch_optimizer(others, replace(workload, optimizer="adamw"))

    def step(self) -> None:
        """Update the parameters."""
        super().step()
        self.of_others.step()

    def zero_grad(self, keep: bool = False) -> None:
        """Release the gradients, or set them to zero in place."""
        super().zero_grad(keep)
        self.of_others.zero_grad(set_to_none=not keep)

    def state_tensors(self) -> list[Tensor]:
        """Return what both optimizers keep."""
        return [*super().state_tensors(), *tensors_in(self.of_others)]


def give_zeros(parameters: Parameters) -> bool:
    """Give each parameter that is trained a gradient of zeros; return True."""
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    return True


def tensors_in(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the state tensors of one of torch's optimizers."""
    return [one for state in optimizer.state.values() for one in state.values() if isinstance(one, Tensor)]


def full(tensor: Tensor) -> Tensor:
    """Return the tensor itself, or the full tensor of one that is sharded over ranks, on their devices."""
    if not isinstance(tensor, DTensor):
        return tensor
    there: Any = tensor.to(tensor.device_mesh.device_type)
    whole: Tensor = there.full_tensor()
    return whole


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
