"""What makes many sessions in one process cheap: ranks and Ray that last, quick networks, fast links."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moved import quick_networks
from offload_ranks import lasting_ranks
from shared_ray import shared_ray


@contextmanager
def cheap_sessions(ranks_forked) -> Iterator[None]:
    """Let ranks and Ray serve many cells; what forks ranks starts first, as a cell ends what it started."""
    if ranks_forked.process is None:
        ranks_forked.start()
    with pytest.MonkeyPatch.context() as patch, lasting_ranks(patch), shared_ray(patch):
        quick_networks(patch)
        patch.setattr("suites.interconnect.emulated_cluster.scaled", lambda rate, here, there: rate / 1000)
        patch.setattr("suites.interconnect.emulated_cluster.REPEATS", 1)
        yield
