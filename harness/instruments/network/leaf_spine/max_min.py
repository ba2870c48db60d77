"""How concurrent flows share links, max-min fair, and when each of them ends.

The step of the flow simulator: after `routing`. Each flow, or ring of flows, is an entity with one rate.
Shapes: E entities, F flows, L links, K crossings of an entity over a link. Rates in B/s.

Max-min fair: no rate can be raised without lowering one that is no higher (Bertsekas and Gallager, Data
Networks, 1992, section 6.5.2). Per-flow fair queues reach it; the transient of congestion
control, and a pause of a link that also stops unrelated flows, are not modelled.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.network.leaf_spine.clos import IN_RACK, FloatArray, IntArray
from harness.instruments.network.leaf_spine.collectives import ALONE, Flows

ROUNDING = 1e-9
"""Relative tolerance: links whose shares differ by less are filled together, so that rounding orders no
equals."""

TOLERANCE = 1e-3
"""Default tolerance of `completions_s`."""


class Crossings(NamedTuple):
    """Which entity crosses which link, and how often for each of its bytes.

    The columns (K,) are ordered by entity.
    """

    entity: IntArray
    link: IntArray
    times: FloatArray


def entities(flows: Flows) -> IntArray:
    """Return the entity of each flow (F,): its ring, or itself; numbered from 0."""
    own_F = np.where(flows.ring == ALONE, flows.ring.max() + 1 + np.arange(len(flows.ring)), flows.ring)
    return np.unique(own_F, return_inverse=True)[1].astype(np.int64)


def crossings(path_FJ: IntArray, entity_F: IntArray | None = None) -> Crossings:
    """Return the crossings from each flow's links (`IN_RACK` for none).

    Without `entity_F` each flow is an entity. Raises ValueError where there is no flow, or an entity crosses
    no link.
    """
    entity_F = np.arange(len(path_FJ)) if entity_F is None else entity_F
    if not len(path_FJ):
        raise ValueError("no flows: there is nothing to share")
    links = int(path_FJ.max()) + 1
    keys = (entity_F[:, None] * links + path_FJ)[path_FJ != IN_RACK]
    key_K, times_K = np.unique(keys, return_counts=True)
    merged = Crossings(key_K // max(links, 1), key_K % max(links, 1), times_K.astype(np.float64))
    if len(np.unique(merged.entity)) <= entity_F.max():
        raise ValueError("a flow crosses no link: nothing bounds its rate")
    return merged


def shares(crossed: Crossings, capacity_L: FloatArray) -> FloatArray:
    """Return the max-min fair rate of each entity (E,), exact to `ROUNDING`; 0 for one that crosses nothing.

    Progressive filling: links that are no wider than any other on their entities' paths fill first, all of
    them at once, because what is assigned elsewhere can only widen them. Raises ValueError where a crossed
    link has a rate that is not positive and finite.
    """
    entity_K, link_K, times_K = crossed
    crossed_L = capacity_L[link_K]
    if not np.all((crossed_L > 0) & np.isfinite(crossed_L)):
        raise ValueError("a link that flows cross has a rate that is not above 0 and finite")
    rate_E, left_L = np.zeros(entity_K.max(initial=-1) + 1), capacity_L.astype(np.float64)
    while entity_K.size:
        share_K = _share(link_K, times_K, left_L)[link_K]
        begin_A, width_A = _runs(entity_K)
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


def completions_s(
    crossed: Crossings, size_B_E: FloatArray, capacity_L: FloatArray, tolerance: float = TOLERANCE
) -> FloatArray:
    """Return when each entity (E,) has carried its bytes; all start at 0 and shares change as each ends.

    Stepped from completion to completion. Entities that would end in the same step if they were larger by up
    to `tolerance` of their bytes end with it, so times are exact for a tolerance of 0. That bounds the number
    of steps to about ln(fastest/slowest rate) / `tolerance` for equal sizes, instead of one per entity.
    Raises ValueError for sizes or a tolerance out of range, and as `shares`.
    """
    if not (np.all((size_B_E > 0) & np.isfinite(size_B_E)) and 0 <= tolerance < 1):
        raise ValueError("sizes must be above 0 and finite, and the tolerance from 0 to below 1")
    now_s, over_s_E, left_B_E = 0.0, np.zeros(len(size_B_E)), size_B_E.astype(np.float64)
    runs_E = np.ones(len(size_B_E), dtype=np.bool_)
    while runs_E.any():
        rate_E = shares(crossed, capacity_L)
        at = np.flatnonzero(runs_E)
        step_s = float(((left_B_E[at] + tolerance * size_B_E[at]) / rate_E[at]).min())
        ends = at[left_B_E[at] / rate_E[at] <= step_s]
        now_s += step_s
        over_s_E[ends], runs_E[ends] = now_s, False
        left_B_E[at] = np.maximum(left_B_E[at] - rate_E[at] * step_s, 0.0)
        still_K = runs_E[crossed.entity]
        crossed = Crossings(crossed.entity[still_K], crossed.link[still_K], crossed.times[still_K])
    return over_s_E


def _share(link_K: IntArray, times_K: FloatArray, left_L: FloatArray) -> FloatArray:
    """Return each link's rate for one crossing by each of its entities."""
    weight_L = np.bincount(link_K, times_K, len(left_L))
    share_L: FloatArray = np.divide(left_L, weight_L, out=np.full(len(left_L), np.inf), where=weight_L > 0)
    return share_L


def _runs(entity_K: IntArray) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return where the crossings of each entity begin, and their number."""
    begin_A = np.flatnonzero(np.diff(entity_K, prepend=-1))
    return begin_A, np.diff(begin_A, append=len(entity_K))
