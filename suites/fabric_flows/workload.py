"""A workload of the fabric_flows suite: a collective over a leaf-spine fabric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from harness.bounds import Bounds, PositiveInt


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A collective over a fabric.

    Each rank has one NIC. Each rack's switch has one uplink to each spine.
    """

    collective: Literal["allreduce", "alltoall"]
    buffer_B: Annotated[int, Bounds(at_least=4)]  # buffer of each rank
    ranks: Annotated[int, Bounds(at_least=2)]
    ranks_per_node: PositiveInt = 1  # which reach each other without the network
    racks: PositiveInt
    nics_per_rack: Annotated[int, Bounds(at_least=1, multiple_of="ranks_per_node")]  # one NIC per rank
    spines: PositiveInt
    nic_B_per_s: Annotated[float, Bounds(at_least=1)]
    uplink_B_per_s: Annotated[float, Bounds(at_least=1)]
    # aligned: racks filled one after the other; fragmented: random hosts, ranks in the order of racks;
    # shuffled: random hosts, ranks in any order.
    placement: Literal["aligned", "fragmented", "shuffled"] = "fragmented"
    failed_uplinks: Annotated[int, Bounds(at_least=0)] = 0  # random ones for each placement
    placements: Annotated[int, Bounds(at_least=2)] = 10  # random placements, one sample each
    source: str = ""
