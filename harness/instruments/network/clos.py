"""A leaf-spine fabric as numbers: its links, their rates, which are down, and where a job's NICs are.

`routing.py` makes flows and picks their spines, `flow_simulator.py` shares the links. A placement is the NIC
of each GPU (H, G): H hosts in the order of ranks, G GPUs of a host. Shapes: F flows, L links, R racks, S
spines.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

IN_RACK = -1  # placeholder for a spine and its links where a flow stays in its rack


@dataclass(frozen=True, slots=True)
class Clos:
    """Two stages: each rack switch has its NICs below it, and one uplink to each spine above.

    All NICs have one rate, all uplinks another, the same in both directions. `failed` are links (rack, spine)
    that are down in both directions. No flow takes such a link, so its rate does not matter. NICs are
    numbered through racks: NIC n is in rack n // nics_per_rack.

    Raises ValueError where failed links leave two racks no spine that both reach.
    """

    racks: int
    nics_per_rack: int
    spines: int
    nic_B_per_s: float
    uplink_B_per_s: float
    failed: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        live_RS = self.live_RS.astype(np.int64)
        cut = (live_RS @ live_RS.T == 0) & ~np.eye(self.racks, dtype=np.bool_)
        if cut.any():
            racks = "rack {} off from rack {}".format(*np.argwhere(cut)[0])
            raise ValueError(f"failed links cut {racks}: no spine has live links to both")

    @property
    def nics(self) -> int:
        """Return the number of NICs in the fabric."""
        return self.racks * self.nics_per_rack

    @property
    def links(self) -> int:
        """Return the number of directed links: NICs up, racks to spines, spines to racks, NICs down."""
        return 2 * self.nics + 2 * self.racks * self.spines

    @property
    def live_RS(self) -> BoolArray:
        """Return which uplinks are up (R, S)."""
        live = np.ones((self.racks, self.spines), dtype=np.bool_)
        for link in self.failed:
            live[link] = False
        return live

    def rack(self, nic_F: IntArray) -> IntArray:
        """Return the rack of each NIC."""
        return nic_F // self.nics_per_rack

    def capacities(self) -> FloatArray:
        """Return B/s by link (L,), in the order of `links`."""
        rate_L = np.full(self.links, float(self.nic_B_per_s))
        rate_L[self.nics : self.links - self.nics] = self.uplink_B_per_s
        return rate_L

    def paths(self, source_F: IntArray, destination_F: IntArray, spine_F: IntArray) -> IntArray:
        """Return the links of each flow (F, 4) from its NIC to the other through its spine.

        A flow with `IN_RACK` for a spine has it for both links in the middle. Raises ValueError where a flow
        between racks has no spine, one within a rack has one, or a link of the path is down.
        """
        from_F, to_F = self.rack(source_F), self.rack(destination_F)
        crosses_F = from_F != to_F
        if np.any(crosses_F != (spine_F != IN_RACK)):
            raise ValueError("a flow between racks has a spine, and one within a rack none")
        live_RS = self.live_RS
        if self.failed and np.any(crosses_F & ~(live_RS[from_F, spine_F] & live_RS[to_F, spine_F])):
            raise ValueError("a flow's path uses a failed link")
        up_F = self.nics + from_F * self.spines + spine_F
        down_F = self.nics + (self.racks + to_F) * self.spines + spine_F
        middle = (np.where(crosses_F, link_F, IN_RACK) for link_F in (up_F, down_F))
        return np.stack([source_F, *middle, destination_F + (self.links - self.nics)], axis=1)

    def by_uplink(self, value_L: NDArray[Any]) -> NDArray[Any]:
        """Return the uplinks' values (2, R, S) from values by link: racks to spines, spines to racks."""
        return value_L[self.nics : self.links - self.nics].reshape(2, self.racks, self.spines)


@lru_cache(maxsize=8)
def live_spines(clos: Clos) -> tuple[IntArray, IntArray]:
    """Return how many spines have live links to two racks (R, R), and which, those first (R, R, S)."""
    live_RS = clos.live_RS
    both_RRS = live_RS[:, None, :] & live_RS[None, :, :]
    return both_RRS.sum(axis=2), np.argsort(~both_RRS, axis=2, kind="stable")


ROUNDS = 1 << 20  # distance between the seeds of two runs, so that their placements differ


def round_seed(seed: int, round_: int) -> int:
    """Return the seed of one round's placement, different for every run seed and round."""
    return seed * ROUNDS + round_


def place(clos: Clos, order: str, ranks: int, gpus: int, seed: int) -> IntArray:
    """Place a job's ranks, in an order of racks or in none.

    aligned: rack after rack, each filled. fragmented: random hosts, in the order of racks. shuffled: the same
    in random order. Raises ValueError where they do not fit.
    """
    hosts, rest = divmod(ranks, gpus)
    if rest:
        raise ValueError(f"{ranks} ranks are not a multiple of ranks_per_node={gpus}")
    if clos.nics_per_rack % gpus:
        raise ValueError(f"{clos.nics_per_rack} NICs per rack are not a multiple of hosts with {gpus}")
    if not 1 <= hosts <= clos.nics // gpus:
        raise ValueError(f"a job of {hosts} hosts: the fabric has {clos.nics // gpus}")
    host_H = np.arange(hosts)
    if order != "aligned":
        host_H = np.sort(np.random.default_rng(seed).choice(clos.nics // gpus, hosts, replace=False))
    nic_HG = host_H[:, None] * gpus + np.arange(gpus)
    return np.random.default_rng(seed).permutation(nic_HG, axis=0) if order == "shuffled" else nic_HG


def failed_links(clos: Clos, nic_HG: IntArray, count: int, seed: int) -> tuple[tuple[int, int], ...]:
    """Return `count` random links (rack, spine) of the job's racks; raises ValueError for too many."""
    racks = np.unique(clos.rack(nic_HG))
    if not 0 <= count <= len(racks) * clos.spines:
        raise ValueError(f"failed_uplinks={count}: the job's racks have {len(racks) * clos.spines} links")
    chosen = np.random.default_rng(seed).choice(len(racks) * clos.spines, count, replace=False)
    return tuple((int(racks[one // clos.spines]), int(one % clos.spines)) for one in np.sort(chosen))
