"""Flash-decode with AllGather: every rank attends to its part of the KV cache, then all merge all parts.

Per rank: q (B, HEADS, D), the same on all ranks; k and v (B, KV_HEADS, L, D), whose L may differ between
ranks. Result (B, HEADS, D): attention of q to the keys of all ranks, in fp32.

`attend` works on SPLITS chunks of the keys at once, each with an output and a log-sum-exp (lse).
`gather_and_merge` merges those of one query head, sends the pair to all ranks, and merges all ranks' pairs in
their order, so that all ranks have the same result. Pairs are in `outputs` (2, RANKS, B * HEADS, D) and
`lses` (2, RANKS, B * HEADS): [parity of the epoch, source rank, query head], with signals `arrived` likewise,
set to the epoch. A pair is overwritten two epochs later, when its source has waited for the reader's pair of
the epoch between.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.triton_kernels.launch import launch
from harness.instruments.triton_kernels.targets import Compilation
from suites.overlap.symmetric.heap import HEAP, ODD, SymmetricHeap
from suites.overlap.symmetric.primitives import notify, symm_at, wait

BL = 32  # keys that a program of `attend` takes at once
SPLITS = 4  # chunks of a rank's keys
LOWEST = tl.constexpr(-1e30)  # finite, so that no keys at all leave no NaN


@triton.jit
def attend(
    q, k, v, outputs, lses, L, D, scale, GROUP: tl.constexpr, SPLITS: tl.constexpr,
    BG: tl.constexpr, BL: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Attend with the GROUP query heads of a KV head to one chunk: outputs (B * HEADS, SPLITS, D), lses."""
    group, split = tl.program_id(0), tl.program_id(1)
    head = group * GROUP + tl.arange(0, BG)
    is_head = tl.arange(0, BG) < GROUP
    column = tl.arange(0, BD)
    of_group = is_head[:, None] & (column[None, :] < D)
    queries = tl.load(q + head[:, None] * D + column[None, :], mask=of_group, other=0.0)
    chunk = tl.cdiv(L, SPLITS)
    end = tl.minimum((split + 1) * chunk, L)
    k += tl.cast(group, tl.int64) * L * D
    v += tl.cast(group, tl.int64) * L * D
    top = tl.full((BG,), LOWEST, tl.float32)
    total = tl.zeros((BG,), tl.float32)
    output = tl.zeros((BG, BD), tl.float32)
    for first in range(split * chunk, end, BL):
        key = first + tl.arange(0, BL)
        inside = (key[:, None] < end) & (column[None, :] < D)
        keys = tl.load(k + key[:, None] * D + column[None, :], mask=inside, other=0.0)
        values = tl.load(v + key[:, None] * D + column[None, :], mask=inside, other=0.0)
        logits = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        logits = tl.where(key[None, :] < end, logits, -float("inf"))
        higher = tl.maximum(top, tl.max(logits, axis=1))
        weights = tl.exp(logits - higher[:, None])
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(weights, axis=1)
        output = tl.dot(
            weights.to(v.dtype.element_ty), values, output * shrink[:, None], input_precision="ieee"
        )
        top = higher
    output = output / tl.where(total > 0, total, 1.0)[:, None]
    place = head * SPLITS + split
    tl.store(outputs + place[:, None] * D + column[None, :], output, mask=of_group)
    tl.store(lses + place, top + tl.log(total), mask=is_head)


@triton.jit
def merge(output, lse, other, other_lse):
    """Return the attention to the keys of both, and its lse; an lse of -inf stands for no keys."""
    top = tl.maximum(tl.maximum(lse, other_lse), LOWEST)
    weight = tl.exp(lse - top)
    other_weight = tl.exp(other_lse - top)
    total = weight + other_weight
    merged = (output * weight + other * other_weight) / tl.where(total > 0, total, 1.0)
    return merged, top + tl.log(total)


@triton.jit
def gather_and_merge(
    split_outputs, split_lses, result, outputs, lses, signals, heaps, faults, rank, epoch, D,
    RANKS: tl.constexpr, SPLITS: tl.constexpr, BD: tl.constexpr, TIMEOUT_NS: tl.constexpr,
):  # fmt: skip
    """Merge the chunks of one query head, send the pair to all ranks, then merge the pairs of all."""
    head, heads = tl.program_id(0), tl.num_programs(0)
    slot = epoch % 2 * RANKS  # signals are numbered as pairs
    column = tl.arange(0, BD)
    own = tl.zeros((BD,), tl.float32)
    own_lse = -float("inf")
    for split in range(SPLITS):
        place = head * SPLITS + split
        part = tl.load(split_outputs + place * D + column, mask=column < D, other=0.0)
        own, own_lse = merge(own, own_lse, part, tl.load(split_lses + place))
    pair = (slot + rank) * heads + head
    for step in range(1, RANKS):
        peer = (rank + step) % RANKS
        tl.store(symm_at(outputs, heaps, rank, peer) + pair * D + column, own, mask=column < D)
        tl.store(symm_at(lses, heaps, rank, peer) + pair, own_lse)
        notify(signals, pair, epoch, heaps, rank, peer)
    merged = tl.zeros((BD,), tl.float32)
    lse = -float("inf")
    for source in range(RANKS):
        if source == rank:
            merged, lse = merge(merged, lse, own, own_lse)
        else:
            theirs = (slot + source) * heads + head
            wait(signals, theirs, epoch, faults, TIMEOUT_NS)
            part = tl.load(outputs + theirs * D + column, mask=column < D, other=0.0)
            merged, lse = merge(merged, lse, part, tl.load(lses + theirs))
    tl.store(result + head * D + column, merged, mask=column < D)


class FlashDecode:
    """The operation on one rank's heap, which it takes memory from; may be called again and again."""

    def __init__(self, heap: SymmetricHeap, batch: int, heads: int, head_size: int) -> None:
        self._heap, self._shape = heap, (batch, heads, head_size)
        self._outputs = heap.tensor((2, heap.ranks, batch * heads, head_size), torch.float32)
        self._lses = heap.tensor((2, heap.ranks, batch * heads), torch.float32)
        self._signals = heap.signals(2 * heap.ranks * batch * heads)
        self._epoch = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention of q (B, HEADS, D) to all ranks' k and v (B, KV_HEADS, L, D), in fp32.

        Raises `SignalTimeout`.
        """
        heap, (batch, heads, size) = self._heap, self._shape
        if tuple(q.shape) != self._shape:
            raise ValueError(f"q is {tuple(q.shape)}, not {self._shape}")
        if k.shape != v.shape or (len(k), k.shape[3]) != (batch, size) or heads % k.shape[1]:
            raise ValueError(f"k {tuple(k.shape)} and v {tuple(v.shape)} do not fit q {tuple(q.shape)}")
        self._epoch += 1
        group, block = heads // k.shape[1], max(16, triton.next_power_of_2(size))
        parts = torch.empty(batch * heads, SPLITS, size, dtype=torch.float32, device=q.device)
        part_lses = torch.empty(batch * heads, SPLITS, dtype=torch.float32, device=q.device)
        result = torch.empty(batch, heads, size, dtype=torch.float32, device=q.device)
        launch(
            attend, (batch * k.shape[1], SPLITS), q.contiguous(), k.contiguous(), v.contiguous(), parts,
            part_lses, L=k.shape[2], D=size, scale=size**-0.5, GROUP=group, SPLITS=SPLITS,
            BG=max(16, triton.next_power_of_2(group)), BL=BL, BD=block,
        )  # fmt: skip
        heap.launch(
            gather_and_merge, (batch * heads,), parts, part_lses, result, self._outputs, self._lses,
            self._signals, epoch=self._epoch, D=size, SPLITS=SPLITS, BD=block,
        )  # fmt: skip
        return result


def compilations(dtype: str = "bf16") -> Iterator[Compilation]:
    """Return the kernels as they are compiled for GPUs."""
    tensors = dict.fromkeys(("q", "k", "v"), f"*{dtype}") | dict.fromkeys(("outputs", "lses"), "*fp32")
    sizes = {"L": "i32", "D": "i32", "scale": "fp32"}
    yield Compilation(
        "attend", attend, tensors | sizes, {"GROUP": 8, "SPLITS": SPLITS, "BG": 16, "BL": BL, "BD": 128}
    )
    pairs = dict.fromkeys(("split_outputs", "split_lses", "result", "outputs", "lses"), "*fp32")
    blocks = {"RANKS": 8, "SPLITS": SPLITS, "BD": 128, "TIMEOUT_NS": 1}
    yield Compilation("gather_and_merge", gather_and_merge, HEAP | pairs | {"D": "i32"}, blocks, odd=ODD)
