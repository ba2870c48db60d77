"""Draining gloo: the allocator's account of repeated collectives stays level."""

import pytest
import torch
import torch.distributed as dist

from harness.instruments.memory.allocator import watch
from suites.training.on_rank import DrainGloo

SIZE = 100_000
TIMES = 100


@pytest.fixture
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("collective", [dist.all_gather_into_tensor, dist.reduce_scatter_tensor])
def test_buffers_allocated_again_do_not_accumulate(one_rank, collective, asynchronous):
    """Each time one buffer and gloo's copy. Without `DrainGloo` now and then one more stays, for good."""
    other = torch.ones(SIZE)
    with DrainGloo(), watch(torch.device("cpu")) as allocator:
        for _ in range(TIMES):
            allocator.mark("collective")
            made = torch.empty(SIZE)
            work = collective(made, other, async_op=asynchronous)
            if work is not None:
                work.wait()
            del made, work
    assert {peak.live_B for peak in allocator.peaks} == {2 * 4 * SIZE}


def test_results_are_as_they_were(one_rank):
    made = torch.zeros(3)
    with DrainGloo():
        dist.all_gather_into_tensor(made, torch.tensor([1.0, 2.0, 3.0]))
        assert (made + 1).tolist() == [2.0, 3.0, 4.0]
