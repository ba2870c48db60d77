"""Extrapolate a dry run of few layers to many uniform ones.

At one site of the step (phase, operation, shape of its first result) the most live bytes grow linearly with
the number of layers; the peak of the step does not, because it moves from site to site.
"""

from __future__ import annotations

from collections.abc import Mapping, Set

from harness.instruments.memory.memory_timeline import OpSite, Snapshot

FEWEST = 2
FEWEST_WITH_RANKS = 3  # prefetching crosses layers


def layers_to_walk(layers: int, ranks: int) -> int | None:
    """Return the number of layers to trace, and again with one more; None where there are too few to gain."""
    fewest = FEWEST_WITH_RANKS if ranks > 1 else FEWEST
    return None if layers <= fewest + 1 else fewest


def extrapolate_layers(
    fewer: Mapping[OpSite, Snapshot], more: Mapping[OpSite, Snapshot], fewer_layers: int, layers: int
) -> dict[OpSite, Snapshot] | None:
    """Return each site's largest snapshot at `layers`, from those at `fewer_layers` and at one more.

    Sites whose shape counts layers (a stack of one norm per parameter) are matched without their shape. None
    where the two runs still differ in their sites: the layers are not uniform.
    """
    both = fewer.keys() & more.keys()
    fewer, more = _without_shape(fewer, both), _without_shape(more, both)
    if fewer.keys() != more.keys():
        return None
    steps = layers - fewer_layers
    return {place: _extend(moment, more[place], steps) for place, moment in fewer.items()}


def _without_shape(moments: Mapping[OpSite, Snapshot], keep: Set[OpSite]) -> dict[OpSite, Snapshot]:
    """Merge sites not in `keep` into one per phase and operation, with its largest snapshot."""
    merged: dict[OpSite, Snapshot] = {}
    for place, moment in moments.items():
        key = place if place in keep else place._replace(shape=())
        if key not in merged or moment.total_B > merged[key].total_B:
            merged[key] = moment
    return merged


def _extend(at_fewer: Snapshot, at_more: Snapshot, steps: int) -> Snapshot:
    kinds = zip(at_fewer.by_kind_B, at_more.by_kind_B, strict=True)
    by_kind_B = tuple(fewer + (more - fewer) * steps for fewer, more in kinds)
    return Snapshot(at_fewer.total_B + (at_more.total_B - at_fewer.total_B) * steps, by_kind_B)
