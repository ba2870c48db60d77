"""How long a plan takes to reach simulated clients: each asking by itself, or one per group of eight."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from harness.records import Origin, Reading
from suites.dataloader.batch import LoaderSpec, MixturePhase, Source
from suites.dataloader.disaggregation.actors import Planner
from suites.dataloader.disaggregation.calls import ended, started
from suites.dataloader.disaggregation.plan import (
    ActorSettings,
    BalanceSettings,
    Lengths,
    Mixture,
    Wanted,
    plan_steps,
)

GROUP = 8
"""Clients that share a data constructor: the tensor, pipeline and context parallel ranks of one group."""

PROCESSES = 2  # processes that ask for all clients

SOURCES = 306
STEPS = 10

MEAN_LOG, SPREAD_LOG = 8.0, 1.2
"""Mean and spread of the logarithm of a document's tokens: a median of 3,000."""


BALANCE = BalanceSettings("greedy", 1.0, 1e-4)


class UnreadPlanner(Planner):
    """A planner of documents that no one reads: their lengths come from a seed."""

    def _lengths(self, wanted: Wanted) -> Lengths:
        return random_lengths(wanted)


def random_lengths(wanted: Wanted) -> Lengths:
    """Return heavy-tailed lengths, the same for the same documents."""
    return {
        source: np.random.default_rng((source, first)).lognormal(MEAN_LOG, SPREAD_LOG, count).astype(np.int64)
        + 1
        for source, (first, count) in wanted.items()
    }


class SimulatedClients:
    """Many clients in one process; each asks the planner for its part of a step."""

    def __init__(self, planner: Any) -> None:
        self._planner = planner

    async def ask(self, groups: Sequence[int], step: int) -> list[float]:
        """Return the seconds until each client has its plan; all ask at once."""

        async def one(group: int) -> float:
            begin_s = time.perf_counter()
            await self._planner.plan.remote(group, step, 1)
            return time.perf_counter() - begin_s

        return list(await asyncio.gather(*[one(group) for group in groups]))


def specification(groups: int, documents: int) -> LoaderSpec:
    """Return even sources whose documents are divided over groups."""
    sources = tuple(Source(f"source {one}", "", "jsonl", 1 << 40, 0) for one in range(SOURCES))
    return LoaderSpec(
        sources=sources,
        mixture=(MixturePhase(0, (1 / SOURCES,) * SOURCES),),
        context_length=1 << 30,
        documents_per_step=documents,
        dp_size=groups,
    )


def planning_s(groups: int, documents: int) -> list[float]:
    """Return the seconds that planning takes per step, one after another, in this process."""
    spec = specification(groups, documents)
    mixture, taken_s = Mixture(spec), []
    for step in range(STEPS):
        begin_s = time.perf_counter()
        plan_steps(spec, mixture, BALANCE, step, 1, random_lengths)
        taken_s.append(time.perf_counter() - begin_s)
    return taken_s


def run(clients: int, documents: int) -> Iterator[Reading]:
    """Plan and deliver some steps for simulated clients, in the Ray that this process has joined."""
    for taken_s in planning_s(clients, documents):
        yield Reading("plan_time", "s", taken_s, Origin.MEASURED)
    for method, askers in (("each client", clients), (f"one per {GROUP} clients", max(clients // GROUP, 1))):
        for latencies_s in delivered_s(askers, documents):
            yield Reading("slowest_plan_latency", "s", max(latencies_s), Origin.MEASURED, method)


def delivered_s(askers: int, documents: int) -> Iterator[list[float]]:
    """Return how long each of the askers waits for its plan, in each step after the first."""
    import ray

    job = f"control-{askers}"
    settings = ActorSettings(job, BALANCE)
    planner = started(UnreadPlanner, job, "planner", specification(askers, documents), settings)
    processes = [
        ray.remote(SimulatedClients).options(num_cpus=0).remote(planner)
        for _ in range(min(PROCESSES, askers))
    ]
    try:
        for step in range(STEPS + 1):
            parts = [range(first, askers, len(processes)) for first in range(len(processes))]
            calls = [
                process.ask.remote(list(part), step) for process, part in zip(processes, parts, strict=True)
            ]
            answers = ray.get(calls, timeout=300)
            if step:
                yield [one for part in answers for one in part]
    finally:
        ended(job, "planner")
        for process in processes:
            ray.kill(process)
