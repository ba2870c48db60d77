"""Many ranks in one process: a process group that sends nothing, to measure one rank's memory.

Suites shard a model over `rank_mesh` inside `fake_process_group`; the same code shards over real ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

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
            torch_internals.own_sharding_cache() if rank else nullcontext(),
        ):
            yield
    finally:
        dist.destroy_process_group()


def rank_mesh(device_type: str) -> DeviceMesh:
    """Return all ranks of the current process group, fake or real, in one dimension.

    May be called under FakeTensorMode: the mesh's own table of ranks consists of real tensors nonetheless.
    Raises RuntimeError where there is no process group.
    """
    return _mesh(device_type, (world_size(),))


def mesh_of_rows(device_type: str, width: int, names: tuple[str, str]) -> DeviceMesh:
    """Return all ranks as `rank_mesh` does, in rows of `width` neighbours; fewer ranks are one row.

    `names`: of the two dimensions.
    """
    width = min(width, world_size())
    return _mesh(device_type, (world_size() // width, width), names)


def mesh_of_sizes(device_type: str, sizes: tuple[int, ...], names: tuple[str, ...]) -> DeviceMesh:
    """Return all ranks as `rank_mesh` does, in dimensions of these sizes and names, the outermost first."""
    return _mesh(device_type, sizes, names)


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


def _mesh(device_type: str, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> DeviceMesh:
    with torch_internals.no_modes():
        return init_device_mesh(device_type, shape, mesh_dim_names=names)
