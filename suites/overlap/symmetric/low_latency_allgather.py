"""Low-latency AllGather: every word that is sent has its own flag, so that no signal follows the data.

Per rank: x (N) int32, out (RANKS, N) = all-gather(x). A rank stores words of 8 bytes, 4 of data and 4 of
flag, the epoch, into `words` (2, RANKS, N) int64 of each peer: [parity of the epoch, source rank, element].

Relaxed 64-bit accesses are enough: an aligned 8-byte access is atomic as a whole, and a word is never used to
conclude that another one has arrived. Words need no acknowledgement: a rank stores epoch e + 2 over epoch e
only after it has the words of e + 1 from all peers, which each sends in a later launch than the one that read
e.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.instruments.triton_kernels.targets import Compilation
from suites.overlap.symmetric.heap import ODD, SymmetricHeap
from suites.overlap.symmetric.primitives import get_words, put_words

BLOCK = 256  # words per program: two for each thread of four warps


@triton.jit
def low_latency_allgather(
    x, out, words, heaps, faults, rank, epoch, N,
    RANKS: tl.constexpr, BLOCK: tl.constexpr, TIMEOUT_NS: tl.constexpr,
):  # fmt: skip
    """Send a block to the rank `step` ahead, then receive one from the rank `step` behind."""
    program = tl.program_id(0)
    blocks = tl.cdiv(N, BLOCK)
    step = program // blocks
    source = (rank + RANKS - step) % RANKS
    element = program % blocks * BLOCK + tl.arange(0, BLOCK)
    data = tl.load(x + element, mask=element < N)
    if step > 0:
        slot = epoch % 2 * RANKS
        put_words(
            words, (slot + rank) * N + element, data, epoch, element < N, heaps, rank, (rank + step) % RANKS
        )
        data = get_words(words, (slot + source) * N + element, epoch, element < N, faults, TIMEOUT_NS)
    tl.store(out + source * N + element, data, mask=element < N)


class LowLatencyAllGather:
    """The operation on one rank's heap, which it takes memory from; may be called again and again."""

    def __init__(self, heap: SymmetricHeap, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        size_B = torch.Size(shape).numel() * dtype.itemsize
        if size_B % 4:
            raise ValueError(f"low-latency AllGather sends words of 4 B; {shape} of {dtype} are {size_B} B")
        self._heap, self._shape, self._dtype = heap, shape, dtype
        self._words = heap.tensor((2, heap.ranks, size_B // 4), torch.int64)
        self._epoch = 0

    def __call__(self, x: Tensor) -> Tensor:
        """Return all-gather(x), (RANKS, *x.shape); raises `SignalTimeout`."""
        heap, n = self._heap, self._words.shape[2]
        if (tuple(x.shape), x.dtype) != (self._shape, self._dtype):
            raise ValueError(f"x is {tuple(x.shape)} of {x.dtype}, not {self._shape} of {self._dtype}")
        self._epoch += 1
        out = torch.empty(heap.ranks, n, dtype=torch.int32, device=x.device)
        heap.launch(
            low_latency_allgather, (heap.ranks * triton.cdiv(n, BLOCK),),
            x.contiguous().flatten().view(torch.int32), out, self._words, epoch=self._epoch, N=n, BLOCK=BLOCK,
        )  # fmt: skip
        return out.view(self._dtype).view(heap.ranks, *self._shape)


def compilations() -> Iterator[Compilation]:
    """Return the kernel as it is compiled for GPUs."""
    heap = {"words": "*i64", "heaps": "*i64", "faults": "*i32", "rank": "i32", "epoch": "i32"}
    tensors = {"x": "*i32", "out": "*i32", "N": "i32"}
    blocks = {"RANKS": 8, "BLOCK": BLOCK, "TIMEOUT_NS": 1}
    yield Compilation("low_latency_allgather", low_latency_allgather, heap | tensors, blocks, odd=ODD)
