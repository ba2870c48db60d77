"""The fabric suite: how routing and the number of queue pairs change a collective, with real packets.

The baseline is one connection per pair of ranks, its spine chosen by a hash of addresses. Packets travel
between namespaces on this machine. A round is a random placement, the same for all variants of a workload.
Each round is also simulated by flows on the routes that the packets took
(`harness.instruments.network`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from harness.instruments.network import clos as placements
from harness.instruments.network.clos import FloatArray, IntArray
from harness.instruments.network.flow_simulator import CollectiveResult, simulate_routed
from harness.instruments.network.routing import flows_of
from harness.instruments.network.topology import FRAME_B
from harness.records import Json, Note, Origin, Reading, Unavailable, WrongResult
from suites.fabric.emulated import CollectiveRun, EmulatedFabric, Subject
from suites.fabric.on_rank import NUMBER_B, messages
from suites.fabric.workload import Workload

TCP_DATA_B = FRAME_B - 14 - 20 - 32
"""Payload share of a full frame: without the headers of Ethernet, IP, and TCP with timestamps (RFC 7323)."""

PAYLOAD_SHARE = TCP_DATA_B / FRAME_B
"""Share of a link's rate that carries payload. Acknowledgments, which share the links, are not deducted."""


@dataclass(slots=True)
class Session:
    """One variant on the network that all variants of its workload share, and the placement that is next."""

    subject: Subject
    fabric: EmulatedFabric
    placement: int = 0


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for an impossible fabric or a job that it has no room for."""
    subject = Subject(Workload(**workload), seed)
    try:
        clos = subject.workload.clos()
        flows_of(subject.workload.collective, nics_of(subject, 0), subject.workload.buffer_B)
    except ValueError as error:
        raise Unavailable(str(error)) from None
    if subject.workload.ranks != clos.nics:
        raise Unavailable(f"ranks={subject.workload.ranks}: expected {clos.nics}, one for each host")
    return subject


def nics_of(subject: Subject, placement: int) -> IntArray:
    """Return the NICs of the ranks at one placement (hosts, 1); raises ValueError where they do not fit."""
    workload, seed = subject.workload, placements.round_seed(subject.seed, placement)
    return placements.place(workload.clos(), workload.placement, workload.ranks, 1, seed)


def prepare(subject: Subject) -> Session:
    """Start the network and its ranks, unless another variant of the workload did."""
    validate_even_split(subject)
    fabric = shared_fabric(subject.workload)
    fabric.variants += 1
    fabric.max_queue_pairs = max(fabric.max_queue_pairs, subject.policy.queue_pairs)
    return Session(subject, fabric)


def validate_even_split(subject: Subject) -> None:
    """Raise `Unavailable` for a buffer that does not split evenly over ranks, messages and queue pairs."""
    workload, policy = subject.workload, subject.policy
    parts = messages(policy.queue_pairs, policy.split) * (policy.queue_pairs if policy.split else 1)
    if workload.buffer_B % (NUMBER_B * workload.ranks * parts) or parts % policy.queue_pairs:
        raise Unavailable(
            f"buffer_B={workload.buffer_B} does not split into numbers of {NUMBER_B} B for {workload.ranks} "
            f"ranks, in {parts} parts each over {policy.queue_pairs} queue pairs"
        )


def check(session: Session) -> None:
    """Compare every rank's result with a closed formula, and the bytes of uplinks with their flows'.

    Raises `WrongResult`. Each later collective compares results too.
    """
    _, emulated, simulated = run_collective(session)
    validate_routes(emulated.load_B, simulated.load_B)


def validate_routes(counted_B: FloatArray, routed_B: FloatArray) -> None:
    """Raise `WrongResult` where an uplink carried less than the kernel routes over it.

    `counted_B` are the bytes that interfaces counted, `routed_B` the payload of flows on the routes that the
    kernel reports, each by direction, rack and spine. The former also have headers and acknowledgements.
    """
    wrong = np.argwhere(counted_B < routed_B)
    if wrong.size:
        direction, rack, spine = wrong[0]
        raise WrongResult(
            f"the uplink {('to', 'from')[direction]} spine{spine} of leaf{rack} carried "
            f"{counted_B[direction, rack, spine]:.0f} B of the {routed_B[direction, rack, spine]:.0f} B that "
            "are routed over it"
        )


def conditions(session: Session) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload, policy = session.subject.workload, session.subject.policy
    return {
        "device": "cpu",
        "fabric": "emulated",
        "collective": workload.collective,
        "routing": policy.method,
        "hash": policy.hashed_fields,
        "queue_pairs": str(policy.queue_pairs),
        "messages": "split" if policy.split else "in turn",
        "nodes": str(workload.ranks),
        "ranks": str(workload.ranks),
        "placement": workload.placement,
        "failed_uplinks": "0",
        "message_B": str(workload.buffer_B),
    }


def read_once(session: Session) -> Iterator[Reading | Note]:
    """Yield what is the same for all placements."""
    yield Reading("queue_pairs", "1", session.subject.policy.queue_pairs, Origin.CALCULATED)
    yield Reading("link_rate", "B/s", session.subject.workload.uplink_B_per_s, Origin.CALCULATED, "asked")
    yield Reading("link_rate", "B/s", session.fabric.carried_B_per_s, Origin.MEASURED, "carried")


def sample(session: Session) -> Iterator[Reading]:
    """Run the next placement's collective on the network, and simulate it on the same routes."""
    run, emulated, simulated = run_collective(session)
    session.placement += 1
    yield from emulated.readings(Origin.EMULATED)
    yield Reading("segments_sent_again", "1", run.retransmitted, Origin.EMULATED)
    yield Reading("processors_stolen", "1", run.stolen, Origin.MEASURED)
    yield from simulated.readings(Origin.SIMULATED, "flows")
    yield Reading("model_error", "1", simulated.time_s / emulated.time_s - 1, Origin.SIMULATED, "flows")


def run_collective(session: Session) -> tuple[CollectiveRun, CollectiveResult, CollectiveResult]:
    """Return the run with packets, its result, and the simulated result on the same routes."""
    workload, policy = session.subject.workload, session.subject.policy
    nic_HG = nics_of(session.subject, session.placement)
    flows = flows_of(workload.collective, nic_HG, workload.buffer_B, policy.queue_pairs)
    run = session.fabric.run_collective(workload, policy, flows, [int(nic) for nic in nic_HG[:, 0]])
    simulated = simulate_routed(
        workload.clos(PAYLOAD_SHARE),
        workload.collective,
        workload.ranks,
        workload.buffer_B,
        flows,
        run.spines,
        policy.turns(workload.collective),
    )
    bus_B_per_s = simulated.bus_B_per_s * simulated.time_s / run.time_s
    emulated = simulated._replace(time_s=run.time_s, bus_B_per_s=bus_B_per_s, load_B=run.load_B)
    return run, emulated, simulated


@lru_cache(maxsize=1)
def shared_fabric(workload: Workload) -> EmulatedFabric:
    """Return the network and the ranks that all variants of a workload share; only one exists at a time."""
    return EmulatedFabric(workload, workload.clos())


def close(session: Session) -> None:
    """End network and ranks with the last variant that shares them."""
    session.fabric.variants -= 1
    if not session.fabric.variants:
        session.fabric.close()
        shared_fabric.cache_clear()
