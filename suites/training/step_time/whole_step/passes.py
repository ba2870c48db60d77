"""Seconds of the forward and of the backward pass of one micro-batch on each pipeline rank.

`seconds.rank_s` has both in one; here they are apart, with what is recomputed and with the communication that
nothing hides. They add up to the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suites.training.layouts.layout import Floats, Layouts
from suites.training.step_time.whole_step.blocks import FORWARD_SHARE, blocks_of_ranks
from suites.training.step_time.whole_step.communication import (
    BACKWARD_COLLECTIVES,
    FORWARD_COLLECTIVES,
    neighbour_B_per_s,
    send_exposed_s,
    tensor_network_s,
)
from suites.training.step_time.whole_step.layer import (
    HeadSeconds,
    LayerKind,
    head_s,
    kinds_of_layers,
    layer_s,
    logits_B,
)
from suites.training.step_time.whole_step.seconds import one_layer
from suites.training.step_time.whole_step.setting import StepSetting


class PassParts(NamedTuple):
    """Seconds of one micro-batch by pass. Computation counts with its waits for the host."""

    forward: Floats
    forward_exposed: Floats  # communication that nothing hides
    recompute: Floats
    backward: Floats
    backward_exposed: Floats

    @property
    def forward_s(self) -> Floats:
        """Return the seconds of the forward pass."""
        return self.forward + self.forward_exposed

    @property
    def backward_s(self) -> Floats:
        """Return the seconds of the backward pass, recomputation included."""
        return self.recompute + self.backward + self.backward_exposed

    def times(self, count: Floats | float) -> PassParts:
        """Return the seconds of so many."""
        return PassParts(*(part * count for part in self))

    def plus(self, other: PassParts) -> PassParts:
        """Return the seconds of both in turn."""
        return PassParts(*(one + two for one, two in zip(self, other, strict=True)))


def layer_passes(setting: StepSetting, layouts: Layouts, kind: LayerKind) -> PassParts:
    """Return the seconds of a layer of one kind, as arrays over layouts; they add up to `one_layer`.

    Where the model has one sum for both passes (waits for the host, keys and values, sharded parameters), a
    third of it is put into the forward pass, as of a stage in `blocks.FORWARD_SHARE`.
    """
    kernels, facts, whole = layer_s(setting, layouts, kind), setting.facts, one_layer(setting, layouts, kind)
    again = np.where(layouts.recompute == 2, 1.0, 0.0)
    selective = np.where(layouts.recompute == 1, 1.0, 0.0)
    shares = (facts.again_matmul, facts.again_attention, facts.again_pointwise)
    repeated = sum(
        part.forward * (again + selective * share) for part, share in zip(kernels, shares, strict=True)
    )
    network = tensor_network_s(setting, layouts, again)
    launch = (whole.launch - network) / (1 + again * FORWARD_SHARE)
    collectives = FORWARD_COLLECTIVES * (1 + again) + BACKWARD_COLLECTIVES
    tensor = (whole.tensor + network) / collectives
    either = whole.context + whole.shard
    forward_exposed = tensor * FORWARD_COLLECTIVES + whole.expert / 2 + either * FORWARD_SHARE
    exposed = whole.tensor + network + whole.expert + either
    return PassParts(
        np.asarray(sum(part.forward for part in kernels) + launch * FORWARD_SHARE),
        forward_exposed,
        np.asarray(repeated + launch * again * FORWARD_SHARE),
        np.asarray(sum(part.backward for part in kernels) + launch * (1 - FORWARD_SHARE)),
        exposed - forward_exposed,
    )


def mean_layer_passes(setting: StepSetting, layouts: Layouts) -> PassParts:
    """Return the seconds of a layer in the mean over the model's kinds of layers."""
    mean = PassParts(*(np.zeros(len(layouts.dp)) for _ in PassParts._fields))
    for kind, count in kinds_of_layers(setting).items():
        share = count / setting.shape.num_hidden_layers
        mean = mean.plus(layer_passes(setting, layouts, kind).times(share))
    return mean


def head_passes(head: HeadSeconds) -> PassParts:
    """Return the seconds of the output layer, without the loss."""
    none = np.zeros_like(head.added)
    return PassParts(head.matmul.forward, none, none, head.matmul.backward + head.added, none)


def loss_passes(loss_s: Floats) -> PassParts:
    """Return the seconds of the loss, of which the model has one sum for both passes."""
    none = np.zeros_like(loss_s)
    return PassParts(loss_s * FORWARD_SHARE, none, none, loss_s * (1 - FORWARD_SHARE), none)


def exposed_passes(each_s: Floats) -> PassParts:
    """Return the seconds of what is sent forward, and as much backward."""
    none = np.zeros_like(each_s)
    return PassParts(none, each_s, none, none, each_s)


def rank_passes(setting: StepSetting, layout: Layouts) -> PassParts:
    """Return the seconds of one micro-batch on each pipeline rank of one layout, as arrays over ranks."""
    pp = int(layout.pp[0])
    blocks = blocks_of_ranks(setting.shape, pp, setting.training.program)
    layer, head = mean_layer_passes(setting, layout), head_s(setting, layout)
    output, loss = head_passes(head), loss_passes(head.loss)
    ranks = np.arange(pp)
    total = layer.times(np.array(blocks.layers, dtype=float))
    total = total.plus(exposed_passes(send_exposed_s(setting, layout) / 2).times(np.ones(pp)))
    total = total.plus(output.times((ranks == blocks.head) * 1.0))
    at_loss = loss.plus(layer.plus(output).plus(loss).times(setting.shape.num_nextn_predict_layers))
    if blocks.head != blocks.loss:
        at_loss = at_loss.plus(exposed_passes(logits_B(setting, layout) / neighbour_B_per_s(setting, layout)))
    return total.plus(at_loss.times((ranks == blocks.loss) * 1.0))
