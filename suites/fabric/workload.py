"""Workloads of the fabric suites: a collective over a leaf-spine fabric, and an incast through one switch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from harness.bounds import Bounds, PositiveInt
from harness.instruments.network.clos import Clos
from harness.records import Unavailable

if TYPE_CHECKING:
    from harness.instruments.network.routing import RoutingPolicy


@dataclass(frozen=True, slots=True)
class Workload:
    """A collective over a fabric of hosts with one rank each, and one NIC per rank.

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

    def conditions(self, policy: RoutingPolicy) -> dict[str, str]:
        """Return the conditions that a claim may name."""
        return {
            "device": "cpu",
            "collective": self.collective,
            "routing": policy.method,
            "hash": policy.hashed_fields,
            "queue_pairs": str(policy.queue_pairs),
            "messages": "split" if policy.split else "in turn",
            "ranks": str(self.ranks),
            "placement": self.placement,
            "message_B": str(self.buffer_B),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricFlowsWorkload(Workload):
    """A collective over a fabric of hosts with several ranks each, of which some uplinks may have failed."""

    nics_per_rack: Annotated[int, Bounds(at_least=1, multiple_of="ranks_per_node")]
    ranks_per_node: PositiveInt = 1  # which reach each other without the network
    failed_uplinks: Annotated[int, Bounds(at_least=0)] = 0  # random ones for each placement


@dataclass(frozen=True, slots=True, kw_only=True)
class CongestionWorkload:
    """An incast of N senders into one receiver through one switch.

    Each sender sends `messages` of `message_B`, one after the other. Every NIC and the receiver's port have
    the same rate.
    """

    senders: PositiveInt  # into one receiver's port
    message_B: Annotated[float, Bounds(at_least=1)]  # bytes of each message
    messages: PositiveInt = 1  # per sender, one after the other
    rate_B_per_s: Annotated[float, Bounds(at_least=1)]  # of every NIC and of the receiver's port
    # Unloaded, from a NIC to another and back; Meta's value.
    rtt_s: Annotated[float, Bounds(at_least=1e-9)] = 22e-6
    # One way from a sender's NIC to the switch; a pause takes as long back, and acts at once. Chosen here.
    hop_s: Annotated[float, Bounds(at_least=1e-9, not_above="rtt_s * 0.5")] = 1e-6
    buffer_B: Annotated[float, Bounds(at_least=1)] = 30e6  # buffer of the switch, shared by all its ports
    # A port with more bytes asks its sender to pause, and resumes below `xon_B`.
    xoff_B: Annotated[float, Bounds(at_least=1, not_above="buffer_B")]
    xon_B: Annotated[float, Bounds(at_least=0, not_above="xoff_B")]
    # Room of a port for what still arrives after it asked.
    headroom_B: Annotated[float, Bounds(at_least=0, not_above="buffer_B")]
    # Senders start within this time, by the seed; chosen here.
    jitter_s: Annotated[float, Bounds(at_least=0)] = 22e-6
    # Of a time step. At most a quarter of hop_s, because the simulation is repeated with twice the step.
    dt_s: Annotated[float, Bounds(at_least=1e-10, not_above="hop_s * 0.25")] = 1e-7
    source: str = ""

    @property
    def sender_B(self) -> float:
        """Return the bytes that one sender sends in total."""
        return self.messages * self.message_B

    @property
    def bound_s(self) -> float:
        """Return the least completion time: every byte through one port, plus a round trip."""
        return self.senders * self.sender_B / self.rate_B_per_s + self.rtt_s

    def steps(self, time_s: float) -> int:
        """Return the number of steps nearest to a time."""
        return round(time_s / self.dt_s)

    def refuse_lossy(self) -> None:
        """Raise Unavailable where the buffer cannot take what all ports may fill."""
        need_B = self.senders * (self.xoff_B + self.headroom_B)
        if need_B > self.buffer_B:
            raise Unavailable(
                f"{self.senders} ports with threshold and headroom need {need_B:,.0f} B of a buffer of "
                f"{self.buffer_B:,.0f} B: it could not be lossless"
            )
