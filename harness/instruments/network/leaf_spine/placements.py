"""Which NICs the ranks of a job have: where the scheduler put its hosts, and the order of ranks over them.

Input of `collectives`, which makes flows of them. A placement is the NIC of each GPU (H, G): H hosts in the
order of ranks, each with its G GPUs. A host's NICs are neighbours in one rack. Random ones are the same for
the same seed (numpy's PCG64).
"""

from __future__ import annotations

import numpy as np

from harness.instruments.network.leaf_spine.clos import Clos, IntArray

ROUNDS = 1 << 20
"""Distance between the seeds of two runs, so that their placements differ."""


def round_seed(seed: int, round_: int) -> int:
    """Return the seed of one round's placement, different for every run seed and round."""
    return seed * ROUNDS + round_


def place(clos: Clos, order: str, ranks: int, gpus: int, seed: int) -> IntArray:
    """Place a job's ranks: aligned | fragmented | shuffled; raises ValueError where they do not fit."""
    hosts, rest = divmod(ranks, gpus)
    if rest:
        raise ValueError(f"{ranks} ranks are not a multiple of ranks_per_node={gpus}")
    if order == "aligned":
        return aligned(clos, hosts, gpus)
    nic_HG = fragmented(clos, hosts, gpus, seed)
    return shuffled(nic_HG, seed) if order == "shuffled" else nic_HG


def aligned(clos: Clos, hosts: int, gpus: int) -> IntArray:
    """Return hosts rack after rack, each rack filled.

    Raises ValueError where the fabric has fewer hosts, or a rack's NICs are not a multiple of a host's.
    """
    return _nics(np.arange(hosts), gpus, clos)


def fragmented(clos: Clos, hosts: int, gpus: int, seed: int) -> IntArray:
    """Return random hosts of the fabric, in the order of racks; raises as `aligned`."""
    _check(clos, hosts, gpus)
    chosen_H = np.random.default_rng(seed).choice(clos.nics // gpus, hosts, replace=False)
    return _nics(np.sort(chosen_H), gpus, clos)


def shuffled(nic_HG: IntArray, seed: int) -> IntArray:
    """Return the same hosts in random order: ranks ignore racks."""
    return np.random.default_rng(seed).permutation(nic_HG, axis=0)


def failed_links(clos: Clos, nic_HG: IntArray, count: int, seed: int) -> tuple[tuple[int, int], ...]:
    """Return `count` random links (rack, spine) of the racks that the job uses, in order.

    Raises ValueError where there are fewer.
    """
    racks = np.unique(clos.rack(nic_HG))
    if not 0 <= count <= len(racks) * clos.spines:
        raise ValueError(f"failed_uplinks={count}: the job's racks have {len(racks) * clos.spines} links")
    chosen = np.random.default_rng(seed).choice(len(racks) * clos.spines, count, replace=False)
    return tuple((int(racks[one // clos.spines]), int(one % clos.spines)) for one in np.sort(chosen))


def _nics(host_H: IntArray, gpus: int, clos: Clos) -> IntArray:
    _check(clos, len(host_H), gpus)
    return host_H[:, None] * gpus + np.arange(gpus)


def _check(clos: Clos, hosts: int, gpus: int) -> None:
    if gpus < 1 or clos.nics_per_rack % gpus:
        raise ValueError(f"{clos.nics_per_rack} NICs per rack are not a multiple of hosts with {gpus}")
    if not 1 <= hosts <= clos.nics // gpus:
        raise ValueError(f"a job of {hosts} hosts: the fabric has {clos.nics // gpus}")
