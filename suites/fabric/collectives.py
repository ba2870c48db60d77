"""The flows that a collective puts on the network: who sends how many bytes to whom, over which queue pair.

After `placements`, before `routing`. Shapes: F flows; H hosts with G GPUs, each with a NIC of its own; N =
H G ranks. S, the size of a collective, is one rank's buffer in bytes.

AllReduce is a ring on each NIC index ("rail"), as NCCL has it on nodes whose GPUs reach one another by
NVLink: a channel enters a node by a NIC, goes through all of its GPUs by NVLink, which the network does not
see, and exits by a NIC; there are as many such channels at once as there are NICs, and the buffer is spread
over them (NCCL's author in github.com/NVIDIA/nccl/issues/412 and 687). In by one and out by the same, on
all nodes, is NCCL_CROSS_NIC=0 (its user guide). So G rings of H hops, and each hop carries 2 (N-1)/N of S/G.
With one GPU a host it is the plain ring over all ranks. A host sends to the one before it, as gloo's ring
does (github.com/pytorch/gloo, gloo/allreduce.cc).

AlltoAll sends S/N from each GPU to each other by the NICs of the two, all at once; what stays within a node
is NVLink's. NCCL's PXN, which would go to the other's rail by NVLink first, is left out.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import numpy as np

from suites.fabric.clos import Real, Whole

Kind = Literal["allreduce", "alltoall"]

ALONE = -1
"""In place of a ring: a flow that keeps pace with no other."""


class Flows(NamedTuple):
    """Columns (F,), a row each flow: NICs, bytes, ring, and which queue pair of its connection it is, from 0.

    Flows of one ring go on at one pace; each queue pair has rings of its own.
    """

    source: Whole
    destination: Whole
    size_B: Real
    ring: Whole
    queue_pair: Whole


def flows_of(kind: str, nic_HG: Whole, size_B: float, queue_pairs: int = 1) -> Flows:
    """All flows of one collective, each connection split over `queue_pairs` in equal parts.

    Raises ValueError for another kind, a size that is not positive and finite, fewer than one queue pair, or
    where there would be no flow: fewer than two hosts.
    """
    if kind not in get_args(Kind):
        raise ValueError(f"there is no collective '{kind}': {' or '.join(get_args(Kind))}")
    if not 0 < size_B < math.inf:
        raise ValueError(f"no flows: a collective of {size_B} B is none; its size is above 0 and finite")
    if len(nic_HG) < 2:
        raise ValueError(f"no flows: a collective on {len(nic_HG)} host does not touch the network")
    rows = _ring(nic_HG, size_B) if kind == "allreduce" else _pairs(nic_HG, size_B)
    return split(rows, queue_pairs)


def split(flows: Flows, queue_pairs: int) -> Flows:
    """Each flow as so many, of equal bytes. Raises ValueError for fewer than one queue pair."""
    check_pairs(queue_pairs)
    parts = [part(flows, number, queue_pairs) for number in range(queue_pairs)]
    return Flows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def check_pairs(queue_pairs: int) -> None:
    """Raises ValueError for fewer than one queue pair."""
    if queue_pairs < 1:
        raise ValueError(f"a connection has one queue pair at least, not {queue_pairs}")


def part(flows: Flows, number: int, queue_pairs: int) -> Flows:
    """Of flows that are not split yet what queue pair `number` of `queue_pairs` carries."""
    return flows._replace(
        size_B=flows.size_B / queue_pairs,
        ring=np.where(flows.ring == ALONE, ALONE, flows.ring * queue_pairs + number),
        queue_pair=np.full(len(flows.source), number),
    )


def bus_bandwidth(kind: str, ranks: int, size_B: float, time_s: float) -> float:
    """B/s that a rank's link to others has to carry, whatever their number: S/t times 2 (N-1)/N, or (N-1)/N
    for AlltoAll.

    As nccl-tests defines it (github.com/NVIDIA/nccl-tests, doc/PERFORMANCE.md, "Bus Bandwidth"), with its
    size: a rank's whole buffer. A ring on each of G rails reaches G times a NIC's rate.
    """
    ways = 2 if kind == "allreduce" else 1
    return size_B / time_s * ways * (ranks - 1) / ranks


def _ring(nic_HG: Whole, size_B: float) -> Flows:
    hosts, gpus = nic_HG.shape
    hop_B = 2 * (nic_HG.size - 1) / nic_HG.size * size_B / gpus
    before_HG = np.roll(nic_HG, 1, axis=0)
    return _rows(nic_HG.ravel(), before_HG.ravel(), hop_B, np.tile(np.arange(gpus), hosts))


def _pairs(nic_HG: Whole, size_B: float) -> Flows:
    host_N, nic_N = np.repeat(np.arange(len(nic_HG)), nic_HG.shape[1]), nic_HG.ravel()
    one, other = np.nonzero(host_N[:, None] != host_N)
    return _rows(nic_N[one], nic_N[other], size_B / nic_HG.size, np.full(len(one), ALONE))


def _rows(source: Whole, destination: Whole, each_B: float, ring: Whole) -> Flows:
    rows = len(source)
    return Flows(source, destination, np.full(rows, each_B), ring, np.zeros(rows, dtype=np.int64))
