"""What the ranks of tests/harness/instruments/distributed/test_ring_reduce_scatter.py are asked to do."""

from typing import Any

import torch
import torch.distributed as dist

from harness.instruments.distributed.fake_process_group import use_ring_reduce_scatter
from harness.instruments.memory.allocator import watch
from suites.training.dry_run.dry_run import gloo_workspace


def given(rank: int, elements: int, dtype: str) -> torch.Tensor:
    """Return this rank's summand, whose sums are exact in bf16."""
    return ((torch.arange(elements) * 7 + 3 * rank) % 5).to(getattr(torch, dtype))


def ring(state: dict[str, Any]) -> None:
    use_ring_reduce_scatter()


def reduce_to_shares(
    state: dict[str, Any],
    elements: int,
    dtype: str = "float32",
    op: str = "SUM",
    deprecated: bool = False,
    asynchronous: bool = False,
    ranks: list[int] | None = None,
    in_place: bool = False,
) -> list[float]:
    """Return this rank's share of the sum over ranks, or over those of a group."""
    group = None if ranks is None else dist.new_group(ranks)
    if ranks is not None and dist.get_rank() not in ranks:
        return []
    tensor = given(dist.get_rank(), elements, dtype)
    before = tensor.clone()
    share = torch.full([elements // dist.get_world_size(group)], 99.0, dtype=tensor.dtype)
    if in_place:  # as deepspeed does it
        share = tensor.chunk(dist.get_world_size(group))[dist.get_rank(group)]
    reduce = dist.reduce_scatter_tensor if deprecated else dist.reduce_scatter_single  # type: ignore[attr-defined]
    work = reduce(share, tensor, op=getattr(dist.ReduceOp, op), group=group, async_op=asynchronous)
    if asynchronous:
        work.wait()
    assert in_place or torch.equal(tensor, before)
    return [float(one) for one in share]


def temporary_B(state: dict[str, Any], elements: int) -> tuple[int, int]:
    """Return the bytes that a reduce-scatter takes besides its buffers, and what the dry run counts."""
    tensor = torch.ones(elements)
    share = torch.empty(elements // dist.get_world_size())
    with watch(torch.device("cpu")) as allocator:
        allocator.mark("reduce-scatter")
        dist.reduce_scatter_single(share, tensor)  # type: ignore[attr-defined]
    operation = torch.ops.c10d._reduce_scatter_base_.default
    return allocator.peaks[0].live_B, gloo_workspace(operation, (share, tensor), None)


def often(state: dict[str, Any], elements: int, count: int, gather: bool = False) -> None:
    tensor = torch.ones(elements)
    share = torch.empty(elements // dist.get_world_size())
    for _ in range(count):
        if gather:
            dist.all_gather_into_tensor(tensor, share)
        else:
            dist.reduce_scatter_single(share, tensor)  # type: ignore[attr-defined]


def refused(state: dict[str, Any], elements: int, share: int, op: str) -> str:
    tensor, output = torch.zeros(elements), torch.zeros(share)
    options = dist.ReduceScatterOptions()
    options.reduceOp = getattr(dist.ReduceOp, op)
    group: Any = dist.group.WORLD
    try:
        group.reduce_scatter_single(output, tensor, options)
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return ""


def failed_twice(state: dict[str, Any]) -> list[str]:
    group: Any = dist.group.WORLD
    tensor = torch.ones(4 * group.size())
    work = group.reduce_scatter_single(torch.empty(4), tensor, dist.ReduceScatterOptions())
    real = work._pending

    class Lost:
        def wait(self) -> None:
            raise ConnectionError("the peer is gone")

    work._pending = [Lost()]
    said = []
    for _ in range(2):
        try:
            work.wait()
        except (ConnectionError, RuntimeError) as error:
            said.append(str(error))
    for message in real:
        message.wait()
    return said
