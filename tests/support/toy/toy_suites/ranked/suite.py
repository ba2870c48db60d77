"""A suite whose cells sum over all ranks that srun started, until a file is there; else as `gated`."""

import time
from pathlib import Path

from harness.instruments.distributed.rank_pool import RankPool
from harness.instruments.distributed.remote_ranks import launch, places
from harness.records import Reading
from toy_suites.gated.suite import build, check, close, log

__all__ = ["build", "check", "close", "conditions", "sample", "sum_until"]


def conditions(subject):
    return {}


def sample(subject):
    here = launch()
    with RankPool(places(here, {}), here.address) as pool:
        log(subject, "begin")
        pool.call("toy_suites.ranked.suite:sum_until", 600.0, gate=subject["gate"])
    log(subject, "end")
    yield Reading("time", "s", 0.25, "measured", "clock")


def sum_until(state, gate):
    """All ranks end in the same round: the one in which a rank has found the file."""
    import torch
    import torch.distributed as dist

    found = torch.zeros(1)
    while not found:
        found += Path(gate).exists()
        dist.all_reduce(found)
        time.sleep(0.01)
