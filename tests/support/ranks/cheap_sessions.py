"""What makes many sessions in one process cheap: ranks and Ray that last, quick networks, fast links."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moved import quick_networks
from offload_ranks import lasting_ranks
from shared_ray import shared_ray


@contextmanager
def cheap_sessions(ranks_forked) -> Iterator[None]:
    """Let ranks and Ray serve cell after cell inside the block; networks are quick, and no link is slow.

    A link's rates, the host's copies and kernels for GPUs that are not here are few, too: others test them.

    What forks ranks starts first: a cell ends all processes that were started in it.
    """
    if ranks_forked.process is None:
        ranks_forked.start()
    with pytest.MonkeyPatch.context() as patch, lasting_ranks(patch), shared_ray(patch):
        quick_networks(patch)
        patch.setattr("suites.interconnect.emulated_cluster.scaled", lambda rate, here, there: rate / 1000)
        patch.setattr("suites.interconnect.emulated_cluster.REPEATS", 1)
        patch.setattr("suites.interconnect.emulated_cluster.CALIBRATION_B_PER_S", (1.25e9, 3.2e11))
        patch.setattr("suites.interconnect.emulated_cluster.UPDATES", 3)
        patch.setattr("suites.offload.host_optimizer.COPY_B", 2**20)
        patch.setattr("suites.kernels.triton.TARGETS", ("sm_90",))
        yield
