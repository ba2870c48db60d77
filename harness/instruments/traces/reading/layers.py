"""Which layer of the model each event belongs to, where the trace has modules or annotations of layers.

An event belongs to the innermost module that runs on the host when the event is launched; one of the backward
pass to that of the forward operator with its sequence number.
"""

from __future__ import annotations

import numpy as np

from harness.instruments.traces.activity import BACKWARD, Activity
from harness.instruments.traces.intervals import innermost, owners
from harness.instruments.traces.reading.trace import EventKind, Ints

MODULE = "nn.Module: "
"""How Kineto calls modules, with with_stack=True and with_modules=True."""

ANNOTATED = r"(?i)^(layers?|blocks?|h)[._ #]?\d+$"
"""Annotations of layers: layers.3, block 3, layer_3."""


def layer_names(activity: Activity) -> tuple[Ints, tuple[str, ...]]:
    """Return the layer of each event as an index of the names; the first name is "". [event]"""
    trace = activity.trace
    modules = trace.of_kind(EventKind.PYTHON) & trace.named(f"^{MODULE}")
    modules |= trace.of_kind(EventKind.ANNOTATION) & trace.named(ANNOTATED)
    layer = np.zeros(len(trace), np.int64)
    if not modules.any():
        return layer, ("",)
    host = np.maximum(activity.host_event, 0)
    for track in np.unique(trace.track_of[modules]):
        of_track = np.flatnonzero(modules & (trace.track_of == track))
        here = np.flatnonzero((activity.host_event >= 0) & (trace.track_of[host] == track))
        inner = innermost(trace.start_ns[of_track], trace.end_ns[of_track], trace.start_ns[host[here]])
        named = inner >= 0
        layer[here[named]] = trace.name_of[of_track[inner[named]]] + 1
    layer = _backward(activity, layer)
    kept, layer = np.unique(np.concatenate(([0], layer)), return_inverse=True)
    return layer[1:], tuple("" if one == 0 else trace.names[one - 1].removeprefix(MODULE) for one in kept)


def _backward(activity: Activity, layer: Ints) -> Ints:
    """Give what the backward pass launches the layer of the forward operator with its sequence number."""
    trace, layer = activity.trace, layer.copy()
    nodes = trace.of_kind(EventKind.OP) & trace.named(BACKWARD) & (trace.sequence >= 0)
    forward = np.flatnonzero(trace.of_kind(EventKind.OP) & (trace.sequence >= 0) & (layer > 0))
    forward = forward[activity.phase[forward] == 0]
    known, first = np.unique(trace.sequence[forward], return_index=True)
    if not len(known):
        return layer
    host = np.maximum(activity.host_event, 0)
    for track in np.unique(trace.track_of[nodes]):
        of = activity.pieces(nodes & (trace.track_of == track))
        here = np.flatnonzero((activity.host_event >= 0) & (trace.track_of[host] == track))
        node = owners(of, trace.start_ns[host[here]])
        here, node = here[node >= 0], node[node >= 0]
        at = np.minimum(np.searchsorted(known, trace.sequence[node]), len(known) - 1)
        same = known[at] == trace.sequence[node]
        layer[here[same]] = layer[forward[first[at[same]]]]
    return layer
