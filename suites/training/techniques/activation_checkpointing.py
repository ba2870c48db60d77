"""Activation checkpointing (arXiv 1604.06174): keep less in the forward pass, recompute the rest later.

`full` keeps each layer's input alone. `selective` (arXiv 2205.05198) also keeps the results of the linear
layers, and recomputes what is large and cheap: attention scores, norms, activation functions. `per_op` keeps
the results of attention and of every second linear layer, as torchtitan's selective checkpointing does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from suites.training.declared import ActivationCheckpointingSettings
from suites.training.host_memory import Resources
from suites.training.models.model import blocks_of
from suites.training.step import TrainingStep
from suites.training.techniques.activation_offload import hooks_to, within
from suites.training.workload import Workload

aten = torch.ops.aten

KEPT = frozenset({aten.mm.default, aten.addmm.default, aten._scaled_mm.default})
"""The operations of linear layers; the products of attention are `aten.bmm`, and are recomputed."""

PRODUCTS = frozenset({aten.mm.default, aten._scaled_mm.default})
"""The products of linear layers, of which `per_op` keeps every second; torchao's float8 shows its as `mm`."""

KEPT_PER_OP = PRODUCTS | frozenset(
    {
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
        aten.max.default,
    }
)
"""torchtitan's list (torchtitan/models/llama3/infra/parallelize.py, `_save_list`, 2025), less flex attention,
and with the CPU's fused attention. Linear layers with a bias (`aten.addmm`) are not in it."""

NO_FORMULA = "the formula knows full and selective checkpointing of every layer; this step's is {recompute}"


def applies_to(workload: Workload, settings: ActivationCheckpointingSettings) -> str | None:
    """Return why no layer would be checkpointed; None where some are."""
    if settings.every > workload.num_hidden_layers:
        return f"every={settings.every}: allowed are 1 to num_hidden_layers={workload.num_hidden_layers}"
    return None


def apply(step: TrainingStep, settings: ActivationCheckpointingSettings) -> TrainingStep:
    """Return the step with its layers checkpointed, or every so many-th."""
    recompute = settings.mode if settings.every == 1 else f"{settings.mode}, every {settings.every}"
    unlike = "" if recompute in ("full", "selective") else NO_FORMULA.format(recompute=recompute)
    features = step.features.but(recompute=recompute, activations=unlike)
    if settings.on_host:
        features = replace(features, activations_on="host")
    return replace(
        step,
        wraps=(*step.wraps, partial(wrap, settings)),
        features=features,
        layers_alike=step.layers_alike and settings.every == 1,
    )


def wrap(settings: ActivationCheckpointingSettings, model: nn.Module, resources: Resources) -> nn.Module:
    """Run layers under `checkpoint`, which keeps their input and the state of the random generator.

    As in torchtitan the last of each `every` layers is checkpointed.
    """
    contexts = CONTEXTS[settings.mode]
    selective: dict[str, Any] = {} if contexts is None else {"context_fn": contexts}
    make = hooks_to(resources.host, model) if settings.on_host else None
    for block in list(blocks_of(model))[settings.every - 1 :: settings.every]:
        block.forward = checkpointed(block.forward, selective)
        if settings.inputs_stay:
            block.forward = partial(keep_inputs, [], block.forward)
        if make is not None:  # which see what checkpoint keeps, not what a layer saves while it is recomputed
            block.forward = partial(within, make, block.forward)
    return model


def checkpointed(forward: Callable[..., Any], selective: Mapping[str, Any]) -> Callable[..., Any]:
    """Return a layer's forward pass under `checkpoint`, as a function that torch.compile can trace."""

    def forward_checkpointed(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **selective, **kwargs)

    return forward_checkpointed


def keep_inputs(kept: list[Tensor], forward: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Any:
    """Run a layer on x (B, T, D), which stays with its gradient until the backward pass ends.

    A re-entrant checkpoint recomputes from a leaf. The hook that FSDP1 registers on inputs of frozen units
    refers to their AccumulateGrad nodes, which own leaf and gradient, and is removed when the pass ends
    (torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook). The first layer's
    input needs no gradient here, where a frozen embedding makes it, and is not counted.
    """
    if x.requires_grad:
        x.register_hook(partial(keep, kept, x.detach()))  # type: ignore[no-untyped-call]
    return forward(x, *args, **kwargs)


def keep(kept: list[Tensor], x: Tensor, gradient: Tensor) -> None:
    """Keep both until the backward pass that runs ends."""
    kept += [x, gradient]
    torch.autograd.Variable._execution_engine.queue_callback(kept.clear)


def per_op() -> Any:
    """Return the contexts of one layer's forward pass and recomputation, with torchtitan's policy.

    It counts the layer's matrix products, in both passes alike, and keeps the first, third, fifth, ...
    """
    products: Counter[bool] = Counter()

    def policy(
        context: SelectiveCheckpointContext, operation: Any, *_: Any, **named: Any
    ) -> CheckpointPolicy:
        products[context.is_recompute] += operation in PRODUCTS
        second = operation in PRODUCTS and products[context.is_recompute] % 2 == 0
        kept = operation in KEPT_PER_OP and not second
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)  # type: ignore[no-untyped-call]


CONTEXTS: dict[str, Callable[[], Any] | None] = {
    "full": None,
    "selective": partial(create_selective_checkpoint_contexts, [*KEPT]),
    "per_op": per_op,
}
"""How the passes of a checkpointed layer are run; None keeps nothing but the layer's input."""
