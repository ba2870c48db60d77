"""The fabric_flows suite's types: a collective over a leaf-spine fabric, and how a variant routes it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.instruments.network.leaf_spine.routing import Routed


@dataclass(frozen=True, slots=True)
class Workload:
    """A collective over a fabric; the fields of `conf/suite/fabric_flows.yaml`.

    Each rank has one NIC. Each rack's switch has one uplink to each spine.
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
    placements: int  # random placements, one sample each
    source: str


@dataclass(frozen=True, slots=True)
class Subject(Routed):
    """A workload under one variant's routing."""

    workload: Workload
    seed: int
