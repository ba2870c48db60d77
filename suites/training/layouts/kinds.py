"""The memory of every pipeline rank of a layout by kind, up to what its device has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from harness.instruments.transformer.shape import TransformerShape
from suites.training.layouts.account import gradients_exist, peak_of_rank
from suites.training.layouts.layout import Floats, Layouts, Training
from suites.training.layouts.room import outside_allocator_B
from suites.training.layouts.search import LayoutGpus, needed_B
from suites.training.layouts.stages import all_layers_of
from suites.training.layouts.states import parameters_of, states_B


class MemoryKinds(NamedTuple):
    """Bytes at the peak of each pipeline rank, as arrays over ranks."""

    parameters: Floats
    gradients: Floats
    optimizer: Floats
    activations: Floats
    logits: Floats  # what the loss has
    communication: Floats  # gathered parameters, buckets, what pipeline stages send
    workspaces: Floats
    fragmentation: Floats  # what the allocator needs more than its tensors
    outside: Floats  # of the allocator: the CUDA context and NCCL's buffers

    @property
    def total_B(self) -> Floats:
        """Return all of them."""
        return np.asarray(sum(self))


def memory_kinds(
    shape: TransformerShape, layout: Layouts, training: Training, cluster: LayoutGpus
) -> MemoryKinds:
    """Return the memory of each rank of one layout; the worst rank's is that of `search.fits`."""
    ranks = np.arange(int(layout.pp[0]))
    each = Layouts(*(np.repeat(field, len(ranks)) for field in layout))
    peak = peak_of_rank(shape, each, training, ranks, cluster.architecture)
    layers = all_layers_of(shape, each, training, ranks)
    parameters = parameters_of(shape, each, layers, ranks)
    states = states_B(each, training, parameters, cluster.architecture)
    return MemoryKinds(
        states.weights,
        states.gradients * gradients_exist(each, training),
        states.optimizer,
        peak.activations,
        peak.logits,
        peak.communication,
        peak.workspaces,
        needed_B(peak.total_B, training) - peak.total_B,
        outside_allocator_B(each),
    )
