"""The stages of one rank and their schedule, by torch's pipelining, for the technique `pipeline`.

Shapes as in `model.py`.

`ContextGroup`: the ranks that share each sequence; shape suffixes as in
`techniques/context_parallel.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B
from torch.nn.attention.bias import causal_lower_right

from harness.instruments import torch_internals
from suites.training.host_memory import Resources
from suites.training.models.model import SequenceShard, Transformer
from suites.training.optimizers import RankOptimizer, total_norm
from suites.training.step import MakeOptimizer, no_context
from suites.training.trainer import Batch, live_gradients
from suites.training.workload import Workload


class ContextGroup:
    """The ranks that share each sequence, and which of its chunks each takes."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.processes, self.ranks = mesh.get_group(), mesh.size()
        self.by_rank = [chunk for rank in range(self.ranks) for chunk in (rank, 2 * self.ranks - 1 - rank)]
        self.own = self.by_rank[2 * mesh.get_local_rank() :][:2]

    def chunks(self, sequence: Tensor, chosen: Sequence[int], dim: int = 0) -> Tensor:
        """Return some of a sequence's chunks."""
        chunks = sequence.chunk(2 * self.ranks, dim)
        return torch.cat([chunks[chunk] for chunk in chosen], dim)

    def gather(self, own_TBGK: Tensor) -> Tensor:
        """Return (S, B, G, K), full sequences of which each rank has its chunks (T, B, G, K)."""
        by_rank_SBGK = own_TBGK.new_empty((self.ranks * own_TBGK.shape[0], *own_TBGK.shape[1:]))
        dist.all_gather_into_tensor(by_rank_SBGK, own_TBGK, self.processes)
        places = sorted(range(2 * self.ranks), key=self.by_rank.__getitem__)
        return self.chunks(by_rank_SBGK, places)

    def reduce_scatter(self, all_SBGK: Tensor) -> Tensor:
        """Return (T, B, G, K), this rank's chunks of the sum over ranks of (S, B, G, K)."""
        by_rank_SBGK = self.chunks(all_SBGK, self.by_rank)
        own_TBGK = all_SBGK.new_empty((all_SBGK.shape[0] // self.ranks, *all_SBGK.shape[1:]))
        dist.reduce_scatter_tensor(own_TBGK, by_rank_SBGK, group=self.processes)
        return own_TBGK

    def own_part(self, batches: Sequence[Batch]) -> tuple[SequenceShard, list[Batch]]:
        """Return which tokens of each sequence are this rank's, and those of each batch, (B, T)."""
        tokens_BS, _ = batches[0]
        length = tokens_BS.shape[1]
        own_T = self.chunks(torch.arange(length, device=tokens_BS.device), self.own)
        parts = [(self.chunks(one, self.own, 1), self.chunks(other, self.own, 1)) for one, other in batches]
        return SequenceShard(own_T, length), parts

    def average(self, tensor: Tensor) -> None:
        """Take the mean over ranks, in place."""
        tensor.div_(self.ranks)
        dist.all_reduce(tensor, group=self.processes)

    def sdpa(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, dropout: float) -> Tensor:
        """Attend from each of this rank's chunks to all tokens up to its end. (B, H, T, K).

        CUDA's kernels make no mask for it; torch makes one for the CPU's.
        """
        attended = []
        for chunk, q_BHCK in zip(self.own, q_BHTK.chunk(2, dim=2), strict=True):
            size = q_BHCK.shape[2]
            end = (chunk + 1) * size
            with torch_internals.no_modes():  # it is a tensor, though without elements
                mask = causal_lower_right(size, end)
            k_BHEK, v_BHEK = k_BHSK[:, :, :end], v_BHSK[:, :, :end]
            attended.append(F.scaled_dot_product_attention(q_BHCK, k_BHEK, v_BHEK, mask, dropout))
        return torch.cat(attended, dim=2)


EMBEDDINGS, OUTPUT = ("token_embedding", "position_embedding"), ("norm", "head")
"""The model's attributes of its first and of its last stage."""


class StageModule(nn.Module):
    """Layers in a row. The first stage begins with the embedding, the last ends with the loss.

    Its modules are this stage's alone, so that FSDP2 can shard it. Each forward pass enters `around`.
    """

    def __init__(self, model: Transformer, number: int, stages: int) -> None:
        super().__init__()
        self.full, self.number = (model,), number  # in a tuple the model is no submodule
        self.is_first, self.is_last = number == 0, number == stages - 1
        layers = len(model.blocks)
        self.layers = range(layers * number // stages, layers * (number + 1) // stages)
        self.blocks = nn.ModuleList(model.blocks[layer] for layer in self.layers)
        names = (EMBEDDINGS if self.is_first else ()) + (OUTPUT if self.is_last else ())
        self.outside_blocks = nn.ModuleList(filter(None, (getattr(model, name) for name in names)))
        self.around: Callable[[], AbstractContextManager[Any]] = partial(no_context, "")
        self.length = 0  # tokens of each sequence here
        self.shard: SequenceShard | None = None  # and which, where ranks share sequences

    def forward(self, given: Tensor, targets_BT: Tensor | None = None) -> Tensor:
        """Map tokens (B, T) or a layer's input (B, T, D) to a layer's output, or to the mean loss."""
        (model,) = self.full
        with self.around():
            positions = model.positions(self.length, given.device, self.shard)
            x_BTD = model.embed(given, self.shard) if self.is_first else given
            for block in self.blocks:
                x_BTD = block(x_BTD, positions)
            if not self.is_last:
                return x_BTD
            assert targets_BT is not None
            x_BTD = model.norm(x_BTD)
            return model.loss(x_BTD, targets_BT)

    def ends(self) -> tuple[nn.Module | None, nn.Module | None, nn.Module | None]:
        """Return the token embedding, the last norm and the output layer, each None on other stages."""
        embedding, norm, head = self.full[0].ends()
        return embedding if self.is_first else None, *((norm, head) if self.is_last else (None, None))


class MarkedStage(PipelineStage):
    """torch's stage; before each of its passes it calls `mark`, with a `Trainer`'s name of the pass."""

    def __init__(self, *given: Any, alone: bool, **named: Any) -> None:
        super().__init__(*given, **named)
        self.suffix = "" if alone else f", stage {self.stage_index}"
        self.mark: Callable[[str], None] = lambda phase: None

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        """Run the forward pass of one micro-batch; raise its own exception, which torch replaces."""
        self.mark(f"forward {fwd_chunk_id}{self.suffix}")
        try:
            return super().forward_one_chunk(fwd_chunk_id, *given, **named)
        except RuntimeError as error:
            if error.__cause__ is None:
                raise
            own = error.__cause__
        raise own

    def backward_one_chunk(self, bwd_chunk_id: int, *given: Any, **named: Any) -> Any:
        """Run the backward pass of one micro-batch."""
        self.mark(f"backward {bwd_chunk_id}{self.suffix}")
        return super().backward_one_chunk(bwd_chunk_id, *given, **named)


class Pipeline(nn.Module):
    """What this rank has of a model: every so many-th stage, from its own number on.

    The parameters keep their names. Gradients are summed over micro-batches and divided by their number.
    `parts`: into how many parts ranks that share each layer cut a sequence between layers. `context`: the
    ranks that share each sequence.
    """

    def __init__(
        self,
        model: Transformer,
        stages_per_rank: int,
        mesh: DeviceMesh,
        dtype: torch.dtype,
        parts: int = 1,
        context: ContextGroup | None = None,
    ) -> None:
        super().__init__()
        self.parts, self.context = parts, context
        self.mesh, self.group = mesh, mesh.get_group()
        rank, self.ranks = mesh.get_local_rank(), mesh.size()
        count = self.ranks * stages_per_rank
        self.model, self.dtype = model, dtype
        # In a tuple they are no submodules, so that the model's parameters have one path.
        self.stages = tuple(StageModule(model, number, count) for number in range(rank, count, self.ranks))
        self.is_first, self.is_last = self.stages[0].is_first, self.stages[-1].is_last
        keep_only({layer for stage in self.stages for layer in stage.layers}, self)
        self.count = count
        self._runs: tuple[tuple[Any, ...], list[MarkedStage], Any] | None = None

    def run(
        self,
        batches: Sequence[Batch],
        around: Callable[[], AbstractContextManager[Any]],
        mark: Callable[[str], None],
    ) -> Tensor:
        """Run the passes of all micro-batches; return their mean loss, the same on each of its ranks."""
        shard, batches = (None, batches) if self.context is None else self.context.own_part(batches)
        like_BT = batches[0][0]
        stages, schedule = self.scheduled(len(batches), like_BT.shape, like_BT.device)
        for stage, marked in zip(self.stages, stages, strict=True):
            stage.around, marked.mark = around, mark
            stage.length, stage.shard = like_BT.shape[1], shard
        tokens = [torch.cat([one for one, _ in batches])] if self.is_first else []
        targets = torch.cat([one for _, one in batches]) if self.is_last else None
        named = {} if targets is None else {"target": targets, "targets_BT": targets}
        losses: list[Tensor] = []
        schedule.step(*tokens, **named, losses=losses, return_outputs=False)
        loss = torch.zeros((), device=like_BT.device)
        for one in losses:
            loss += one.detach()
        if self.context is not None:
            self.context.average(loss)
        dist.broadcast(loss, group=self.group, group_src=self.ranks - 1)
        return loss

    def scheduled(
        self, count: int, size: Sequence[int], device: torch.device
    ) -> tuple[list[MarkedStage], Any]:
        """Return torch's stages and their schedule, made once: they keep the buffers to receive into."""
        key = (count, tuple(size), device)
        if self._runs is None or self._runs[0] != key:
            self._runs = (key, *self._schedule(count, size, device))
        return self._runs[1:]

    def _schedule(
        self, count: int, size: Sequence[int], device: torch.device
    ) -> tuple[list[MarkedStage], Any]:
        like = partial(torch.empty, device="meta", requires_grad=True)
        tokens_BT = torch.empty(*size, dtype=torch.int64, device="meta")
        batch, length = size
        inner_BTD = like(batch, length // self.parts, self.model.shape.hidden_size, dtype=self.dtype)
        loss = like(())
        stages = [
            MarkedStage(
                stage,
                stage.number,
                self.count,
                device,
                input_args=tokens_BT if stage.is_first else inner_BTD,
                output_args=loss if stage.is_last else inner_BTD,
                group=self.group,
                alone=len(self.stages) == 1,
            )
            for stage in self.stages
        ]
        given: dict[str, Any] = {"loss_fn": partial(share_of, count), "scale_grads": False}
        schedule: Schedule1F1B | ScheduleInterleaved1F1B
        if len(stages) == 1:
            schedule = Schedule1F1B(stages[0], count, **given)
        else:
            schedule = ScheduleInterleaved1F1B(stages, count, **given)  # type: ignore[arg-type]
        torch_internals.take_shapes_as_given(schedule)
        return stages, schedule


def share_of(count: int, loss: Tensor, targets: Tensor) -> Tensor:
    """Return a micro-batch's share of the mean loss of `count` micro-batches."""
    return loss / count


def keep_only(layers: Collection[int], pipeline: Pipeline) -> None:
    """Remove from the model what other ranks' stages have; the rest keeps its names."""
    model = pipeline.model
    for index, block in enumerate(model.blocks):
        if index not in layers:
            model.blocks[index] = nn.Identity()
            released(block)
    absent: list[str] = [] if pipeline.is_first else [*EMBEDDINGS]
    absent += [] if pipeline.is_last else [*OUTPUT, "head_loss"]
    for name in absent:
        released(getattr(model, name))
        setattr(model, name, None)


def released(removed: Any) -> None:
    """Undo a technique's replacement of a module's forward, by which the module refers to itself."""
    if isinstance(removed, nn.Module):
        vars(removed).pop("forward", None)


def run_passes(trainer: Any, batches: Iterable[Batch], count: int) -> Tensor:
    """Run the passes of `count` micro-batches of a `Trainer` with a `Pipeline`; return their mean loss."""
    trainer.mark("schedule")
    around = partial(trainer.step.around, trainer.device.type)
    loss: Tensor = trainer.model.run(list(islice(batches, count)), around, trainer.mark)
    return loss


class StagesOptimizer(RankOptimizer):
    """The optimizer of a rank's stages; norms and full tensors are those of all stages."""

    def __init__(
        self, make: MakeOptimizer, model: nn.Module, workload: Workload, resources: Resources
    ) -> None:
        assert isinstance(model, Pipeline)
        self.inner, self.model = make(model, workload, resources), model

    def step(self) -> None:
        """Update the parameters."""
        self.inner.step()

    def zero_grad(self, keep: bool = False) -> None:
        """Release the gradients."""
        self.inner.zero_grad(keep)

    def set_gradients_to_zeros(self) -> bool:
        """Prepare `step` without a backward pass, or return False."""
        return self.inner.set_gradients_to_zeros()

    def clip_grad_norm(self, max_norm: float) -> None:
        """Clip the norm of the gradients of all ranks together, as torch's `clip_grad_norm_` does on one."""
        gradients = live_gradients(self.model)
        squared = total_norm(gradients).float().square()
        dist.all_reduce(squared, group=self.model.group)
        scale = torch.clamp(max_norm / (squared.sqrt() + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(scale)

    def state_tensors(self) -> list[Tensor]:
        """Return what the rank's optimizer keeps."""
        return self.inner.state_tensors()

    def full_parameters(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the parameters of all stages by name; a collective."""
        return of_all_stages(self.inner.full_parameters(model), self.model.group)

    def full_gradients(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the gradients of all stages by name; a collective."""
        return of_all_stages(self.inner.full_gradients(model), self.model.group)


def of_all_stages(own: dict[str, Tensor], group: dist.ProcessGroup) -> dict[str, Tensor]:
    """Return the tensors of all ranks of a pipeline on this rank's device."""
    each: list[Any] = [None] * group.size()
    dist.all_gather_object(each, {name: tensor.cpu() for name, tensor in own.items()}, group)
    device = next(iter(own.values())).device
    return {name: tensor.to(device) for one in each for name, tensor in one.items()}
