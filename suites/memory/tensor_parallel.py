"""Tensor parallelism as Megatron-LM does it (arXiv 1909.08053), through torch's DTensor: each layer is cut.

Query, key, value and the MLP's first matrices are cut by columns, and so the heads; what follows by rows.
The embedding, the output layer and the loss are cut by vocabulary. Norms are on every rank, whole.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

from harness.instruments.distributed.fake_process_group import rank_mesh
from harness.records import HostInfo, Unavailable
from suites.memory.fsdp2 import require_optimizer
from suites.memory.step import TrainingStep
from suites.training.model import Transformer

HELD = "tensor parallel, rank 0: its share of every matrix, its gradient and its states; norms whole"


@dataclass(frozen=True, slots=True)
class Settings:
    """`ranks`: over how many ranks, None: the workload's `tp_size`."""

    ranks: int | None = None


def unavailable(host: HostInfo) -> str | None:
    """Why it cannot run here; None where it can."""
    if not torch.distributed.is_available():
        return "this build of torch has no torch.distributed"
    return None


def apply(subject: TrainingStep, settings: Settings) -> TrainingStep:
    """The step as one of the ranks takes it. Raises `Unavailable` where the model cannot be cut so."""
    ranks = subject.workload.tp_size if settings.ranks is None else settings.ranks
    if subject.make_model is not None:
        raise Unavailable(
            "tensor_parallel knows how to cut suites.training.model's layers alone, not another model's"
        )
    for name in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        size = getattr(subject.workload, name)
        if size % ranks:
            raise Unavailable(f"tensor_parallel: {ranks} ranks do not divide {name}={size}; choose a divisor")
    require_optimizer(subject.workload)
    return replace(
        subject,
        ranks=ranks,
        features=replace(subject.features, sharding="tensor"),
        wrap=(*subject.wrap, parallelize),
        notes=(*subject.notes, HELD),
    )


def parallelize(model: nn.Module) -> nn.Module:
    """The model cut over all ranks; its forward still takes whole batches and gives the whole loss."""
    assert isinstance(model, Transformer)
    mesh = rank_mesh(next(model.parameters()).device.type)
    parallelize_module(model, mesh, plan(model), src_data_rank=None)
    if model.shape.tie_word_embeddings:
        model.head.weight = model.token_embedding.weight
    return VocabularyParallelLoss(model)


def plan(model: Transformer) -> dict[str, ParallelStyle]:
    """How each module is cut, by name. Every parameter becomes a DTensor, as foreach optimizers need."""
    styles: dict[str, ParallelStyle] = {
        "token_embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Replicate()),
        "norm": Whole(),
        "head": ColwiseParallel(use_local_output=False),
    }
    if model.position_embedding is not None:
        styles["position_embedding"] = Whole()
    for name in ("query", "key", "value"):
        styles[f"blocks.*.attention.{name}"] = ColwiseParallel()
    for name in ("gate", "up") if model.shape.mlp == "swiglu" else ("up",):
        styles[f"blocks.*.mlp.{name}"] = ColwiseParallel()
    for name in ("attention.output", "mlp.down"):
        styles[f"blocks.*.{name}"] = RowwiseParallel()
    for name in ("attention_norm", "mlp_norm"):
        styles[f"blocks.*.{name}"] = Whole()
    return styles


class Whole(ParallelStyle):
    """A module that every rank runs alike, on whole inputs, its parameters held as replicated DTensors."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def distribute(module: nn.Module, inputs: Any, mesh: DeviceMesh) -> Any:
            return tuple(DTensor.from_local(one, mesh, (Replicate(),), run_check=False) for one in inputs)

        def gather(module: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
            return output.to_local()

        return distribute_module(module, device_mesh, None, distribute, gather)


class VocabularyParallelLoss(nn.Module):
    """The model's loss from logits that stay cut by vocabulary, in both passes."""

    def __init__(self, model: Transformer):
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy as a plain tensor of no dimension, the same on every rank."""
        with loss_parallel():
            loss: Any = self.model(tokens_BT, targets_BT)
        return LossParallelBackward.apply(loss.to_local())  # type: ignore[no-any-return,no-untyped-call]


class LossParallelBackward(torch.autograd.Function):
    """Passes the loss on; its backward enters `loss_parallel` until the whole backward pass has ended."""

    @staticmethod
    def forward(context: Any, loss: Tensor) -> Tensor:
        """The loss itself."""
        return loss.view_as(loss)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        """The gradient itself."""
        entered = ExitStack()
        entered.enter_context(loss_parallel())
        torch.autograd.Variable._execution_engine.queue_callback(entered.close)
        return gradient
