"""The flows of a collective, and the spine of each: hashed, pinned, or placed by one controller.

Only the rack switch where a flow starts chooses, because a spine has one link to each rack. What is compared
with ECMP are functions of a subject, which suites take as their optimizations.

Shapes: F flows, P pairs of a source and a destination, R racks, S spines; H hosts with G GPUs, each with its
own NIC; N = H G ranks. S, the size of a collective, is one rank's buffer in bytes.

AllReduce is a ring on each NIC index ("rail"), as NCCL has it on nodes whose GPUs reach one another by
NVLink: a channel enters a node at a NIC, passes all of its GPUs over NVLink, which the network does not
see, and leaves at a NIC; there are as many such channels at once as NICs, and the buffer is spread over
them (NCCL's author in github.com/NVIDIA/nccl/issues/412 and 687). In by one and out by the same, on
all nodes, is NCCL_CROSS_NIC=0 (its user guide). So G rings of H hops, and each hop carries 2 (N-1)/N of S/G.
With one GPU a host it is the plain ring over all ranks. A host sends to the one before it, as
`suites.fabric.on_rank.ring` does.

AlltoAll sends S/N from each GPU to each other over the NICs of both, all at once; traffic within a node uses
NVLink. NCCL's PXN, which first moves data to the other's rail over NVLink, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from harness.bounds import Bounds
from harness.instruments.network.clos import IN_RACK, Clos, FloatArray, IntArray, live_spines
from harness.records import Unavailable

ALONE = -1  # marks a flow that belongs to no ring


class Flows(NamedTuple):
    """A row per flow (F,): NICs, bytes, ring (in lockstep, one per queue pair), queue pair from 0."""

    source: IntArray
    destination: IntArray
    size_B: FloatArray
    ring: IntArray
    queue_pair: IntArray


def flows_of(kind: str, nic_HG: IntArray, size_B: float, queue_pairs: int = 1) -> Flows:
    """Return all flows of one collective: a connection's bytes equally over its `queue_pairs`.

    That holds for messages in turn as for split ones, over the whole collective.

    Raises ValueError where there would be no flow: fewer than two hosts.
    """
    if len(nic_HG) < 2:
        raise ValueError(f"no flows: a collective on {len(nic_HG)} host does not touch the network")
    rows = _whole(kind, nic_HG, size_B)
    parts = [part(rows, number, queue_pairs) for number in range(queue_pairs)]
    return Flows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def part(flows: Flows, number: int, queue_pairs: int) -> Flows:
    """Return what queue pair `number` of `queue_pairs` carries of unsplit flows."""
    return flows._replace(
        size_B=flows.size_B / queue_pairs,
        ring=np.where(flows.ring == ALONE, ALONE, flows.ring * queue_pairs + number),
        queue_pair=np.full(len(flows.source), number),
    )


def bus_bandwidth(kind: str, ranks: int, size_B: float, time_s: float) -> float:
    """Return the B/s that a rank's link has to carry, whatever the number of ranks.

    That is S/t times 2 (N-1)/N, or (N-1)/N for AlltoAll, as nccl-tests defines it
    (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus Bandwidth"), with its size: a rank's full buffer.
    A ring on each of G rails reaches G times a NIC's rate.
    """
    passes = 2 if kind == "allreduce" else 1
    return size_B / time_s * passes * (ranks - 1) / ranks


def _whole(kind: str, nic_HG: IntArray, size_B: float) -> Flows:
    (hosts, gpus), nic_N = nic_HG.shape, nic_HG.ravel()
    if kind == "allreduce":
        source, destination = nic_N, np.roll(nic_HG, 1, axis=0).ravel()
        each_B, ring = 2 * (nic_HG.size - 1) / nic_HG.size * size_B / gpus, np.tile(np.arange(gpus), hosts)
    else:
        host_N = np.repeat(np.arange(hosts), gpus)
        one, other = np.nonzero(host_N[:, None] != host_N)
        source, destination = nic_N[one], nic_N[other]
        each_B, ring = size_B / nic_HG.size, np.full(len(one), ALONE)
    return Flows(source, destination, np.full(len(source), each_B), ring, np.zeros_like(source))


Hash = NDArray[np.uint64]

IN_FLIGHT = 8  # messages of a connection at once: NCCL_STEPS (nccl, src/include/device.h)
TIE = 1e-9  # weight of two links' sum relative to the fuller one: it only decides between equals


@dataclass(frozen=True, slots=True)
class RoutingPolicy:
    """How a flow gets its spine.

    The hash is one of addresses and, with `hash_ports`, of ports too. A connection has `queue_pairs`. Whole
    messages take them in turn, `IN_FLIGHT` at once; with `split` each message takes all of them.
    """

    method: Literal["hash", "pinned", "central"] = "hash"
    hash_ports: bool = False
    queue_pairs: int = 1
    split: bool = False

    @property
    def hashed_fields(self) -> str:
        """Return the fields that the hash covers, in words; `none` without a hash."""
        if self.method != "hash":
            return "none"
        return "addresses and ports" if self.hash_ports else "addresses"

    def turns(self, kind: str) -> int:
        """Return in how many turns a ring takes its queue pairs; raises ValueError for unequal turns."""
        if self.split or kind != "allreduce" or self.queue_pairs <= IN_FLIGHT:
            return 1
        if self.queue_pairs % IN_FLIGHT:
            raise ValueError(
                f"{self.queue_pairs} queue pairs: expected at most {IN_FLIGHT}, or a multiple of it"
            )
        return self.queue_pairs // IN_FLIGHT


ECMP = RoutingPolicy()  # one connection per pair, its spine by a hash of addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """The part of a suite's subject that these functions change."""

    policy: RoutingPolicy = ECMP


def choose_spines(flows: Flows, clos: Clos, policy: RoutingPolicy, seed: int = 0) -> IntArray:
    """Return the spine of each flow (F,), `IN_RACK` where it needs none; `seed`: of the switches' hash."""
    if policy.method == "hash":
        spine_F = ecmp(flows, clos, policy.hash_ports, seed)
    else:
        spine_F = pinned(flows, clos, seed) if policy.method == "pinned" else central(flows, clos)
    return np.where(clos.rack(flows.source) == clos.rack(flows.destination), IN_RACK, spine_F)


def ecmp(flows: Flows, clos: Clos, ports: bool, seed: int) -> IntArray:
    """Route by a hash of both addresses and, with `ports`, of what distinguishes queue pairs of a connection.

    The first is what Gangidi et al. (SIGCOMM 2024, doi 10.1145/3651890.3672233) call ECMP, the second E-ECMP.
    Among spines with live links to both racks, as rack switches hash over live next hops.
    """
    fields = (flows.source, flows.destination, *((flows.queue_pair,) if ports else ()))
    high_F = hashed(seed, *fields) >> np.uint64(32)
    if not clos.failed:
        return _scaled(high_F, np.uint64(clos.spines))
    count_RR, spine_RRS = live_spines(clos)  # as next hops are where routes are withdrawn
    racks = clos.rack(flows.source), clos.rack(flows.destination)
    return spine_RRS[*racks, _scaled(high_F, count_RR[racks].astype(np.uint64))]


def pinned(flows: Flows, clos: Clos, seed: int) -> IntArray:
    """Route by the destination's index among its rack's NICs.

    Where a link of that path is down, the hash of both addresses chooses among what is left. As Gangidi et
    al. pinned paths, by the index of the rack switch's downlink; what failed over was spread by their
    switches' ECMP.
    """
    own_F = flows.destination % clos.nics_per_rack % clos.spines
    if not clos.failed:
        return own_F
    live_RS = clos.live_RS
    live_F = live_RS[clos.rack(flows.source), own_F] & live_RS[clos.rack(flows.destination), own_F]
    return np.where(live_F, own_F, ecmp(flows, clos, False, seed))


def central(flows: Flows, clos: Clos) -> IntArray:
    """Route from the traffic matrix: pair after pair, the largest first.

    Each takes the spine whose two links to its racks are least loaded, by the fuller of them. Constrained
    shortest path first, as Gangidi et al. name it; placed pairs are not revisited. All traffic from one NIC
    to another takes one path.
    """
    key_P, pair_F = np.unique(flows.source * clos.nics + flows.destination, return_inverse=True)
    one_P, other_P = clos.rack(key_P // clos.nics), clos.rack(key_P % clos.nics)
    size_B_P = np.bincount(pair_F, flows.size_B).astype(np.float64)
    return _place(clos, one_P, other_P, size_B_P)[pair_F]


def hashed(seed: int, *fields: IntArray) -> Hash:
    """Return 64 bits per row, by SplitMix64's finaliser (Steele, Lea and Flood, OOPSLA 2014)."""
    hash_ = _mixed(np.array([seed % 2**64], dtype=np.uint64))
    for field in fields:
        hash_ = _mixed(hash_ ^ field.astype(np.uint64))
    return hash_


def _mixed(number: Hash) -> Hash:
    number = number + np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return number ^ (number >> np.uint64(31))


def _scaled(high_F: Hash, count: Hash | np.uint64) -> IntArray:
    """Return 32 bits as a number from 0 to `count` - 1."""
    return ((high_F * count) >> np.uint64(32)).astype(np.int64)


def _place(clos: Clos, one_P: IntArray, other_P: IntArray, size_B_P: FloatArray) -> IntArray:
    """Place pairs greedily; those that share no rack at once, which gives the same as one by one."""
    load_2RS = np.zeros((2, clos.racks, clos.spines))
    down_RS = np.where(clos.live_RS, 0.0, np.inf)
    spine_P = np.full(len(one_P), IN_RACK, dtype=np.int64)
    for at in _disjoint_groups(clos, one_P, other_P, size_B_P):
        one, other = one_P[at], other_P[at]
        sent, received = load_2RS[0, one] + down_RS[one], load_2RS[1, other] + down_RS[other]
        chosen = (np.maximum(sent, received) + TIE * (sent + received)).argmin(axis=1)
        spine_P[at] = chosen
        load_2RS[0, one, chosen] += size_B_P[at]
        load_2RS[1, other, chosen] += size_B_P[at]
    return spine_P


def _disjoint_groups(clos: Clos, one_P: IntArray, other_P: IntArray, size_B_P: FloatArray) -> list[IntArray]:
    """Return pairs between racks, largest first, in groups of a size and distance that share no rack."""
    at = np.flatnonzero(one_P != other_P)
    rank = np.unique(-size_B_P[at], return_inverse=True)[1]
    racks = one_P[at] * clos.racks + other_P[at]
    order = np.lexsort((racks, rank))
    at, rank, racks = at[order], rank[order], racks[order]
    begins = np.flatnonzero(_changes(rank, racks))
    turn = np.arange(len(at)) - np.repeat(begins, np.diff(begins, append=len(at)))
    far = (other_P[at] - one_P[at]) % clos.racks
    order = np.lexsort((far, turn, rank))
    groups = np.flatnonzero(_changes(rank[order], turn[order], far[order]))
    return np.split(at[order], groups[1:]) if len(at) else []


def _changes(*columns: IntArray) -> NDArray[np.bool_]:
    """Return where a row differs from the one before it; the first always does."""
    differs = np.ones(len(columns[0]), dtype=np.bool_)
    differs[1:] = np.any([column[1:] != column[:-1] for column in columns], axis=0)
    return differs


Subject = TypeVar("Subject", bound=Routed)


QueuePairs = Annotated[int, Bounds(at_least=1, at_most=64)]  # connections of each pair of ranks


def qp_scaling(subject: Subject, queue_pairs: QueuePairs, split: bool = False) -> Subject:
    """Several connections, which a hash of addresses cannot tell apart; `split`: a message takes all."""
    policy = RoutingPolicy(queue_pairs=queue_pairs, split=split)
    try:
        policy.turns("allreduce")
    except ValueError as error:
        raise Unavailable(str(error)) from None
    return replace(subject, policy=policy)


def e_ecmp(subject: Subject, queue_pairs: QueuePairs, split: bool = False) -> Subject:
    """E-ECMP: several connections that the hash distinguishes, in turn or split (Meta, SIGCOMM 2024)."""
    scaled = qp_scaling(subject, queue_pairs, split)
    return replace(scaled, policy=replace(scaled.policy, hash_ports=True))


def path_pinning(subject: Subject) -> Subject:
    """A static route per destination: the index of the host in its rack decides which spine leads to it."""
    return replace(subject, policy=RoutingPolicy("pinned"))


def central_te(subject: Subject) -> Subject:
    """Central traffic engineering: routes from the traffic matrix, the heaviest pair of NICs first."""
    return replace(subject, policy=RoutingPolicy("central"))
