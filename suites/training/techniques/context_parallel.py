"""Context parallelism as in Llama 3 (arXiv 2407.21783, section 3.3.2): ranks share each sequence.

A sequence is cut into 2 x `cp_size` chunks, of which rank i takes chunks i and 2 x `cp_size` - 1 - i, so that
the causal mask leaves all ranks the same work. Each layer all-gathers keys and values, and each rank attends
from its own tokens. The backward pass reduces and scatters the gradients of keys and values.

Alone, all ranks have all parameters, gradients and states, and average gradients after an update's last
backward pass. With `fsdp2` ranks are a mesh of `dp_size` rows of `cp_size` neighbours, as in torchtitan: a
row shares each sequence, and all ranks shard the model.

torch's own replaces CUDA's attention operations alone; this one has collectives that run on CPUs, too.

Shape suffixes, besides those of that module: G key-value heads, S tokens of a full sequence, T of this rank's
part, C of one chunk, E from the first to the last of a chunk.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from harness.records import Unavailable
from suites.training.declared import ContextParallelSettings
from suites.training.host_memory import Resources
from suites.training.mesh import joined, refuse_without_fsdp2
from suites.training.models.model import Transformer
from suites.training.pipeline_stages import ContextGroup
from suites.training.step import TrainingStep
from suites.training.trainer import average_with_the_last
from suites.training.workload import Workload

NOTE = "each rank has 1/cp_size of each sequence; keys and values of all of it are gathered in every layer"
REPLICATED = "context parallel, rank 0: all parameters, gradients and states"
UNLIKE = "the formula divides keys and values by cp_size, too; this step gathers those of full sequences"


def applies_to(workload: Workload, settings: ContextParallelSettings) -> str | None:
    """Return why ranks cannot share a sequence; None where they can."""
    if workload.other_code:
        return "it changes the attention of suites.training.models.model alone, not another model's"
    if workload.cp_size == 1:
        alone = "it needs several ranks per sequence, and this workload has cp_size=1"
        return f"{alone}; in suite memory set suite.workloads.NAME.cp_size"
    chunks, length = 2 * workload.cp_size, workload.seq_len
    if length % chunks:
        return f"seq_len={length} must be a multiple of 2 * cp_size={chunks}: a rank takes two chunks"
    return None


def apply(step: TrainingStep, settings: ContextParallelSettings) -> TrainingStep:
    """Return one of `cp_size` ranks' step; `fsdp2` is applied later."""
    cp_size, with_fsdp2 = step.workload.cp_size, step.settings_of("fsdp2") is not None
    refuse_without_fsdp2(step, "context_parallel")
    changed = replace(
        step,
        ranks=cp_size,
        context_ranks=cp_size,
        features=step.features.but(sharding=joined(step.features.sharding, "context"), activations=UNLIKE),
        wraps=(*step.wraps, parallelize),
        notes=(*step.notes, NOTE),
    )
    if with_fsdp2:
        return changed
    return replace(changed, reducing=average_with_the_last, notes=(*changed.notes, REPLICATED))


def parallelize(model: nn.Module, resources: Resources) -> nn.Module:
    """Return the model with each sequence shared by ranks; it takes full sequences and returns their loss."""
    assert isinstance(model, Transformer)
    if "attention" in model.functions:
        raise Unavailable("context_parallel does not know the causal mask of an attention of another kind")
    group = ContextGroup(resources.meshes.of("cp"))
    for block in model.blocks:
        attention: Any = block.attention
        attention.gather, attention.sdpa = partial(_GatherSequence.apply, group), group.sdpa
    return ContextParallelModel(model, group)


class _GatherSequence(torch.autograd.Function):
    """Gather keys, or values, of full sequences; sum their gradients over ranks and scatter them."""

    @staticmethod
    def forward(context: Any, group: ContextGroup, own_BGTK: Tensor) -> Tensor:
        context.group = group
        return group.gather(own_BGTK.permute(2, 0, 1, 3).contiguous()).permute(1, 2, 0, 3)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (all_BGSK,) = gradients
        return None, context.group.reduce_scatter(all_BGSK.permute(2, 0, 1, 3)).permute(1, 2, 0, 3)


class ContextParallelModel(nn.Module):
    """Compute the loss of this rank's part of each sequence, averaged over the ranks that share it."""

    def __init__(self, model: Transformer, group: ContextGroup) -> None:
        super().__init__()
        self.model, self.group = model, group

    def ends(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Return the model's token embedding, last norm and output layer."""
        return self.model.ends()

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Return the mean cross-entropy over full sequences, the same on every rank that shares them."""
        shard, [(own_BT, own_targets_BT)] = self.group.own_part([(tokens_BT, targets_BT)])
        own_loss = self.model(own_BT, own_targets_BT, shard)
        return _MeanOfLosses.apply(self.group, own_loss)  # type: ignore[no-any-return,no-untyped-call]


class _MeanOfLosses(torch.autograd.Function):
    """Average the ranks' losses; each rank's gradients are its own loss's, which are averaged later."""

    @staticmethod
    def forward(context: Any, group: ContextGroup, own: Tensor) -> Tensor:
        mean = own.clone()
        group.average(mean)
        return mean

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]
