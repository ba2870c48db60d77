"""A small transformer's training step on a loader's batches: fp32 on the CPU, attention within documents.

Padding is left out first, so that a step costs a n + b n^2 of each document's n tokens. With context
parallelism a rank gathers keys and values (Llama 3, arXiv 2407.21783, section 3.3.2). Sizes: rows R, context
C, context-parallel ranks P, real tokens of the rank's slice N, heads H, head size D.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from suites.dataloader.batch import END, PackedBatch, RankPlace, flop_of_model, flop_of_queries

VOCABULARY = END + 1
ROPE_BASE = 10000.0
LEARNING_RATE = 1e-3


class Span(NamedTuple):
    """One document's queries in one part of a rank's slice: numbers `first` to `end` of its real tokens.

    Keys are tokens `key_first` to `key_end` of all rows joined (R C), up to the last query.
    """

    first: int
    end: int
    key_first: int
    key_end: int

    @property
    def keys(self) -> int:
        """Return the number of keys."""
        return self.key_end - self.key_first


class LocalTokens(NamedTuple):
    """The real tokens of a rank's slice (N): `at`, their places in it (R C / P); `position`, in the row.

    `has_target` (N,): whether the next token of the row belongs to the same document.
    """

    tokens: Tensor
    targets: Tensor
    has_target: Tensor
    at: Tensor
    position: Tensor
    spans: Sequence[Span]
    shape: tuple[int, int]


class SequenceRanks(NamedTuple):
    """The ranks that share rows: `handle` of torch.distributed, None for one rank alone."""

    size: int = 1
    rank: int = 0
    handle: Any = None

    def gathered(self, mine: Tensor) -> Tensor:
        """Return the full rows (R, C, ...) of all ranks' slices (R, C / P, ...)."""
        if self.size == 1:
            return mine
        every = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(every, mine.contiguous(), self.handle)
        halves = torch.stack(every).reshape(self.size, len(mine), 2, -1, *mine.shape[2:])
        parts = torch.cat([halves[:, :, 0], halves[:, :, 1].flip(0)])  # 2 P parts, in the order of the row
        return parts.transpose(0, 1).flatten(1, 2)

    def sliced(self, rows: Tensor) -> Tensor:
        """Return this rank's slice of full rows, as `batch.context_slice` does."""
        parts = rows.reshape(len(rows), 2 * self.size, -1, *rows.shape[2:])
        return torch.cat([parts[:, self.rank], parts[:, 2 * self.size - 1 - self.rank]], 1)


def local_tokens(batch: PackedBatch, group: SequenceRanks) -> LocalTokens:
    """Return the real tokens of a rank's batch, and what each may attend to."""
    tokens, segments = (
        group.gathered(torch.from_numpy(one.astype(np.int64))) for one in (batch.tokens, batch.segments)
    )
    rows, context = tokens.shape
    same = (segments == segments.roll(-1, 1)) & (segments > 0)
    same[:, -1] = False
    position = torch.arange(context).expand(rows, -1)
    mine = [group.sliced(one).flatten() for one in (tokens, tokens.roll(-1, 1), same, position)]
    at = group.sliced(segments).flatten().nonzero().flatten()
    own_tokens, targets, has_target, positions = (one[at] for one in mine)
    spans, shape = list(_spans(segments.numpy(), group)), (rows, context // group.size)
    return LocalTokens(own_tokens, targets, has_target, at, positions, spans, shape)


def _spans(segments: NDArray[np.int64], group: SequenceRanks) -> Iterator[Span]:
    """Return the spans of the rank, in the order of its real tokens."""
    context = segments.shape[1]
    part = context // (2 * group.size)
    mine = (group.rank, 2 * group.size - 1 - group.rank)
    parts = [(0, context)] if group.size == 1 else [(one * part, (one + 1) * part) for one in mine]
    done = 0
    for row, numbers in enumerate(segments):
        edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), context]
        for begin, end in parts:
            for first, last in pairwise(edges):
                low, high = max(first, begin), min(last, end)
                if low < high and numbers[first]:
                    yield Span(done, done + high - low, row * context + first, row * context + high)
                    done += high - low


class GatheredRows(torch.autograd.Function):
    """Gathers the slices (R, C / P, ...) of a context-parallel group into rows (R, C, ...)."""

    @staticmethod
    def forward(context: Any, mine: Tensor, group: SequenceRanks) -> Tensor:  # noqa: D102
        context.group = group
        return group.gathered(mine)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: D102
        group: SequenceRanks = context.group
        total = gradients[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group.handle)
        return group.sliced(total), None


class DocumentAttention(nn.Module):
    """Causal attention of each document to itself, with rotary positions."""

    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.output = nn.Linear(hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor, given: LocalTokens, group: SequenceRanks) -> Tensor:
        """Return the attention's output (N, hidden)."""
        query, key, value = self.qkv(x).reshape(len(x), 3, self.heads, x.shape[1] // self.heads).unbind(1)
        query, key = rotated(query, given.position), rotated(key, given.position)
        if group.size > 1:
            key, value = full_rows(torch.stack([key, value], 1), given, group)
            first = [span.key_first for span in given.spans]
        else:  # queries and keys are the same tokens
            first = [span.first for span in given.spans]
        outputs = [
            attended(query[span.first : span.end], key[at : at + span.keys], value[at : at + span.keys])
            for span, at in zip(given.spans, first, strict=True)
        ]
        if not outputs:  # a slice of padding alone; the other ranks wait for its part of the backward
            zero: Tensor = 0 * (key.sum() + value.sum())
            return x + zero
        result: Tensor = self.output(torch.cat(outputs).flatten(1))
        return result


def full_rows(mine: Tensor, given: LocalTokens, group: SequenceRanks) -> tuple[Tensor, Tensor]:
    """Return keys and values (R C, H, D) of full rows; `mine` (N, 2, H, D) are those of the rank."""
    rows, size = given.shape
    placed = mine.new_zeros(rows * size, *mine.shape[1:]).index_copy(0, given.at, mine)
    every: Tensor = GatheredRows.apply(  # type: ignore[no-untyped-call]
        placed.reshape(rows, size, *mine.shape[1:]), group
    )
    key, value = every.flatten(0, 1).unbind(1)
    return key, value


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return causal attention (n, H, D); the last query is the last key's token."""
    count, keys = len(query), len(key)
    mask = None if count == keys else torch.ones(count, keys, dtype=torch.bool).tril(keys - count)
    q, k, v = (one.transpose(0, 1)[None] for one in (query, key, value))
    result = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
    return result[0].transpose(0, 1)


def rotated(x: Tensor, position: Tensor) -> Tensor:
    """Return (N, H, D) rotated by position (N,): RoPE, so that attention depends on distances alone."""
    half = x.shape[-1] // 2
    rate = ROPE_BASE ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = (position[:, None].double() * rate).to(x.dtype)[:, None]
    one, other = x[..., :half], x[..., half:]
    return torch.cat([one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos()], -1)


class DocumentBlock(nn.Module):
    """A layer: attention and an MLP of two matrices, four times as wide."""

    def __init__(self, hidden_size: int, heads: int) -> None:
        super().__init__()
        self.attention = DocumentAttention(hidden_size, heads)
        self.norms = nn.ModuleList([nn.LayerNorm(hidden_size) for _ in range(2)])
        self.up = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.down = nn.Linear(4 * hidden_size, hidden_size, bias=False)

    def forward(self, x: Tensor, given: LocalTokens, group: SequenceRanks) -> Tensor:
        """Return the layer's output (N, hidden)."""
        x = x + self.attention(self.norms[0](x), given, group)
        result: Tensor = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return result


class DocumentModel(nn.Module):
    """A decoder of bytes. Its loss is the sum over the rank's tokens that have a target."""

    def __init__(self, hidden_size: int, layers: int, heads: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(VOCABULARY, hidden_size)
            self.blocks = nn.ModuleList([DocumentBlock(hidden_size, heads) for _ in range(layers)])
            self.norm = nn.LayerNorm(hidden_size)
            self.head = nn.Linear(hidden_size, VOCABULARY, bias=False)

    def forward(self, given: LocalTokens, group: SequenceRanks) -> Tensor:
        """Return the sum of the losses in nats."""
        x = self.embedding(given.tokens)
        for block in self.blocks:
            x = block(x, given, group)
        logits = self.head(self.norm(x[given.has_target]))
        return F.cross_entropy(logits, given.targets[given.has_target], reduction="sum")


class FedTrainer:
    """A model, its optimizer and the groups of this rank; every rank creates one."""

    def __init__(self, hidden_size: int, layers: int, heads: int, cp_size: int, seed: int) -> None:
        world, rank = dist.get_world_size(), dist.get_rank()
        place = RankPlace.of(rank, cp_size)
        self.group = SequenceRanks()
        if cp_size > 1:
            every = [dist.new_group(list(range(one, one + cp_size))) for one in range(0, world, cp_size)]
            self.group = SequenceRanks(cp_size, place.cp_rank, every[place.dp_rank])
        self.model = DocumentModel(hidden_size, layers, heads, seed)
        self.flop = flop_of_model(hidden_size, layers, heads)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), LEARNING_RATE)

    def step(self, batch: PackedBatch) -> tuple[float, float]:
        """Train on one batch; return the seconds of this thread, without waiting for others, and the FLOP."""
        begin_cpu_s = time.thread_time()
        given = local_tokens(batch, self.group)
        self.gradients(given)
        self.optimizer.step()
        cpu_s = time.thread_time() - begin_cpu_s
        return cpu_s, sum(flop_of_queries(self.flop, one.end - one.first, one.keys) for one in given.spans)

    def gradients(self, given: LocalTokens) -> float:
        """Set the gradients of the mean loss over all ranks' tokens, and return that mean."""
        self.model.zero_grad(set_to_none=False)
        total = self.model(given, self.group)
        total.backward()
        parameters = list(self.model.parameters())
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        sums = torch.stack([total.detach(), given.has_target.sum().to(total.dtype)])
        flat = torch.cat([sums, *(one.reshape(-1) for one in grads)])
        dist.all_reduce(flat)
        loss, count = flat[0] / flat[1], flat[1]
        for parameter, part in zip(
            parameters, torch.split(flat[2:], [one.numel() for one in parameters]), strict=True
        ):
            parameter.grad = (part / count).view_as(parameter)
        return float(loss)
