"""What the fabric suite hands around: a collective over a leaf-spine fabric, and how one variant routes
it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Workload:
    """A collective over a fabric; the fields of `conf/suite/fabric.yaml`.

    A NIC is a rank's. Each rack's switch has one uplink to each spine. `emulated`: by packets, on this
    machine; else by flows alone.
    """

    collective: str  # allreduce | alltoall
    buffer_B: int  # of each rank
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
    placements: int  # random ones, a sample each
    source: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How a flow gets its spine: hash | pinned | central; by a hash of addresses, and of `ports` too.

    Each message is split over `queue_pairs` connections.
    """

    routing: str = "hash"
    ports: bool = False
    queue_pairs: int = 1


@dataclass(frozen=True, slots=True)
class Subject:
    """One variant."""

    workload: Workload
    seed: int
    plan: Plan = Plan()
    held: dict[str, Any] = field(default_factory=dict)
