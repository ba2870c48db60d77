"""The flows that a collective puts on the network: who sends how many bytes to whom, over which queue pair.

After `placements`, before `routing`. Shapes: F flows; H hosts with G GPUs, each with its own NIC; N =
H G ranks. S, the size of a collective, is one rank's buffer in bytes.

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

import math
from typing import Literal, NamedTuple, get_args

import numpy as np

from harness.instruments.network.leaf_spine.clos import FloatArray, IntArray

CollectiveKind = Literal["allreduce", "alltoall"]

ALONE = -1
"""Marks a flow that belongs to no ring."""


class Flows(NamedTuple):
    """Columns (F,), one row per flow: NICs, bytes, ring, and the queue pair of its connection, from 0.

    Flows of one ring advance at one pace; each queue pair has its own rings.
    """

    source: IntArray
    destination: IntArray
    size_B: FloatArray
    ring: IntArray
    queue_pair: IntArray


def flows_of(kind: str, nic_HG: IntArray, size_B: float, queue_pairs: int = 1) -> Flows:
    """Return all flows of one collective: a connection's bytes equally over its `queue_pairs`.

    That holds for messages in turn as for split ones, over the whole collective.

    Raises ValueError for another kind, a size that is not positive and finite, fewer than one queue pair, or
    where there would be no flow: fewer than two hosts.
    """
    if kind not in get_args(CollectiveKind):
        raise ValueError(f"there is no collective '{kind}': {' or '.join(get_args(CollectiveKind))}")
    if not 0 < size_B < math.inf:
        raise ValueError(f"no flows: a collective of {size_B} B; its size must be above 0 and finite")
    if len(nic_HG) < 2:
        raise ValueError(f"no flows: a collective on {len(nic_HG)} host does not touch the network")
    rows = _ring(nic_HG, size_B) if kind == "allreduce" else _pairs(nic_HG, size_B)
    return split_over_queue_pairs(rows, queue_pairs)


def split_over_queue_pairs(flows: Flows, queue_pairs: int) -> Flows:
    """Return each flow split into equal parts; raises ValueError for fewer than one queue pair."""
    validate_queue_pairs(queue_pairs)
    parts = [part(flows, number, queue_pairs) for number in range(queue_pairs)]
    return Flows(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def validate_queue_pairs(queue_pairs: int) -> None:
    """Raise ValueError for fewer than one queue pair."""
    if queue_pairs < 1:
        raise ValueError(f"a connection has at least one queue pair, not {queue_pairs}")


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


def _ring(nic_HG: IntArray, size_B: float) -> Flows:
    hosts, gpus = nic_HG.shape
    hop_B = 2 * (nic_HG.size - 1) / nic_HG.size * size_B / gpus
    before_HG = np.roll(nic_HG, 1, axis=0)
    return _rows(nic_HG.ravel(), before_HG.ravel(), hop_B, np.tile(np.arange(gpus), hosts))


def _pairs(nic_HG: IntArray, size_B: float) -> Flows:
    host_N, nic_N = np.repeat(np.arange(len(nic_HG)), nic_HG.shape[1]), nic_HG.ravel()
    one, other = np.nonzero(host_N[:, None] != host_N)
    return _rows(nic_N[one], nic_N[other], size_B / nic_HG.size, np.full(len(one), ALONE))


def _rows(source: IntArray, destination: IntArray, each_B: float, ring: IntArray) -> Flows:
    rows = len(source)
    return Flows(source, destination, np.full(rows, each_B), ring, np.zeros(rows, dtype=np.int64))
