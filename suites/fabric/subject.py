"""The fabric suite's types: a collective over a leaf-spine fabric, and how a variant routes it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.instruments.network.leaf_spine.clos import Clos
from harness.instruments.network.leaf_spine.routing import Routed


@dataclass(frozen=True, slots=True)
class Workload:
    """A collective over a fabric of hosts with one rank each; the fields of `conf/suite/fabric.yaml`.

    Each rack's switch has one uplink to each spine.
    """

    collective: str  # allreduce | alltoall
    buffer_B: int  # buffer of each rank
    ranks: int
    racks: int
    nics_per_rack: int
    spines: int
    nic_B_per_s: float
    uplink_B_per_s: float
    placement: str  # aligned | fragmented | shuffled
    placements: int  # random placements, one sample each
    source: str

    def clos(self, share: float = 1.0) -> Clos:
        """Return the fabric with every link at that share of its rate; raises ValueError for none."""
        nic_B_per_s, uplink_B_per_s = share * self.nic_B_per_s, share * self.uplink_B_per_s
        return Clos(self.racks, self.nics_per_rack, self.spines, nic_B_per_s, uplink_B_per_s)


@dataclass(frozen=True, slots=True)
class Subject(Routed):
    """A workload under one variant's routing."""

    workload: Workload
    seed: int
