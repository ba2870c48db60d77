"""Tensor parallelism as in Megatron-LM (arXiv 1909.08053), by torch's DTensor: each layer is sharded.

Query, key, value and the MLP's first matrices are sharded by columns, and so by heads; the matrices after
them by rows. The embedding, the output layer and the loss are sharded by vocabulary. Norms are replicated.
Experts of a mixture are sharded as an MLP is, or as `expert_parallel` says; the router is replicated.
With `fsdp2` ranks are a mesh of `dp_size` rows of `tp_size` neighbours, as in torchtitan: a row shares each
layer, and a column shards its part of all layers.

With `sequence_parallel` (arXiv 2205.05198) norms and the residual stream are sharded by sequence: all-gathers
and reduce-scatters take the place of all-reduces. It works on `suites.training.models.model` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from harness.records import Unavailable
from suites.training.declared import TensorParallelSettings
from suites.training.host_memory import Resources
from suites.training.mesh import joined
from suites.training.models.model import Transformer
from suites.training.optimizers import not_for_shards
from suites.training.step import TrainingStep
from suites.training.techniques.expert_parallel import Whole, plan_of_mixture, share_width
from suites.training.workload import Workload

NOTE = "tensor parallel, rank 0: its share of every matrix, its gradient and its states; norms whole"


def applies_to(workload: Workload, settings: TensorParallelSettings) -> str | None:
    """Return why the model cannot be sharded so; None where it can."""
    if workload.other_code:
        return "it shards the layers of suites.training.models.model alone, not another model's"
    mixture = workload.num_experts is not None
    widths = ["shared_expert_intermediate_size"] if mixture else ["intermediate_size"]
    for name in ("num_attention_heads", "num_key_value_heads", *widths):
        size = getattr(workload, name)
        if size is not None and size % workload.tp_size:
            return f"tp_size={workload.tp_size} does not divide {name}={size}; choose a divisor"
    if settings.sequence_parallel and workload.seq_len % workload.tp_size:
        return f"sequence_parallel: tp_size={workload.tp_size} does not divide seq_len={workload.seq_len}"
    return not_for_shards(workload)


def apply(step: TrainingStep, settings: TensorParallelSettings) -> TrainingStep:
    """Return one of `tp_size` ranks' step; `fsdp2` is applied later."""
    tp_size = step.workload.tp_size
    if step.settings_of("fsdp2") is not None and tp_size == 1:
        raise Unavailable(
            "tensor_parallel with fsdp2 needs several ranks per layer, and this step has tp_size=1"
        )
    shared = 1 if step.settings_of("context_parallel") is None else step.workload.cp_size
    if settings.sequence_parallel and step.workload.seq_len % (tp_size * shared):
        raise Unavailable(
            f"sequence_parallel: tp_size={tp_size} does not divide the {step.workload.seq_len // shared} "
            f"tokens of a sequence that each of cp_size={shared} ranks takes"
        )
    refuse_indivisible_experts(step)
    sharding = joined(step.features.sharding, "tensor")
    return replace(
        step,
        ranks=tp_size,
        tensor_ranks=tp_size,
        features=replace(step.features, sharding=sharding, sequence_parallel=settings.sequence_parallel),
        wraps=(*step.wraps, partial(parallelize, settings, step.settings_of("expert_parallel") is None)),
        notes=(*step.notes, NOTE),
    )


def refuse_indivisible_experts(step: TrainingStep) -> None:
    """Raise `Unavailable` where ranks share each expert and cannot have equal parts of its width."""
    by_experts = step.settings_of("expert_parallel")
    whole = by_experts is not None and not by_experts.get("expert_tensor_parallel", True)
    if step.workload.num_experts is None or whole:
        return
    width, tp_size = step.workload.shape.expert_width, step.workload.tp_size
    if width % tp_size:
        name = "intermediate_size" if step.workload.moe_intermediate_size is None else "moe_intermediate_size"
        raise Unavailable(
            f"tensor_parallel: tp_size={tp_size} does not divide {name}={width}; choose a divisor"
        )


def parallelize(
    settings: TensorParallelSettings, shares_experts: bool, model: nn.Module, resources: Resources
) -> nn.Module:
    """Return the model sharded over the ranks that share each layer; it returns the full loss.

    `shares_experts`: those of a mixture too, by width.
    """
    assert isinstance(model, Transformer)
    mesh = resources.meshes.of("tp")
    ends, of_block = plan_of_ends(model, settings), plan_of_block(model, settings)
    parallelize_module(model, mesh, ends, src_data_rank=None)
    for block in model.blocks:  # one after the other, so that fsdp2 releases what it shards in this order
        parallelize_module(block, mesh, of_block, src_data_rank=None)
    if model.shape.num_experts is not None and shares_experts:
        share_width(model, mesh, settings.sequence_parallel)
    if model.shape.tie_word_embeddings:
        model.head.weight = model.token_embedding.weight
    model.around_loss = loss_by_vocabulary
    return model


def plan_of_ends(model: Transformer, settings: TensorParallelSettings) -> dict[str, ParallelStyle]:
    """Return how modules outside of the blocks are split; foreach needs every parameter as a DTensor."""
    stream = residual_stream(settings)
    styles: dict[str, ParallelStyle] = {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
        "norm": norm_style(settings),
        "head": ColwiseParallel(input_layouts=stream, use_local_output=False),
    }
    if model.position_embedding is not None:
        styles["position_embedding"] = Whole(Shard(0) if settings.sequence_parallel else Replicate())
    return styles


def plan_of_block(model: Transformer, settings: TensorParallelSettings) -> dict[str, ParallelStyle]:
    """Return how each module of a block is split.

    With sequence parallelism, attention and MLP gather their input once for all matrices that take it.
    """
    stream = residual_stream(settings)
    styles: dict[str, ParallelStyle] = {}
    if settings.sequence_parallel:
        whole: Placement = Replicate()
        styles["attention"] = PrepareModuleInput(
            input_layouts=(stream, None), desired_input_layouts=(whole, None)
        )
        if model.shape.num_experts is None:
            styles["mlp"] = PrepareModuleInput(input_layouts=(stream,), desired_input_layouts=(whole,))
    for name in ("attention_norm", "mlp_norm"):
        styles[name] = norm_style(settings)
    for name in ("query", "key", "value"):
        styles[f"attention.{name}"] = ColwiseParallel()
    styles["attention.output"] = RowwiseParallel(output_layouts=stream)
    if model.shape.num_experts is not None:
        shared = model.shape.shared_expert_intermediate_size is not None
        return {**styles, **plan_of_mixture(shared, settings.sequence_parallel)}
    for name in ("gate", "up") if model.shape.mlp == "swiglu" else ("up",):
        styles[f"mlp.{name}"] = ColwiseParallel()
    styles["mlp.down"] = RowwiseParallel(output_layouts=stream)
    return styles


def residual_stream(settings: TensorParallelSettings) -> Placement:
    """Return which part of (B, T, D) a rank has between the matrices, as a plain tensor."""
    return Shard(1) if settings.sequence_parallel else Replicate()


def norm_style(settings: TensorParallelSettings) -> ParallelStyle:
    """Return how a norm is run: on part of each sequence, or whole."""
    return SequenceParallel(use_local_output=True) if settings.sequence_parallel else Whole(Replicate())


def loss_by_vocabulary(loss: Callable[[], Any]) -> Tensor:
    """Return the loss of logits that stay sharded by vocabulary in both passes, the same on every rank."""
    with loss_parallel():
        found = loss()
    return _LossParallelBackward.apply(found.to_local())  # type: ignore[no-any-return,no-untyped-call]


class _LossParallelBackward(torch.autograd.Function):
    """Pass the loss on; its backward enters `loss_parallel` until the full backward pass has ended."""

    @staticmethod
    def forward(context: Any, loss: Tensor) -> Tensor:
        return loss.view_as(loss)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        entered = ExitStack()
        entered.enter_context(loss_parallel())
        torch.autograd.Variable._execution_engine.queue_callback(entered.close)
        return gradient
