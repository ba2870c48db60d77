"""One collective on a fabric, simulated by flows: how long it takes, and what each uplink carries.

Bytes move as a fluid, all flows start together and share links max-min fair; there is no latency, no queue
and no loss.

All flows of a collective have the same bytes, B, and so have its rings on each hop. Then the last completion
is that of the fullest link, max over links of load / capacity: at the start the least rate is x = min of
capacity / crossings, on that link. No rate falls below x, because links only lose flows; and flows across
that link keep rate x until they end, at B / x. So no steps are needed, and it does not matter whether rings
are in lockstep or queue pairs of a ring wait for one another.

Where whole messages of a ring take more queue pairs in turn than messages are in flight, they go in turns:
first over the first queue pairs of all connections, then over the next. Each turn lasts as its fullest link,
since a ring advances at one pace. That is an upper bound, because a connection may be some messages ahead.

Max-min fair: no rate can be raised without lowering one that is no higher (Bertsekas and Gallager, Data
Networks, 1992, section 6.5.2). Per-flow fair queues reach it; the transient of congestion control, and a
pause of a link that also stops unrelated flows, are not modelled. Each flow, or ring of flows, is an entity
with one rate in B/s. Shapes: E entities, F flows, L links, K crossings of an entity over a link.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from harness.instruments.network import routing
from harness.instruments.network.clos import IN_RACK, Clos, FloatArray, IntArray
from harness.instruments.network.routing import Flows, RoutingPolicy, bus_bandwidth, flows_of, part
from harness.records import Origin, Reading

ROUNDING = 1e-9  # links whose shares differ by less are filled together, so that rounding orders none


class Crossings(NamedTuple):
    """Which entity crosses which link, and how often for each of its bytes: columns (K,) by entity."""

    entity: IntArray
    link: IntArray
    times: FloatArray


def crossings(path_EJ: IntArray) -> Crossings:
    """Return the crossings from each entity's links (`IN_RACK` for none), at least one of each."""
    links = int(path_EJ.max()) + 1
    keys = (np.arange(len(path_EJ))[:, None] * links + path_EJ)[path_EJ != IN_RACK]
    key_K, times_K = np.unique(keys, return_counts=True)
    return Crossings(key_K // links, key_K % links, times_K.astype(np.float64))


def shares(crossed: Crossings, capacity_L: FloatArray) -> FloatArray:
    """Return the max-min fair rate of each entity (E,), exact to `ROUNDING`; 0 for one that crosses nothing.

    Progressive filling: links that are no wider than any other on their entities' paths fill first, all of
    them at once, because what is assigned elsewhere can only widen them.
    """
    entity_K, link_K, times_K = crossed
    rate_E, left_L = np.zeros(entity_K.max(initial=-1) + 1), capacity_L.astype(np.float64)
    while entity_K.size:
        weight_L = np.bincount(link_K, times_K, len(left_L))
        share_K = left_L[link_K] / weight_L[link_K]  # for one crossing by each of a link's entities
        begin_A = np.flatnonzero(np.diff(entity_K, prepend=-1))
        width_A = np.diff(begin_A, append=len(entity_K))
        least_A = np.minimum.reduceat(share_K, begin_A)
        least_K = np.repeat(least_A, width_A)
        waits_L = np.zeros(len(left_L), dtype=np.bool_)  # for an entity that another link limits more
        waits_L[link_K[share_K > least_K * (1 + ROUNDING)]] = True
        settled_A = np.logical_or.reduceat(~waits_L[link_K], begin_A)
        rate_E[entity_K[begin_A[settled_A]]] = least_A[settled_A]
        settled_K = np.repeat(settled_A, width_A)
        given_L = np.bincount(link_K[settled_K], (times_K * least_K)[settled_K], len(left_L))
        left_L = np.maximum(left_L - given_L, 0.0)
        entity_K, link_K, times_K = entity_K[~settled_K], link_K[~settled_K], times_K[~settled_K]
    return rate_E


class CollectiveResult(NamedTuple):
    """Seconds and B/s of one collective, and the bounds that no routing can beat.

    `nic_bound_s`: the busiest NIC's bytes at its rate. `uplink_bound_s`: the bytes of the rack that sends or
    receives most for its live uplinks, spread over them evenly. `load_B` (2, racks, spines): bytes from racks
    to spines, and back; nan where the link is down.
    """

    time_s: float
    bus_B_per_s: float
    nic_bound_s: float
    uplink_bound_s: float
    load_B: FloatArray

    @property
    def bound_s(self) -> float:
        """Return the larger of both bounds."""
        return max(self.nic_bound_s, self.uplink_bound_s)

    @property
    def of_bound(self) -> float:
        """Return the share of the bus bandwidth that perfect spreading would give: at most 1."""
        return self.bound_s / self.time_s

    @property
    def max_over_mean(self) -> float:
        """Return the fullest uplink's bytes over the mean of live uplinks, in racks that use any; else 1."""
        used_B = self.load_B[np.nansum(self.load_B, axis=2) > 0]
        return float(np.nanmax(used_B) / np.nanmean(used_B)) if used_B.size else 1.0

    def readings(self, origin: Origin, method: str = "") -> Iterator[Reading]:
        """Yield the readings of this collective."""
        yield Reading("time", "s", self.time_s, origin, method)
        yield Reading("bus_bandwidth", "B/s", self.bus_B_per_s, origin, method)
        yield Reading("of_bound", "1", self.of_bound, origin, method)
        if np.isfinite(self.max_over_mean):
            yield Reading("load_max_over_mean", "1", self.max_over_mean, origin, method)


def simulate(
    clos: Clos, nic_HG: IntArray, kind: str, size_B: float, policy: RoutingPolicy, seed: int = 0
) -> CollectiveResult:
    """Simulate one collective of `size_B` per rank.

    `nic_HG` are the NICs of the ranks (hosts in the order of ranks, GPUs). `seed` is that of the switches'
    hash. Raises ValueError as `flows_of` and `routing.choose_spines`.
    """
    connections = flows_of(kind, nic_HG, size_B)
    apart = policy.method == "hash" and policy.hash_ports  # else all queue pairs take one path
    pairs = policy.queue_pairs if apart else 1
    turns = policy.turns(kind) if pairs > 1 else 1
    load_B_TL = np.zeros((turns, clos.links))
    for number in range(pairs):
        flows = part(connections, number, pairs)
        spine_F = routing.choose_spines(flows, clos, policy, seed)
        load_B_TL[number * turns // pairs] += _loads_B(clos, flows, spine_F)
    return _result(clos, kind, nic_HG.size, size_B, load_B_TL)


def simulate_routed(
    clos: Clos, kind: str, ranks: int, size_B: float, flows: Flows, spine_F: IntArray, turns: int = 1
) -> CollectiveResult:
    """Simulate a collective by given spines (F,), in `turns`; raises ValueError as `Clos.paths`."""
    turn_F = flows.queue_pair * turns // (flows.queue_pair.max() + 1)
    load_B_TL = [
        _loads_B(clos, Flows(*(column[turn_F == turn] for column in flows)), spine_F[turn_F == turn])
        for turn in range(turns)
    ]
    return _result(clos, kind, ranks, size_B, np.array(load_B_TL))


def _loads_B(clos: Clos, flows: Flows, spine_F: IntArray) -> FloatArray:
    load_B_L = np.zeros(clos.links)
    for link_F in clos.paths(flows.source, flows.destination, spine_F).T:
        crosses_F = link_F >= 0
        load_B_L += np.bincount(link_F[crosses_F], flows.size_B[crosses_F], clos.links)
    return load_B_L


def _result(clos: Clos, kind: str, ranks: int, size_B: float, load_B_TL: FloatArray) -> CollectiveResult:
    time_s = float((load_B_TL / clos.capacities()).max(axis=1).sum())
    load_B_L = load_B_TL.sum(axis=0)
    nics_B = np.concatenate([load_B_L[: clos.nics], load_B_L[clos.links - clos.nics :]])
    up_B, live_R = clos.by_uplink(load_B_L), np.maximum(clos.live_RS.sum(axis=1), 1)
    return CollectiveResult(
        time_s,
        bus_bandwidth(kind, ranks, size_B, time_s),
        float(nics_B.max() / clos.nic_B_per_s),
        float((up_B.sum(axis=2) / live_R).max() / clos.uplink_B_per_s),
        np.where(clos.live_RS, up_B, np.nan),
    )
