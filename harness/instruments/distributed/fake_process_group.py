"""Many ranks in one process: a process group that sends nothing, to measure one rank's memory.

Suites shard a model over `rank_mesh` inside `fake_process_group`; the same code shards over real ranks. For
these, there is a reduce-scatter over gloo that moves the bytes of NCCL's ring, in place of gloo's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from harness.instruments import torch_internals


@contextmanager
def fake_process_group(ranks: int, rank: int = 0) -> Iterator[None]:
    """Make this process one of `ranks`: collectives return at once, with undefined outputs.

    Rank 0 has the largest shard where a size does not divide evenly, so its memory is the largest of any
    rank; not so of a pipeline. Raises RuntimeError where a process group exists already, ValueError for fewer
    than one rank.
    """
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: a process group has at least one rank")
    if dist.is_initialized():
        raise RuntimeError("a process group exists already; fake ranks need a process of their own")
    dist.init_process_group("fake", store=torch_internals.fake_store(), rank=rank, world_size=ranks)
    try:
        with (
            torch_internals.unseen_propagation(),
            torch_internals.own_chunks_alone(),
            torch_internals.real_fsdp2_meshes(),
            torch_internals.allocated_by_size(),
            torch_internals.results_of_fake_works(),
            torch_internals.own_sharding_cache(),
        ):
            yield
    finally:
        dist.destroy_process_group()


def mesh_of_sizes(
    device_type: str, sizes: tuple[int, ...], names: tuple[str, ...] | None = None
) -> DeviceMesh:
    """Return all ranks of the current process group in dimensions of these sizes, the outermost first.

    May be called under FakeTensorMode: the mesh's table of ranks consists of real tensors nonetheless.
    """
    with torch_internals.no_modes():
        return init_device_mesh(device_type, sizes, mesh_dim_names=names)


def rank_mesh(device_type: str) -> DeviceMesh:
    """Return all ranks in one dimension; raises RuntimeError where there is no process group."""
    return mesh_of_sizes(device_type, (world_size(),))


def mesh_of_ranks(device_type: str, ranks: Tensor, names: tuple[str, ...]) -> DeviceMesh:
    """Return the ranks in the order of a tensor that has a dimension per name."""
    with torch_internals.no_modes():
        return DeviceMesh(device_type, ranks, mesh_dim_names=names)


def world_size() -> int:
    """Return the ranks of the current process group; raises RuntimeError where there is none."""
    if not dist.is_initialized():
        raise RuntimeError(
            "no process group: enter fake_process_group, or start real ranks, before sharding a model"
        )
    return dist.get_world_size()


METHODS = ("reduce_scatter_single", "_reduce_scatter_base")
"""Methods of torch.distributed.ProcessGroup through which FSDP2 and deepspeed reduce to shares."""

TAG = 0x52696E67  # tag of the ring's messages, so that none is taken for a user's


class RingWork(dist.Work):
    """A started reduce-scatter: its first message is under way, `wait` does the rest.

    gloo's own is an all-reduce of which each rank keeps its share (ProcessGroupGloo.cpp), so it sends twice
    the bytes. Here each rank sends to its right neighbour alone, (ranks - 1) / ranks of the tensor in all,
    which is the least that a rank must send; gloo's all-gather goes round the same ring. bf16 is summed in
    bf16. The coalesced form and that of lists stay gloo's: neither FSDP2 nor deepspeed's ZeRO uses them.

    Works of one group are waited for in the order in which they were started. The output may be this rank's
    own part of the input, and no other part of it. The group's timeout limits each message.
    """

    def __init__(self, group: Any, output: torch.Tensor, chunks: list[torch.Tensor], average: bool) -> None:
        super().__init__()
        self._group, self._output, self._chunks, self._average = group, output, chunks, average
        self._in_place = output.data_ptr() == chunks[group.rank()].data_ptr()
        self._spares: dict[int, torch.Tensor] = {}
        self._ended = False
        self._pending: list[Any] | None = self._exchange(chunks[group.rank() - 1], self._target(0))

    def wait(self, *timeout: Any) -> bool:
        """Send, receive and add until this rank has its share; raises what failed, then RuntimeError."""
        if self._ended:
            return True
        if self._pending is None:
            raise RuntimeError("this reduce-scatter has failed before")
        pending, self._pending = self._pending, None
        ranks, rank, received = len(self._chunks), self._group.rank(), self._target(0)
        for turn in range(ranks - 1):
            for work in pending:
                work.wait()
            received.add_(self._chunks[(rank - turn - 2) % ranks])
            if turn < ranks - 2:
                sent, received = received, self._target(turn + 1)
                pending = self._exchange(sent, received)
        if self._in_place:
            self._output.copy_(received)
        if self._average:
            self._output.div_(ranks)
        self._ended = True
        return True

    def is_completed(self) -> bool:
        """Return whether `wait` has returned."""
        return self._ended

    def _exchange(self, sent: torch.Tensor, received: torch.Tensor) -> list[Any]:
        group, ranks = self._group, len(self._chunks)
        left, right = (group.rank() - 1) % ranks, (group.rank() + 1) % ranks
        return [group.recv([received], left, TAG), group.send([sent], right, TAG)]

    def _target(self, turn: int) -> torch.Tensor:
        """Return where a turn's message goes: the last into the output, unless it is part of the input."""
        which = (len(self._chunks) - turn) % 2
        if which == 0 and not self._in_place:
            return self._output
        if which not in self._spares:
            self._spares[which] = torch.empty_like(self._output)
        return self._spares[which]


def use_ring_reduce_scatter() -> None:
    """Replace gloo's reduce-scatter in this process from now on; other backends and single ranks keep it.

    An operation besides SUM and AVG then raises NotImplementedError, shares of another size ValueError.
    """
    group: Any = dist.ProcessGroup
    for name in METHODS:
        method = vars(group).get(name)
        if method is not None and not hasattr(method, "replaced"):
            setattr(group, name, _replacing(method))


def _replacing(method: Any) -> Any:
    def reduce_scatter(group: Any, output: torch.Tensor, tensor: torch.Tensor, *options: Any) -> Any:
        operation = options[0].reduceOp if options else dist.ReduceOp.SUM
        if dist.get_backend(group) != "gloo" or group.size() == 1:
            return method(group, output, tensor, *options)
        average = operation == dist.ReduceOp.AVG
        if not average and operation != dist.ReduceOp.SUM:
            raise NotImplementedError(f"reduce-scatter over gloo by {operation}: expected SUM or AVG")
        if tensor.numel() != group.size() * output.numel():
            raise ValueError(f"reduce-scatter of {tensor.numel()} numbers to shares of {output.numel()}")
        chunks = list(tensor.view(-1).chunk(group.size()))
        return RingWork(group, output.view(-1), chunks, average)

    reduce_scatter.replaced = method  # type: ignore[attr-defined]
    return reduce_scatter
