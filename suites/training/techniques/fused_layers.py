"""Norms and gated activations that keep nothing but their inputs, as Liger-Kernel's do (arXiv 2410.10989).

Eager code keeps a norm's input in fp32 and its normalized input, and an activation's result next to its
product. Liger's kernels keep inputs alone; gradients overwrite a norm's incoming gradient, and the inputs of
an activation (liger_kernel 0.8.5, ops/rms_norm.py, in_place=True; ops/swiglu.py). On CUDA they are Liger's;
elsewhere, and on fake tensors, the layer's own code runs on a part of the tokens at a time, again in the
backward pass. Rotations stay as they are: they keep nothing, in either form.

Shapes: N tokens, D size of a token's vector.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from harness.instruments import torch_internals
from harness.records import Unavailable, UnavailableWith
from suites.training.declared import CHANGED_BY_LIGER, FusedLayersSettings
from suites.training.host_memory import Resources
from suites.training.models.huggingface import LanguageModel
from suites.training.models.model import SwiGLUMLP
from suites.training.step import TrainingStep

PARTS = 8
"""Of a micro-batch's tokens, of which one is computed at a time."""

MATRICES = ("gate_proj", "up_proj", "down_proj", "act_fn")
"""Attributes of a gated MLP in transformers' models."""

AFTER = ("post_feedforward_layernorm", "post_mlp_layernorm")
"""Ends of names of norms that are added to the residual stream, whose gradient cannot be overwritten."""


def apply(step: TrainingStep, settings: FusedLayersSettings) -> TrainingStep:
    """Return the step with such layers."""
    features = step.features.but(activations="the formula has what eager norms and activations keep")
    return replace(step, wraps=(*step.wraps, put_into_layers), features=features)


def put_into_layers(model: nn.Module, resources: Resources) -> nn.Module:
    """Change the norms and gated MLPs of a model in place; raises `Unavailable` where it has none."""
    kind = str(getattr(model.model.config, "model_type", "")) if isinstance(model, LanguageModel) else ""
    if kind and kind not in CHANGED_BY_LIGER.split():
        raise UnavailableWith(f"Liger-Kernel does not change models of type {kind}", "fused_layers")
    on_gpu = torch.cuda.is_available() and torch_internals.active_fake_mode() is None
    if on_gpu and isinstance(model, LanguageModel):
        if importlib.util.find_spec("liger_kernel") is None:
            raise Unavailable("fused_layers needs the extra liger: pip install 'throughput-harness[liger]'")
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model.model, fused_linear_cross_entropy=False)
        return model
    names = [name for name, _ in model.named_modules()]
    in_place = not any(name.endswith(AFTER) for name in names)
    changed = [change(module, in_place) for module in list(model.modules())]
    if not any(changed):
        raise UnavailableWith(f"{type(model).__name__} has no RMSNorm and no gated MLP", "fused_layers")
    return model


def change(module: nn.Module, in_place: bool) -> bool:
    """Change a norm or a gated MLP; return whether the module is one. `in_place`: of norms' gradients."""
    if isinstance(module, SwiGLUMLP):
        module.gated = partial(kept_inputs, gated(nn.functional.silu), 2, True)
    elif all(hasattr(module, name) for name in MATRICES):
        module.forward = MethodType(gated_forward, module)
    elif is_norm(module):
        module.forward = MethodType(partial(norm_forward, in_place), module)
    else:
        return False
    return True


def norm_forward(in_place: bool, module: nn.Module, x_BTD: Tensor) -> Tensor:
    """Return what a norm returns."""

    def run(x_ND: Tensor, weight_D: Tensor) -> Tensor:
        plain = copy(module)  # without the hooks of whoever shards the model
        plain._parameters = {"weight": weight_D}  # type: ignore[dict-item]
        result: Tensor = type(module).forward(plain, x_ND)
        return result

    assert isinstance(module.weight, Tensor)
    return kept_inputs(run, 1, in_place, x_BTD, module.weight)


def is_norm(module: nn.Module) -> bool:
    """Return whether a module is an RMSNorm of one input, with a weight."""
    takes = inspect.signature(type(module).forward).parameters
    return type(module).__name__.endswith("RMSNorm") and hasattr(module, "weight") and len(takes) == 2


def gated_forward(module: Any, x_BTD: Tensor) -> Tensor:
    """Return what a gated MLP of transformers returns."""
    product_BTF = kept_inputs(gated(module.act_fn), 2, True, module.gate_proj(x_BTD), module.up_proj(x_BTD))
    result: Tensor = module.down_proj(product_BTF)
    return result


def gated(activation: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the product of an activated gate and another tensor."""
    return lambda gate_ND, up_ND: activation(gate_ND) * up_ND


def kept_inputs(run: Callable[..., Tensor], rowwise: int, in_place: bool, *tensors: Tensor) -> Tensor:
    """Return `run` of the tensors, of which the first `rowwise` have a row per token; see `_KeptInputs`."""
    result: Tensor = _KeptInputs.apply(run, rowwise, in_place, *tensors)  # type: ignore[no-untyped-call]
    return result


class _KeptInputs(torch.autograd.Function):
    """Compute a function of rows; keep its inputs, and compute it again backward, part by part.

    `in_place`: gradients overwrite the incoming one, or where two inputs have rows, these.
    """

    @staticmethod
    def forward(
        context: Any, run: Callable[..., Tensor], rowwise: int, in_place: bool, *tensors: Tensor
    ) -> Tensor:
        context.run, context.rowwise, context.in_place = run, rowwise, in_place
        context.save_for_backward(*tensors)
        rows, rest = [one.flatten(0, -2) for one in tensors[:rowwise]], tensors[rowwise:]
        result_ND: Tensor | None = None
        for part in parts_of(len(rows[0])):
            of_part = run(*(one[part] for one in rows), *rest)
            if result_ND is None:
                result_ND = of_part.new_empty(len(rows[0]), of_part.shape[-1])
            result_ND[part] = of_part
        assert result_ND is not None
        return result_ND.view(*tensors[0].shape[:-1], -1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, rowwise = context.saved_tensors, context.rowwise
        rows, rest = [one.detach().flatten(0, -2) for one in tensors[:rowwise]], tensors[rowwise:]
        gradient_ND = gradient.detach().contiguous().flatten(0, -2)
        alone = context.in_place and rowwise == 1 and gradient_ND.dtype == rows[0].dtype
        into = [gradient_ND] if alone else [torch.empty_like(rows[0])] if rowwise == 1 else rows
        of_rest: list[Tensor | None] = [None] * len(rest)
        for part in parts_of(len(rows[0])):
            with torch.enable_grad():
                leaves = [one[part].detach().requires_grad_() for one in rows]
                others = [one.detach().requires_grad_(one.requires_grad) for one in rest]
                wanted = [*leaves, *(one for one in others if one.requires_grad)]
                found = torch.autograd.grad(context.run(*leaves, *others), wanted, gradient_ND[part])
            for one, slope in zip(into, found, strict=False):
                one[part] = slope
            slopes = iter(found[rowwise:])
            for at, one in enumerate(others):
                if one.requires_grad:
                    slope, before = next(slopes), of_rest[at]
                    of_rest[at] = slope if before is None else before.add_(slope)
        of_rows = (one.view_as(full) for one, full in zip(into, tensors, strict=False))
        return None, None, None, *of_rows, *of_rest


def parts_of(rows: int) -> list[slice]:
    """Return the parts of so many rows."""
    size = max(1, -(-rows // PARTS))
    return [slice(start, start + size) for start in range(0, rows, size)]
