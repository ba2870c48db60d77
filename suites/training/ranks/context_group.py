"""The ranks that share each sequence, for `techniques/context_parallel.py`; shape suffixes as there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention.bias import causal_lower_right

from harness.instruments import torch_internals
from suites.training.models.model import SequenceShard
from suites.training.trainer import Batch


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
