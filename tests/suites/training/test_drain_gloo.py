"""Draining gloo: the allocator's account of repeated collectives stays level."""

import pytest
import torch
import torch.distributed as dist

from harness.instruments.memory.allocator import watch
from suites.training.correctness import one_rank
from suites.training.on_rank import DrainGloo

SIZE = 100_000


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("collective", "asynchronous"), [(dist.all_gather_into_tensor, True), (dist.reduce_scatter_tensor, False)]
)
def test_buffers_allocated_again_do_not_accumulate(collective, asynchronous):
    """Each time one buffer and gloo's copy. Without `DrainGloo` now and then one more stays, for good."""
    other = torch.arange(float(SIZE))
    with one_rank(True), DrainGloo(), watch(torch.device("cpu")) as allocator:
        for _ in range(100):
            allocator.mark("collective")
            made = torch.empty(SIZE)
            work = collective(made, other, async_op=asynchronous)
            if work is not None:
                work.wait()
            assert torch.equal(made, other)
            del made, work
    assert {peak.live_B for peak in allocator.peaks} == {2 * 4 * SIZE}
