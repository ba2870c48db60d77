"""The fabric_flows suite: how routing and queue pairs change a collective at the scale of a zone.

Everything is simulated by flows (`harness.instruments.network`), on a random placement per round, the same
for all variants. The baseline is one connection per pair of ranks, its spine chosen by a hash of addresses.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from harness.instruments.network import clos as placements
from harness.instruments.network.clos import Clos, IntArray
from harness.instruments.network.flow_simulator import CollectiveResult, simulate
from harness.instruments.network.routing import Routed, flows_of
from harness.records import Json, Origin, Reading, Unavailable, WrongResult
from suites.fabric.workload import FabricFlowsWorkload


@dataclass(frozen=True, slots=True)
class Subject(Routed):
    """A workload under one variant's routing."""

    workload: FabricFlowsWorkload
    seed: int


ROUNDING = 1e-9  # relative error of sums of bytes


@dataclass(slots=True)
class Session:
    """One variant, and the placement that is simulated next."""

    subject: Subject
    placement: int = 0


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for an impossible fabric or a job that it has no room for."""
    subject = Subject(FabricFlowsWorkload(**workload), seed)
    try:
        _, nic_HG = place(subject, 0)
        flows_of(subject.workload.collective, nic_HG, subject.workload.buffer_B)
    except ValueError as error:
        raise Unavailable(str(error)) from None
    return subject


def place(subject: Subject, placement: int) -> tuple[Clos, IntArray]:
    """Return one placement: the fabric with its failed links, and the NICs of the ranks (hosts, GPUs).

    Raises ValueError where the fabric is impossible or the ranks do not fit.
    """
    workload, seed = subject.workload, placements.round_seed(subject.seed, placement)
    clos = workload.clos()
    nic_HG = placements.place(clos, workload.placement, workload.ranks, workload.ranks_per_node, seed)
    failed = placements.failed_links(clos, nic_HG, workload.failed_uplinks, seed)
    return replace(clos, failed=failed), nic_HG


def prepare(subject: Subject) -> Session:
    """Start with the first placement."""
    return Session(subject)


def check(session: Session) -> None:
    """Check the first placement's result against its bounds; raises `WrongResult`."""
    result = run_simulated(session)
    if not 0 < result.of_bound <= 1 + ROUNDING:
        raise WrongResult(
            f"the collective takes {result.time_s:.4g} s; no routing takes less than {result.bound_s:.4g} s"
        )


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload = session.subject.workload
    nodes, failed = workload.ranks // workload.ranks_per_node, workload.failed_uplinks
    own = {"fabric": "simulated", "nodes": str(nodes), "failed_uplinks": str(failed)}
    return workload.conditions(session.subject.policy) | own


def read_once(session: Session) -> Iterator[Reading]:
    """Yield what is the same for all placements."""
    yield Reading("queue_pairs", "1", session.subject.policy.queue_pairs, Origin.CALCULATED)


def sample(session: Session) -> Iterator[Reading]:
    """Simulate one collective on the next placement: its time, bus bandwidth and the load of its uplinks."""
    begin_s = time.process_time()
    result = run_simulated(session)
    taken_s = time.process_time() - begin_s
    session.placement += 1
    yield from result.readings(Origin.SIMULATED)
    yield Reading("simulation_time", "s", taken_s, Origin.MEASURED, "processor")


def run_simulated(session: Session) -> CollectiveResult:
    """Return the result of the next placement's collective; the placement seeds the switches' hash too."""
    subject, workload = session.subject, session.subject.workload
    clos, nic_HG = place(subject, session.placement)
    seed = placements.round_seed(subject.seed, session.placement)
    return simulate(clos, nic_HG, workload.collective, workload.buffer_B, subject.policy, seed)
