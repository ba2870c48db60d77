"""The fabric suite's types: a collective over a leaf-spine fabric, and how a variant routes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Workload:
    """A collective over a fabric; the fields of `conf/suite/fabric.yaml`.

    Each rank has one NIC. Each rack's switch has one uplink to each spine. `emulated`: with packets, on this
    machine; else by flows only.
    """

    collective: str  # allreduce | alltoall
    buffer_B: int  # buffer of each rank
    ranks: int
    ranks_per_node: int  # which reach each other without the network
    racks: int
    nics_per_rack: int
    spines: int
    nic_B_per_s: float
    uplink_B_per_s: float
    placement: str  # aligned | fragmented | shuffled
    failed_uplinks: int
    emulated: bool
    placements: int  # random placements, one sample each
    source: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How a flow gets its spine: hash | pinned | central; a hash of addresses and, with `ports`, of ports
    too.

    Each message is split over `queue_pairs` connections.
    """

    routing: str = "hash"
    ports: bool = False
    queue_pairs: int = 1


@dataclass(frozen=True, slots=True)
class Subject:
    """A workload under one variant's routing."""

    workload: Workload
    seed: int
    plan: Plan = Plan()
    held: dict[str, Any] = field(default_factory=dict)
