"""What is injected into ranks from outside of them, switched on and off between steps."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from harness.instruments.control_group import CpuQuota
from harness.instruments.network.emulated_network import Network
from suites.profiling.injection import competing_process
from suites.profiling.recorder import Injection

PERIOD_S = 0.01
"""Period of a competing load: short, so that a step spans many."""

Toggle = Callable[[bool], None]
"""Turns an injected loss on or off."""


class InjectedRanks(Protocol):
    """What an injector has to know of the ranks."""

    cores: list[int]
    network: Network | None

    @property
    def pids(self) -> list[int]:
        """Return the process of each rank."""


@contextmanager
def injector(ranks: InjectedRanks, injection: Injection | None) -> Iterator[tuple[Toggle, int]]:
    """Give the switch of a loss injected from outside, and the id of a competing process, else 0.

    It is off at first and at the end. A rank's own sleeps are switched on the rank.
    """
    if injection is None or injection.kind in ("data_wait", "launch_sleep"):
        yield lambda on: None, 0
    elif injection.kind == "competing_load":
        with competing(ranks.cores[injection.rank], injection.share) as process:
            yield stopped_or_not(process), process.pid
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


def stopped_or_not(process: subprocess.Popen[str]) -> Toggle:
    """Return what continues and stops a process."""
    return lambda on: process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)


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
