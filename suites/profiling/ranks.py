"""The ranks that all variants of a workload share, and what is injected from outside of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import combinations
from statistics import fmean, median
from typing import Any

import torch

from harness.instruments.cpu_quota import CpuQuota
from harness.instruments.distributed.rank_pool import RankLocation, RankPool
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import LARGEST_FRAME_B, Link, Topology
from harness.records import Unavailable
from suites.profiling import competing_process, on_rank
from suites.profiling.recorder import RankRecord, StepAccount
from suites.profiling.subject import Injection, Workload
from suites.training import on_rank as training_on_rank
from suites.training.step import TrainingStep

ALONE = {"OMP_NUM_THREADS": "1"}
PERIOD_S = 0.01
"""Of a competing load: short, so that a step spans many."""


class RecordedRanks:
    """Ranks on this machine: one core each where there are enough, a GPU each where torch sees any."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.variants = 0
        self.checked: set[str] = set()
        self._made: set[str] = set()
        self.backend = backend_of(workload)
        self.network: Network | None = None
        count = workload.dp_size
        cores = sorted(os.sched_getaffinity(0))
        self.cores = cores[:count] if len(cores) >= count else []
        with ExitStack() as stack:
            self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="traces"))
            places, address = (
                [RankLocation((), ALONE | {"LOCAL_RANK": str(n)}) for n in range(count)],
                "127.0.0.1",
            )
            if workload.linked:
                self.network = stack.enter_context(Network(linked(count)))
                places, address = located(self.network)
            self.pool = stack.enter_context(RankPool(places, address, self.backend))
            self.call("begin", cores=self.cores)
            self.FLOP_per_s = self._matmul_rate()
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End the ranks and remove what was made for them."""
        self._stack.close()

    def _matmul_rate(self) -> float | None:
        """Return the mean rate of the ranks' cores; None on GPUs."""
        rates = self.call("matmul_rate")
        return None if None in rates else fmean(rates)

    def enter(self, key: str, step: TrainingStep) -> None:
        """Make a variant's step on the ranks, if none has made the same."""
        self.variants += 1
        if key not in self._made:
            self.train("make", key=key, step=step.described)
            self._made.add(key)

    def leave(self) -> None:
        """Count one variant less."""
        self.variants -= 1

    def call(self, function: str, **arguments: Any) -> list[Any]:
        """Return what `function` of `on_rank` returned on each rank."""
        return self.pool.call(f"{on_rank.__name__}:{function}", **arguments)

    def train(self, function: str, **arguments: Any) -> list[Any]:
        """Return what `function` of `suites.training.on_rank` returned on each rank."""
        return self.pool.call(f"{training_on_rank.__name__}:{function}", **arguments)

    def record(self, key: str, steps: int, folder: str, injection: Injection | None) -> list[RankRecord]:
        """Record steps of each rank while something is injected; the traces go to `folder`, if given."""
        with self.injected(injection) as load:
            given = None if injection is None else asdict(injection)
            answers = self.call("record", key=key, steps=steps, folder=folder, injection=given, load=load)
        return [RankRecord([StepAccount(*one) for one in steps], means) for steps, means in answers]

    @contextmanager
    def injected(self, injection: Injection | None) -> Iterator[int]:
        """Impose what is injected from outside of the ranks; give the id of a competing process, else 0."""
        kind = None if injection is None else injection.kind
        if injection is None or kind in ("data_wait", "launch_sleep"):
            yield 0
        elif kind == "competing_load":
            with competing(self.cores[injection.rank], injection.share) as process:
                yield process.pid
        elif kind == "cpu_quota":
            with CpuQuota() as quota:
                quota.enter(self.call("process_id")[injection.rank])
                quota.limit(injection.share)
                yield 0
        else:
            with self.slowed(injection.rate_B_per_s):
                yield 0

    @contextmanager
    def slowed(self, rate_B_per_s: float) -> Iterator[None]:
        """Give every link this rate."""
        assert self.network is not None
        links = range(len(self.network.topology.links))
        try:
            for link in links:
                self.network.set_rate(link, rate_B_per_s)
            yield
        finally:
            for link in links:
                self.network.set_rate(link, None)

    def reduce_s(self, key: str, count: int = 7) -> float:
        """Return the median seconds of an all-reduce of the step's gradients, of the slowest rank."""
        return median(max(one) for one in zip(*self.call("reduce_s", key=key, count=count), strict=True))


@contextmanager
def competing(core: int, share: float) -> Iterator[subprocess.Popen[str]]:
    """Keep the core busy for this share of the time."""
    command = [sys.executable, competing_process.__file__, str(core), str(share), str(PERIOD_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def backend_of(workload: Workload) -> str:
    """Return NCCL where each rank has a GPU, gloo where none is; raises `Unavailable` for too few GPUs."""
    seen = torch.cuda.device_count()
    if seen == 0 or workload.linked:
        return "gloo"
    if seen < workload.dp_size:
        raise Unavailable(f"{workload.dp_size} ranks need a GPU each, and there are {seen}")
    return "nccl"


def linked(count: int) -> Topology:
    """Return the network: one link between two ranks, else a link each to a switch."""
    hosts = tuple(f"rank{number}" for number in range(count))
    if count == 2:
        links = tuple(Link(*pair) for pair in combinations(hosts, 2))
        return Topology(hosts, (), links, LARGEST_FRAME_B)
    return Topology(hosts, ("switch",), tuple(Link(host, "switch") for host in hosts), LARGEST_FRAME_B)


def located(network: Network) -> tuple[list[RankLocation], str]:
    """Return where each rank runs, and the address of the first."""
    hosts = network.topology.hosts
    places = [
        RankLocation(
            network.command(host, []),
            {"GLOO_SOCKET_IFNAME": network.interface(host), "CUDA_VISIBLE_DEVICES": ""} | ALONE,
        )
        for host in hosts
    ]
    return places, network.address(hosts[0])
