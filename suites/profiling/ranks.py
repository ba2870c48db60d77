"""The ranks that all variants of a workload share, and what is injected from outside of them."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from random import Random
from statistics import fmean, median
from typing import NamedTuple

from harness.instruments.control_group import CpuQuota
from harness.instruments.distributed.rank_pool import RankLocation, RankPool, locations_in
from harness.instruments.network.emulated_network import Network
from harness.instruments.network.topology import Topology
from suites.profiling import competing_process, recorder
from suites.profiling.recorder import Injection, StepAccount
from suites.profiling.workload import Workload
from suites.training.shared_trainers import SharedTrainers, backend_of
from suites.training.step import TrainingStep

PERIOD_S = 0.01  # period of a competing load: short, so that a step spans many
Toggle = Callable[[bool], None]  # turns an injected loss on or off


@contextmanager
def injector(ranks: RecordedRanks, injection: Injection | None) -> Iterator[tuple[Toggle, int]]:
    """Give the switch of a loss injected from outside, and the id of a competing process, else 0.

    It is off at first and at the end. A rank's own sleeps are switched on the rank.
    """
    if injection is None or injection.kind in ("data_wait", "launch_sleep"):
        yield lambda on: None, 0
    elif injection.kind == "competing_load":
        with competing(ranks.cores[injection.rank], injection.share) as process:
            yield lambda on: process.send_signal(signal.SIGCONT if on else signal.SIGSTOP), process.pid
    elif injection.kind == "cpu_quota":
        with CpuQuota() as quota:
            quota.enter(ranks.pids[injection.rank])
            share = injection.share
            yield lambda on: quota.limit(share if on else None), 0
    else:
        assert ranks.network is not None
        with slowed(ranks.network, injection.rate_B_per_s) as switch:
            yield switch, 0


@contextmanager
def competing(core: int, share: float) -> Iterator[subprocess.Popen[str]]:
    """Keep the core busy for this share of the time, once the process is continued."""
    command = [sys.executable, competing_process.__file__, str(core), str(share), str(PERIOD_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            yield process
        finally:
            process.kill()


@contextmanager
def slowed(network: Network, rate_B_per_s: float) -> Iterator[Toggle]:
    """Give what sets every link to this rate, and back to what the machine carries."""
    links = range(len(network.topology.links))

    def switch(on: bool) -> None:
        for link in links:
            network.set_rate(link, rate_B_per_s if on else None)

    try:
        yield switch
    finally:
        switch(False)


ALONE = {"OMP_NUM_THREADS": "1"}


class RankRecord(NamedTuple):
    """A rank's recorded steps, in pairs without and with an injected loss, and the means of its telemetry."""

    without: list[StepAccount]
    injected: list[StepAccount]
    telemetry: dict[str, float]


class RecordedRanks(SharedTrainers):
    """Ranks on this machine: a GPU each where torch sees any, else one core each where there are enough.

    Variants that inject into the same step share its trainers; `running` counts them.
    """

    def __init__(self, workload: Workload) -> None:
        self.running = 0
        self.checked: set[str] = set()
        self.backend = "gloo" if workload.linked else backend_of(workload.dp_size)
        self.network: Network | None = None
        self.fastest_chain_s = math.inf
        count = workload.dp_size
        cores = sorted(os.sched_getaffinity(0))
        self.cores = cores[:count] if len(cores) >= count and self.backend == "gloo" else []
        with ExitStack() as stack:
            self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="traces"))
            address = "127.0.0.1"
            places = [RankLocation((), ALONE | {"LOCAL_RANK": str(n)}) for n in range(count)]
            if workload.linked:
                hosts = tuple(f"rank{number}" for number in range(count))
                self.network = stack.enter_context(Network(Topology.star(hosts)))
                places = locations_in(self.network, ALONE | {"CUDA_VISIBLE_DEVICES": ""})
                address = self.network.address(hosts[0])
            super().__init__(stack.enter_context(RankPool(places, address, self.backend)), recorder)
            self.call("begin", cores=self.cores)
            rates = self.call("matmul_rate")
            self.FLOP_per_s = None if None in rates else fmean(rates)  # of a core; None on GPUs
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End the ranks and remove what was made for them."""
        super().close()
        self._stack.close()

    def enter(self, key: str, step: TrainingStep) -> None:
        """Make a variant's step on the ranks, if none has made the same."""
        self.running += 1
        if key not in self.variants:
            self.call("make", key=key, step=step.described)
            self.variants.add(key)

    def leave(self, key: str) -> None:
        """Count one variant less; with the last of them the ranks end."""
        self.running -= 1
        if not self.running:
            self.close()

    @property
    def pids(self) -> list[int]:
        """Return the process of each rank."""
        return self.pool.pids

    def record(
        self, key: str, pairs: int, injection: Injection | None, order: Random, folder: str = ""
    ) -> list[RankRecord]:
        """Record pairs of steps, in random order with what is injected and without, after two left out.

        The traces go to `folder`; without one, the profiler is off. No number of a step follows another, so
        that steps end with their mark: that of pair n is 4 n without, 4 n + 2 with what is injected.
        """
        given = None if injection is None else asdict(injection)
        with injector(self, injection) as (switch, load):
            self.call("start", key=key, injection=given, load=load, profiler=bool(folder))
            for injected in (False, True):
                self._step(switch, None, injected)
            steps = []
            for number in range(pairs):
                both = [False, True]
                order.shuffle(both)
                steps.append({on: self._step(switch, 4 * number + 2 * on, on) for on in both})
            means = self.call("end", folder=folder)
        return [
            RankRecord([one[False][rank] for one in steps], [one[True][rank] for one in steps], means[rank])
            for rank in range(len(means))
        ]

    def _step(self, switch: Toggle, number: int | None, injected: bool) -> list[StepAccount]:
        switch(injected)
        accounts = [StepAccount(*one) for one in self.call("step", number=number, injected=injected)]
        self.fastest_chain_s = min(self.fastest_chain_s, *(one.chain_s for one in accounts))
        return accounts

    def communicate_s(self, key: str, count: int = 7) -> float:
        """Return the median seconds of what the step sends, sent alone, of the slowest rank."""
        times_s = zip(*self.call("communicate_s", key=key, count=count), strict=True)
        return float(median(max(one) for one in times_s))
