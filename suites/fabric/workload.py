"""A workload of the fabric suite: a collective over a leaf-spine fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from harness.instruments.network.clos import Clos


@dataclass(frozen=True, slots=True)
class Workload:
    """A collective over a fabric of hosts with one rank each.

    Each rack's switch has one uplink to each spine.
    """

    collective: Literal["allreduce", "alltoall"]
    buffer_B: Annotated[int, Bounds(at_least=4)]  # buffer of each rank
    ranks: Annotated[int, Bounds(at_least=2)]
    racks: PositiveInt
    nics_per_rack: PositiveInt  # one NIC per rank
    spines: PositiveInt
    nic_B_per_s: Annotated[float, Bounds(at_least=1)]
    uplink_B_per_s: Annotated[float, Bounds(at_least=1)]
    # aligned: racks filled one after the other; fragmented: random hosts, ranks in the order of racks;
    # shuffled: random hosts, ranks in any order.
    placement: Literal["aligned", "fragmented", "shuffled"] = "fragmented"
    placements: Annotated[int, Bounds(at_least=2)] = 10  # random placements, one sample each
    source: str = ""

    def clos(self, share: float = 1.0) -> Clos:
        """Return the fabric with every link at that share of its rate; raises ValueError for none."""
        nic_B_per_s, uplink_B_per_s = share * self.nic_B_per_s, share * self.uplink_B_per_s
        return Clos(self.racks, self.nics_per_rack, self.spines, nic_B_per_s, uplink_B_per_s)
