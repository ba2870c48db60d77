"""The fabric suite: how routing and the number of queue pairs change a collective over leaves and spines.

The baseline is one connection per pair of ranks, its spine chosen by a hash of addresses. Small fabrics carry
real packets between namespaces on this machine; fabrics of Meta's size are simulated by flows. A round is a
random placement, the same for all variants of a workload.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np

from harness.instruments.network.topology import FRAME_B
from harness.records import Json, Note, Origin, Reading, Unavailable
from suites.fabric import placements
from suites.fabric.clos import Clos, Whole
from suites.fabric.collectives import flows_of
from suites.fabric.emulated import Fabric, Turn
from suites.fabric.on_rank import NUMBER_B
from suites.fabric.simulated import Result, collective, routed
from suites.fabric.subject import Subject, Workload

ROUNDS = 1 << 20
"""Distance between the seeds of two runs, so that their placements differ."""

TCP_DATA_B = FRAME_B - 14 - 20 - 32
"""Payload share of a full frame: without the headers of Ethernet, IP, and TCP with timestamps (RFC 7323)."""


def build(workload: Json, seed: int) -> Subject:
    """Return the baseline; raises `Unavailable` for an impossible fabric or a job that it has no room for."""
    subject = Subject(Workload(**workload), seed)
    try:
        clos, nic_HG = placed(subject, 0)
        flows_of(subject.workload.collective, nic_HG, subject.workload.buffer_B)
    except ValueError as error:
        raise Unavailable(str(error)) from None
    if subject.workload.emulated:
        refuse_unreal(subject.workload, clos)
    return subject


def refuse_unreal(workload: Workload, clos: Clos) -> None:
    """Raise `Unavailable` for what the emulation with packets does not support."""
    if workload.ranks_per_node != 1 or workload.failed_uplinks:
        raise Unavailable("with packets, each host has one rank, over links that are all up")
    if workload.ranks != clos.nics:
        raise Unavailable(
            f"with packets, each of {clos.nics} hosts has one rank, not {workload.ranks} ranks in all"
        )


def placed(subject: Subject, round_: int) -> tuple[Clos, Whole]:
    """Return the round's fabric and the NICs of its ranks (hosts, GPUs); raises ValueError for none.

    Rates are those of payload: with packets, headers of full frames are deducted; acknowledgments, which
    share the links, are not.
    """
    workload, seed = subject.workload, subject.seed * ROUNDS + round_
    clos = fabric_of(workload, TCP_DATA_B / FRAME_B if workload.emulated else 1.0)
    hosts, gpus = divmod(workload.ranks, workload.ranks_per_node)
    if gpus:
        raise ValueError(
            f"{workload.ranks} ranks are not a multiple of ranks_per_node={workload.ranks_per_node}"
        )
    if workload.placement == "aligned":
        nic_HG = placements.aligned(clos, hosts, workload.ranks_per_node)
    else:
        nic_HG = placements.fragmented(clos, hosts, workload.ranks_per_node, seed)
    if workload.placement == "shuffled":
        nic_HG = placements.shuffled(nic_HG, seed)
    failed = placements.failed_links(clos, nic_HG, workload.failed_uplinks, seed)
    return replace(clos, failed=failed), nic_HG


def fabric_of(workload: Workload, share: float = 1.0) -> Clos:
    """Return the fabric with every link up, at that share of its rate."""
    return Clos(
        workload.racks,
        workload.nics_per_rack,
        workload.spines,
        share * workload.nic_B_per_s,
        share * workload.uplink_B_per_s,
    )


def check(subject: Subject) -> None:
    """Compare every rank's result with a closed formula, in this and in each later turn (packets only)."""
    subject.held["round"] = 0
    if not subject.workload.emulated:
        return
    refuse_uneven(subject)
    fabric = fabric_for(subject)
    fabric.variants += 1
    subject.held["fabric"] = fabric
    fabric.most_pairs = max(fabric.most_pairs, subject.plan.queue_pairs)
    turn(subject)


def refuse_uneven(subject: Subject) -> None:
    """Raise `Unavailable` for a message that does not split evenly over ranks and queue pairs."""
    workload, pairs = subject.workload, subject.plan.queue_pairs
    if workload.buffer_B % (NUMBER_B * workload.ranks * pairs):
        raise Unavailable(
            f"{workload.buffer_B} B do not split into numbers of {NUMBER_B} B for {workload.ranks} ranks and "
            f"{pairs} queue pairs each"
        )


def conditions(subject: Subject) -> Mapping[str, str]:
    """Return the conditions that a claim may name."""
    workload, plan = subject.workload, subject.plan
    return {
        "device": "cpu",
        "fabric": "emulated" if workload.emulated else "simulated",
        "collective": workload.collective,
        "routing": plan.routing,
        "hash": ("addresses and ports" if plan.ports else "addresses") if plan.routing == "hash" else "none",
        "queue_pairs": str(plan.queue_pairs),
        "nodes": str(workload.ranks // workload.ranks_per_node),
        "ranks": str(workload.ranks),
        "placement": workload.placement,
        "failed_uplinks": str(workload.failed_uplinks),
        "message_B": str(workload.buffer_B),
    }


def read_once(subject: Subject) -> Iterator[Reading | Note]:
    """Yield what is the same for all placements."""
    workload = subject.workload
    yield Reading("queue_pairs", "1", subject.plan.queue_pairs, Origin.CALCULATED)
    if workload.emulated:
        yield Reading("link_rate", "B/s", workload.uplink_B_per_s, Origin.CALCULATED, "asked")
        carried_B_per_s = subject.held["fabric"].carried_B_per_s
        yield Reading("link_rate", "B/s", carried_B_per_s, Origin.MEASURED, "carried")


def timed(subject: Subject) -> bool:
    """Return True: placements are drawn for packets and for flows."""
    return True


def sample(subject: Subject) -> Iterator[Reading]:
    """Run one collective on the next placement: its seconds, bus bandwidth, and how evenly uplinks were
    used.
    """
    if subject.workload.emulated:
        yield from by_packets(subject)
    else:
        begin_s = time.process_time()
        result = by_flows(subject)
        taken_s = time.process_time() - begin_s
        yield from readings(result, Origin.SIMULATED)
        yield Reading("simulation_time", "s", taken_s, Origin.MEASURED, "processor")
    subject.held["round"] += 1


def by_flows(subject: Subject) -> Result:
    """Simulate the round's collective; the hash is seeded by the round too."""
    workload, round_ = subject.workload, subject.held["round"]
    clos, nic_HG = placed(subject, round_)
    return collective(
        clos, nic_HG, workload.collective, workload.buffer_B, subject.plan, subject.seed * ROUNDS + round_
    )


def by_packets(subject: Subject) -> Iterator[Reading]:
    """Run the round's collective on the network, and simulate it on the same routes."""
    took, result, said = turn(subject)
    yield from readings(result, Origin.EMULATED)
    yield Reading("segments_sent_again", "1", took.sent_again, Origin.EMULATED)
    yield Reading("processors_stolen", "1", took.stolen, Origin.MEASURED)
    yield from readings(said, Origin.SIMULATED, "flows")
    yield Reading("model_error", "1", said.time_s / result.time_s - 1, Origin.SIMULATED, "flows")


def turn(subject: Subject) -> tuple[Turn, Result, Result]:
    """Return the packets' time as a result, and the simulated time on the same routes."""
    workload, plan, fabric = subject.workload, subject.plan, subject.held["fabric"]
    clos, nic_HG = placed(subject, subject.held["round"])
    flows = flows_of(workload.collective, nic_HG, workload.buffer_B, plan.queue_pairs)
    took = fabric.turn(workload, plan, flows, [int(nic) for nic in nic_HG[:, 0]])
    said = routed(clos, workload.collective, workload.ranks, workload.buffer_B, flows, took.spines)
    bus_B_per_s = said.bus_B_per_s * said.time_s / took.time_s
    return took, said._replace(time_s=took.time_s, bus_B_per_s=bus_B_per_s, load_B=took.load_B), said


def readings(result: Result, origin: Origin, method: str = "") -> Iterator[Reading]:
    """Yield the readings of one collective."""
    yield Reading("time", "s", result.time_s, origin, method)
    yield Reading("bus_bandwidth", "B/s", result.bus_B_per_s, origin, method)
    yield Reading("of_bound", "1", result.of_bound, origin, method)
    if np.isfinite(result.max_over_mean):
        yield Reading("load_max_over_mean", "1", result.max_over_mean, origin, method)


def fabric_for(subject: Subject) -> Fabric:
    """Return the network and the ranks that all variants of a workload share."""
    return shared_fabric(subject.workload)


@lru_cache(maxsize=1)
def shared_fabric(workload: Workload) -> Fabric:
    """Return the shared fabric; only one exists at a time."""
    return Fabric(workload, fabric_of(workload))


def close(subject: Subject) -> None:
    """End network and ranks with the last variant that shares them."""
    fabric = subject.held.pop("fabric", None)
    if fabric is None:
        return
    fabric.variants -= 1
    if not fabric.variants:
        fabric.close()
        shared_fabric.cache_clear()
