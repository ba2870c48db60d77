"""A training step of a small Llama-like model: forward, backward and update, with tensor parallelism.

The residual stream is sharded by rows (Megatron's sequence parallelism). The loss is the mean squared
difference from random targets. The model has no embedding, no rotary positions, and norms without weights,
whose gradients would need collectives of their own.

Each linear layer is an all-gather or a reduce-scatter with its product; its gradient is the other of the two.
Where a reduce-scatter overlaps, the weight's gradient is computed while its last parts are under way, as in
Megatron; after an all-gather, it is summed over the rows as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from suites.overlap.one_sided import OneSided
from suites.overlap.operations.collectives import (
    NOT_COMMUNICATED,
    AllGather,
    RankGroup,
    RankShare,
    ReduceScatter,
    worst_error,
)
from suites.overlap.workload import Subject


class Layer:
    """A weight's part on this rank, with collectives of its own for forward and backward.

    Each is used once per step, so `gather.gathered` stays as it is from the forward to the backward pass.
    `chunks` are those of the next pass.
    """

    def __init__(self, subject: Subject, group: RankGroup, rows: int, columns: int) -> None:
        self.chunks, self.gathered_rows = 1, group.ranks * rows
        self.gather = AllGather(subject, group, rows, columns)
        self.scatter = ReduceScatter(subject, group, rows, columns)

    @property
    def sent_B(self) -> float:
        """Return the bytes that this rank sends in a forward and a backward pass."""
        return self.gather.sent_B + self.scatter.sent_B


class ColumnParallel(Layer):
    """y (all rows, columns / ranks) = all-gather(x) @ w."""

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """Return this rank's columns of the product of all ranks' rows."""
        y: Tensor = _AllGatherGemm.apply(x, w, self)  # type: ignore[no-untyped-call]
        return y


class RowParallel(Layer):
    """y (own rows, columns) = this rank's rows of the sum over ranks of x (all rows, inner / ranks) @ w."""

    def __call__(self, x: Tensor, w: Tensor) -> Tensor:
        """Return this rank's rows of the sum of products."""
        y: Tensor = _GemmReduceScatter.apply(x, w, self)  # type: ignore[no-untyped-call]
        return y


class _AllGatherGemm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, layer: ColumnParallel) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(w)
        return gathered_product(layer, x, w)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        layer, (w,), dy = ctx.layer, ctx.saved_tensors, gradients[0].contiguous()
        dw = torch.empty_like(w)
        dx = scattered_product(layer, dy, w.t(), lambda: torch.mm(layer.gather.gathered.t(), dy, out=dw))
        return dx, dw, None


class _GemmReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, layer: RowParallel) -> Tensor:
        ctx.layer = layer
        ctx.save_for_backward(x, w)
        return scattered_product(layer, x, w, lambda: None)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        layer, (x, w), dy = ctx.layer, ctx.saved_tensors, gradients[0].contiguous()
        dw = torch.zeros_like(w)

        def weight_gradient(rows: Tensor, first: int) -> None:
            dw.addmm_(x[first : first + len(rows)].t(), rows)

        return gathered_product(layer, dy, w.t(), weight_gradient), dw, None


def gathered_product(
    layer: Layer, x: Tensor, w: Tensor, also: Callable[[Tensor, int], None] | None = None
) -> Tensor:
    """Return the product of all ranks' rows with w; `also` uses them, else `gathered` has them all."""
    y = x.new_empty(layer.gathered_rows, w.shape[1])

    def product(rows: Tensor, first: int) -> None:
        torch.mm(rows, w, out=y[first : first + len(rows)])
        if also is not None:
            also(rows, first)

    layer.gather.multiply(x, product, layer.chunks, keep=also is None)
    return y


def scattered_product(layer: Layer, x: Tensor, w: Tensor, meanwhile: Callable[[], Any]) -> Tensor:
    """Return this rank's rows of the sum over ranks of x @ w."""
    y = x.new_empty(layer.scatter.rows, w.shape[1])

    def product(first: int, rows: Tensor) -> None:
        torch.mm(x[first : first + len(rows)], w, out=rows)

    layer.scatter.multiply(product, y, layer.chunks, meanwhile)
    return y


LEARNING_RATE = 1e-9
"""So small that every step has the initial weights, whose gradients are known; an update costs the same."""

BATCHES = 2  # steps take turns with them: what one step has left in a buffer is wrong in the next


class BlockWeights(NamedTuple):
    """This rank's parts of a block's weights, each (inputs, outputs)."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor


Products = Sequence[Callable[[Tensor, Tensor], Tensor]]
"""How a block multiplies x by each of its weights, in the order of `BlockWeights`."""


class TensorParallelStep(RankShare):
    """The operation on this rank of its tensor-parallel group; groups of data parallelism are across."""

    def __init__(self, subject: Subject, link: OneSided) -> None:
        tensor_parallel, self.data_parallel = process_groups(subject.workload.tp_size)
        group = RankGroup(link, tensor_parallel)
        super().__init__(subject, group)
        self.link = link
        workload = self.workload
        self.replica, self.replicas = link.rank // self.ranks, link.ranks // self.ranks
        self.rows, hidden = workload.m // link.ranks, workload.hidden_size
        self.step = 0
        self.batches = [
            (self.tokens("x", batch).requires_grad_(), self.tokens("target", batch))
            for batch in range(BATCHES)
        ]
        self.blocks = [
            BlockWeights(*(one.requires_grad_() for one in self.weights(block, self.rank)))
            for block in range(workload.num_hidden_layers)
        ]
        kinds = (ColumnParallel, RowParallel, ColumnParallel, RowParallel)
        self.layers = [[kind(subject, group, self.rows, hidden) for kind in kinds] for _ in self.blocks]
        self.loss = torch.zeros(())

    def tokens(self, name: str, batch: int) -> Tensor:
        """Return this rank's rows of a batch."""
        return replica_values(self, name, batch, self.replica)[self.rank * self.rows :][: self.rows].clone()

    def weights(self, block: int, rank: int) -> BlockWeights:
        """Return the initial weights of a rank of the tensor-parallel group."""
        hidden, intermediate = self.workload.hidden_size, self.workload.intermediate_size
        inner, between = hidden // self.ranks, intermediate // self.ranks
        shapes = (hidden, 3 * inner), (inner, hidden), (hidden, 2 * between), (between, hidden)
        whole = (hidden, hidden, hidden, intermediate)
        return BlockWeights(
            *(
                self.values(f"{name}{block}", rank, *shape) / inputs**0.5
                for name, shape, inputs in zip(BlockWeights._fields, shapes, whole, strict=True)
            )
        )

    @property
    def sent_B(self) -> float:
        """Return the bytes of all all-gathers and reduce-scatters, and of the gradients' ring all-reduce."""
        layers_B = sum(layer.sent_B for layers in self.layers for layer in layers)
        gradients_B = sum(weight.nbytes for block in self.blocks for weight in block)
        return layers_B + 2 * (self.replicas - 1) / self.replicas * gradients_B

    def collectives(self) -> list[tuple[float, float]]:
        """Return each collective's bytes that this rank must send, and the seconds of its products.

        They were timed by the last `compute`. The gradients' all-reduce has no products.
        """
        layers = [layer for layers in self.layers for layer in layers]
        found = [(one.sent_B, one.computed_s) for layer in layers for one in (layer.gather, layer.scatter)]
        return [*found, (self.sent_B - sum(sent_B for sent_B, _ in found), 0.0)]

    def run(self, chunks: int) -> None:
        """Do one step."""
        self.step += 1
        self._step(chunks)
        if self.data_parallel is not None:
            for block in self.blocks:
                self._add_replicas(block)
        self._update()

    def compute(self) -> None:
        """Do one step without communication, on what the buffers have."""
        self._step(NOT_COMMUNICATED)
        self._update()

    def communicate(self, chunks: int) -> None:
        """Do the collectives of the forward pass, those of the backward pass, and of data parallelism."""
        x, out = self.batches[0][0].detach(), torch.empty(self.rows, self.workload.hidden_size)
        layers = [layer for layers in self.layers for layer in layers]
        for is_forward in (True, False):
            for layer in layers if is_forward else reversed(layers):
                if isinstance(layer, ColumnParallel) is is_forward:
                    layer.gather.communicate(x, chunks)
                else:
                    layer.scatter.communicate(out, chunks)
        if self.data_parallel is not None:
            for block in self.blocks:
                dist.all_reduce(torch.cat([one.detach().view(-1) for one in block]), group=self.data_parallel)

    def _step(self, chunks: int) -> None:
        x, target = self.batches[self.step % BATCHES]
        x.grad = None
        for block in self.blocks:
            for weight in block:
                weight.grad = None
        heads = self.workload.num_attention_heads // self.ranks
        y = x
        for block, layers in zip(self.blocks, self.layers, strict=True):
            for layer in layers:
                layer.chunks = chunks
            y = block_output(y, block, layers, heads)
        elements = self.workload.m * self.workload.hidden_size
        self.loss = F.mse_loss(y, target, reduction="sum") / elements
        torch.autograd.backward(self.loss)

    def _add_replicas(self, block: BlockWeights) -> None:
        """Sum a block's gradients over data parallelism, in one bucket."""
        gradients = [gradient_of(weight) for weight in block]
        bucket = torch.cat([one.view(-1) for one in gradients])
        dist.all_reduce(bucket, group=self.data_parallel)
        for gradient, total in zip(
            gradients, torch.split(bucket, [one.numel() for one in gradients]), strict=True
        ):
            gradient.copy_(total.view_as(gradient))

    @torch.no_grad()
    def _update(self) -> None:
        for block in self.blocks:
            for weight in block:
                weight.add_(gradient_of(weight), alpha=-LEARNING_RATE)

    def error(self) -> float:
        """Compare the last step's loss and gradients, of weights and of x, with the full model in float64."""
        shards = [
            [
                BlockWeights(*(one.double().requires_grad_() for one in self.weights(block, rank)))
                for rank in range(self.ranks)
            ]
            for block in range(len(self.blocks))
        ]
        own, batch = slice(self.rank * self.rows, (self.rank + 1) * self.rows), self.step % BATCHES
        pairs = []
        for replica in range(self.replicas):
            x = replica_values(self, "x", batch, replica).double().requires_grad_()
            target = replica_values(self, "target", batch, replica).double()
            y = x
            for parts in shards:
                y = block_output(y, full_weights(parts), [torch.mm] * 4, self.workload.num_attention_heads)
            squares = (y - target).square() / (self.workload.m * self.workload.hidden_size)
            torch.autograd.backward(squares.sum())
            if replica == self.replica:
                pairs.append((self.loss.detach(), squares[own].sum().detach()))
                pairs.append((gradient_of(self.batches[batch][0]), gradient_of(x)[own]))
        for block, parts in zip(self.blocks, shards, strict=True):
            for weight, expected in zip(block, parts[self.rank], strict=True):
                pairs.append((gradient_of(weight), gradient_of(expected)))
        return max(worst_error(*pair) for pair in pairs)


def block_output(x: Tensor, weights: BlockWeights, products: Products, heads: int) -> Tensor:
    """Return a block's output. Where `products` gather and scatter rows, x and the output are one rank's."""
    to_qkv, to_out, to_gate_up, to_down = products
    qkv = to_qkv(F.rms_norm(x, x.shape[-1:]), weights.qkv)
    q, k, v = qkv.view(len(qkv), 3, heads, -1).permute(1, 2, 0, 3).unsqueeze(1)
    attention = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0]
    x = x + to_out(attention.transpose(0, 1).reshape(len(qkv), -1), weights.out)
    gate, up = to_gate_up(F.rms_norm(x, x.shape[-1:]), weights.gate_up).chunk(2, 1)
    return x + to_down(F.silu(gate) * up, weights.down)


def full_weights(parts: Sequence[BlockWeights]) -> BlockWeights:
    """Join the parts of all ranks: those of columns within each of q, k, v, gate and up."""

    def columns(tensors: Sequence[Tensor], kinds: int) -> Tensor:
        return torch.cat([one.view(len(one), kinds, -1) for one in tensors], 2).flatten(1)

    return BlockWeights(
        columns([one.qkv for one in parts], 3),
        torch.cat([one.out for one in parts]),
        columns([one.gate_up for one in parts], 2),
        torch.cat([one.down for one in parts]),
    )


def replica_values(step: TensorParallelStep, name: str, batch: int, replica: int) -> Tensor:
    """Return all rows of a replica's batch."""
    rows = step.rows * step.ranks
    return step.values(name, batch * step.replicas + replica, rows, step.workload.hidden_size)


def gradient_of(tensor: Tensor) -> Tensor:
    """Return the gradient that a backward pass has left."""
    assert tensor.grad is not None
    return tensor.grad


@cache
def process_groups(tp_size: int) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """Return this rank's tensor-parallel group, of neighbours, and its data-parallel group across them.

    None for a group of all ranks, or of this rank alone. Every rank makes every group.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if tp_size == ranks:
        return None, None
    neighbours = [dist.new_group(list(range(first, first + tp_size))) for first in range(0, ranks, tp_size)]
    across = [dist.new_group(list(range(first, ranks, tp_size))) for first in range(tp_size)]
    return neighbours[rank // tp_size], across[rank % tp_size]
