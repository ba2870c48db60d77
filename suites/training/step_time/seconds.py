"""Seconds of a training step for any layouts, and what they are made of.

`RankBlocks` has which layers each pipeline stage has; `pipeline_s` is how long a step of stages of unlike
length takes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.transformer import TransformerShape
from harness.question import ProgramName
from suites.training.layouts.layout import Floats, Layouts
from suites.training.step_time.collectives import Amount
from suites.training.step_time.eager import activations_on_host_s, hooks_s, host_s, launched_s, rollout_s
from suites.training.step_time.layer import (
    HeadSeconds,
    context_exposed_s,
    expert_exposed_s,
    head_s,
    kinds_of_layers,
    layer_s,
    logits_B,
    neighbour_B_per_s,
    reduction_exposed_s,
    send_exposed_s,
    shard_s,
    tensor_exposed_s,
    tensor_network_s,
    update_s,
)
from suites.training.step_time.setting import LayerKind, StepSetting


class RankBlocks(NamedTuple):
    """What each pipeline rank has."""

    layers: tuple[int, ...]
    head: int  # the rank with the output layer
    loss: int  # the rank with the loss, which needs the logits


@lru_cache(maxsize=4096)
def blocks_of_ranks(shape: TransformerShape, pp: int, program: ProgramName) -> RankBlocks:
    """Return the layers of each of `pp` pipeline ranks, and which have the output layer and the loss.

    nanotron assigns blocks in turn by their matmuls' parameters, the output layer among them, and goes on to
    the next rank once the sum passes that rank's share (nanotron, models/base.py, build_model). The others
    divide the layers evenly.
    """
    count = shape.num_hidden_layers
    if program != "nanotron" or pp == 1:
        base, more = divmod(count, pp)
        return RankBlocks(tuple(base + (rank < more) for rank in range(pp)), pp - 1, pp - 1)
    layer = (4 * shape.query_size + shape.matrices_of_mlp * shape.intermediate_size) * shape.hidden_size
    costs = [layer] * count + [shape.vocab_size * shape.hidden_size]
    total, passed, rank, head = sum(costs), 0, 0, 0
    layers = [0] * pp
    for index, cost in enumerate(costs):
        if index < count:
            layers[rank] += 1
        else:
            head = rank
        passed += cost
        if passed * pp > total * (rank + 1):
            rank = min(rank + 1, pp - 1)
    return RankBlocks(tuple(layers), head, rank)


FORWARD_SHARE = 1 / 3
"""Of a stage's seconds, those of its forward pass: its backward pass multiplies twice as much."""


def pipeline_s(stage_s: Floats, micro_batches: Amount, virtual_stages: Amount) -> Floats:
    """Return the seconds of a step of 1F1B from those of one micro-batch on each rank, ranks last.

    The slowest rank works without a break once it has its first micro-batch, except while the ranks after it
    have the first one and its own forward passes ahead of that do not take as long, and while the last
    micro-batches come back more slowly than it could take them. Ranks before it work before and after. With
    stages of equal length this is (m + p - 1) micro-batches; interleaving divides p - 1 by the stages per
    rank (Narayanan et al., arXiv 2104.04473, section 2.2.2). `schedule.stepped` steps it through time.
    """
    count, ranks = np.asarray(micro_batches, dtype=float), np.arange(stage_s.shape[-1])
    at = stage_s.argmax(axis=-1)
    slowest = stage_s.max(axis=-1)
    after_s = np.where(ranks > at[:, None], stage_s, 0.0)
    before = np.where(ranks < at[:, None], stage_s, 0.0).sum(axis=-1)
    ahead = np.minimum(ranks[-1] - at, count - 1)
    filling = np.maximum(after_s.sum(axis=-1) - ahead * slowest * FORWARD_SHARE, 0.0)
    draining = ahead * np.maximum(after_s.max(axis=-1) - slowest * (1 - FORWARD_SHARE), 0.0)
    plain = before + filling + draining
    interleaved = (stage_s.sum(axis=-1) - slowest) / virtual_stages
    seconds: Floats = count * slowest + np.where(np.asarray(virtual_stages) > 1, interleaved, plain)
    return seconds


class LayerSeconds(NamedTuple):
    """Seconds of a layer on one micro-batch, forward and backward."""

    matmul: Floats
    attention: Floats
    pointwise: Floats
    launch: Floats  # in which the GPU waits for the host
    tensor: Floats  # exposed, as all that follow
    context: Floats
    expert: Floats
    shard: Floats

    @property
    def total(self) -> Floats:
        """Return all of them."""
        return np.asarray(sum(self))

    def times(self, count: Floats | float) -> LayerSeconds:
        """Return the seconds of so many layers."""
        return LayerSeconds(*(part * count for part in self))

    def plus(self, other: LayerSeconds) -> LayerSeconds:
        """Return the seconds of both in turn."""
        return LayerSeconds(*(one + two for one, two in zip(self, other, strict=True)))


class StepSeconds(NamedTuple):
    """Seconds of a step, as arrays over layouts; parts are those of a rank in the mean, and add up to all."""

    layers: LayerSeconds
    head: Floats  # output layer and loss
    bubble: Floats  # in which a rank waits for others of its pipeline
    reduction: Floats  # of gradients and updated parameters, exposed
    update: Floats  # on the GPU, or on the host and on the way there
    generation: Floats  # of the answers that are trained on
    rest: Floats  # stragglers, loading, clipping
    total: Floats

    def by_name(self, index: int) -> dict[str, float]:
        """Return the seconds of one layout's parts, those of layers first; generation where there is any."""
        of_layers, others = self.layers._asdict(), self._asdict()
        generation = ("generation",) if self.generation[index] else ()
        names = ("head", "bubble", "reduction", "update", *generation, "rest")
        others = {name: others[name] for name in names}
        return {name: float(seconds[index]) for name, seconds in (of_layers | others).items()}


def step_s(setting: StepSetting, layouts: Layouts) -> StepSeconds:
    """Return the seconds of a step of each layout."""
    layers, cal = mean_layer(setting, layouts), setting.constants
    head = head_s(setting, layouts)
    more = setting.shape.num_nextn_predict_layers  # each with an output layer of its own
    count = (setting.shape.num_hidden_layers + more) / layouts.pp
    passes = passes_of(setting, layouts)
    pipelined = pipelined_s(setting, layouts, layers.total, head) * passes
    heads = head.total * (1 + more) / layouts.pp
    steady = layouts.micro_batches * (layers.total * count + heads) * passes
    reduction = reduction_exposed_s(setting, layouts, layers.total * count)
    update = update_s(setting, layouts) + host_s(setting, layouts)
    slow = straggling(setting, layouts)
    tuned = cal["mlperf_factor"] if setting.run.tuned else 1.0
    generation = rollout_s(setting, layouts)
    known = pipelined + reduction + update + generation
    total = ((pipelined + reduction) * slow + update) * tuned + cal["step_s"]
    total = total + ddp_in_pipeline_s(setting, layouts) + generation
    return StepSeconds(
        layers.times(layouts.micro_batches * count * passes),
        layouts.micro_batches * heads * passes,
        pipelined - steady,
        reduction,
        update,
        generation,
        total - known,
        total,
    )


def passes_of(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return how many training passes a micro-batch takes: one, and forward passes of other models.

    Without gradients a pass is as long as one forward pass, of the two more that gradients of inputs and of
    weights take, and the one that recomputes; frozen weights have no gradients.
    """
    each = 3 - setting.run.adapters_alone + (layouts.recompute == 2)
    passes: Floats = 1 + setting.run.forward_passes / each
    return passes


def straggling(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return how much longer the slowest of all nodes takes than the mean: normal deviations' maximum."""
    nodes = np.maximum(layouts.gpus / setting.cluster.node_size, 1.0)
    factor: Floats = 1 + setting.constants["straggler"] * np.sqrt(2 * np.log(nodes))
    return factor


def ddp_in_pipeline(setting: StepSetting, layouts: Layouts) -> NDArray[np.bool_]:
    """Return where DistributedDataParallel stalls a pipeline that spans nodes.

    Five of five published layouts with four data-parallel ranks, or with ranks in several nodes, took half a
    second to one second per micro-batch longer than with ZeRO-1; none of three others did. We do not know
    why.
    """
    node = setting.cluster.node_size
    spans = (layouts.pp > 1) & (layouts.gpus > node) & (layouts.zero == 0)
    many = (layouts.dp >= 4) | ((layouts.dp > 1) & (layouts.dp * layouts.tp * layouts.cp > node))
    return np.asarray(spans & many)


def ddp_in_pipeline_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the seconds per step of these stalls: twice as long with more than two stages."""
    each = setting.own.ddp_pipeline_s * np.where(layouts.pp > 2, 2.0, 1.0)
    return np.where(ddp_in_pipeline(setting, layouts), each * layouts.micro_batches, 0.0)


def mean_layer(setting: StepSetting, layouts: Layouts) -> LayerSeconds:
    """Return the seconds of a layer on one micro-batch, in the mean over the model's kinds of layers."""
    mean = LayerSeconds(*(np.zeros(len(layouts.dp)) for _ in LayerSeconds._fields))
    for kind, count in kinds_of_layers(setting).items():
        share = count / setting.shape.num_hidden_layers
        mean = mean.plus(one_layer(setting, layouts, kind).times(share))
    return mean


class RepeatedShares(NamedTuple):
    """Shares of a layer's forward pass that its backward pass repeats."""

    matmul: Floats
    attention: Floats
    pointwise: Floats
    sent: Floats  # of tensor-parallel collectives
    launched: Floats


def repeated(setting: StepSetting, layouts: Layouts, kind: LayerKind) -> RepeatedShares:
    """Return what recomputation repeats of a layer.

    Of Megatron-LM's modules core_attn and moe are known: attention's kernel, and the shared experts and the
    others (transformer_config.py, recompute_modules), half of a layer that has attention, too.
    """
    full, selective = layouts.recompute == 2, layouts.recompute == 1
    facts, modules = setting.facts, setting.training.recompute_modules
    all_of_it = np.where(full, 1.0, 0.0)
    shares = [facts.again_matmul, facts.again_attention, facts.again_pointwise]
    experts = 0.0
    if setting.training.program == "megatron":
        shares[1] = float("core_attn" in modules and kind.attention)
        if kind.moe and "moe" in modules:
            experts = 0.5 if kind.attention or kind.linear else 1.0
            shares[0] = shares[2] = experts
    matmul, attention, pointwise = (all_of_it + selective * share for share in shares)
    return RepeatedShares(matmul, attention, pointwise, all_of_it, all_of_it + selective * experts)


def one_layer(setting: StepSetting, layouts: Layouts, kind: LayerKind) -> LayerSeconds:
    """Return the seconds of a layer of one kind on one micro-batch."""
    kernels, again = layer_s(setting, layouts, kind), repeated(setting, layouts, kind)
    matmul = kernels.matmul.all(again.matmul)
    attention = kernels.attention.all(again.attention)
    pointwise = kernels.pointwise.all(again.pointwise)
    tensor = tensor_exposed_s(setting, layouts, kind, again.sent)
    context = context_exposed_s(setting, layouts, kind, attention)
    expert = expert_exposed_s(setting, layouts) if kind.moe else 0.0 * matmul
    busy = matmul + attention + pointwise + tensor + context + expert
    host = launches_s(setting, layouts, kind) * (1 + again.launched * FORWARD_SHARE)
    launch = np.maximum(host - busy, 0.0)
    if kind.moe and setting.run.synchronous_experts:
        launch = np.hypot(host, busy) - busy  # each waits for the other several times per layer
    launch = launch + tensor_network_s(setting, layouts, again.sent) + hooks_s(setting, layouts)
    forward = (busy + launch) / (3 + again.matmul)
    launch = launch + activations_on_host_s(setting, layouts, kind, forward, busy + launch - forward)
    shards, work = shard_s(setting, layouts, kind.moe), busy + launch
    exposed = np.maximum(shards - work, 0.0) + setting.own.shard_exposed * np.minimum(shards, work)
    shard = np.where(layouts.zero == 3, exposed, 0.0)
    return LayerSeconds(matmul, attention, pointwise, launch, tensor, context, expert, shard)


GROUPED_OPERATORS = (6, 18)
"""Of the host per expert of a rank, forward and backward, in 16 bits and in fewer: Transformer Engine's
GroupedLinear launches each expert's two products and their four gradients, and before them quantises its
inputs and gradients, each into two new tensors (pytorch/module/grouped_linear.py;
https://github.com/NVIDIA/TransformerEngine/issues/1499)."""


def launches_s(setting: StepSetting, layouts: Layouts, kind: LayerKind) -> Floats:
    """Return the host's seconds to launch a layer's kernels, forward and backward."""
    own = setting.own
    if setting.run.eager:
        return launched_s(setting, layouts, kind)
    of_experts = setting.constants["expert_launch_factor"] if kind.moe else 1.0
    dense: float | Floats = own.layer_launch_s * of_experts
    if kind.moe and setting.run.synchronous_experts:
        each = GROUPED_OPERATORS[setting.precision != "bf16"] * setting.constants["expert_operator_s"]
        dense = setting.constants["expert_layer_launch_s"] + each * setting.shape.num_experts / layouts.ep
    tensor = np.where(layouts.tp > 1, own.tp_launch_s, 0.0)
    across = (layouts.pp > 1) & (layouts.tp > 1) & (layouts.gpus > setting.cluster.node_size)
    sharded = np.where(layouts.zero > 0, own.zero_launch_s, 0.0)
    return dense + tensor + sharded + np.where(across, own.pipeline_tp_s * layouts.tp, 0.0)


def pipelined_s(setting: StepSetting, layouts: Layouts, layer: Floats, head: HeadSeconds) -> Floats:
    """Return the seconds of all micro-batches through the pipeline, whose ranks have unlike parts."""
    seconds = np.zeros_like(layer)
    for pp in np.unique(layouts.pp):
        at = layouts.pp == pp
        some = layouts.only(at)
        stage = rank_s(setting, some, layer[at], head.only(at))
        count, virtual = some.micro_batches.astype(float), some.virtual_stages.astype(float)
        seconds[at] = pipeline_s(stage, count, virtual)
    return seconds


def rank_s(setting: StepSetting, layouts: Layouts, layer: Floats, head: HeadSeconds) -> Floats:
    """Return the seconds of one micro-batch on each pipeline rank, ranks last; all layouts have as many."""
    blocks = blocks_of_ranks(setting.shape, int(layouts.pp[0]), setting.training.program)
    stage = layer[:, None] * np.array(blocks.layers, dtype=float)
    stage = np.asarray(stage + send_exposed_s(setting, layouts)[:, None], dtype=float)
    stage[:, blocks.head] += head.total - head.loss
    stage[:, blocks.loss] += head.loss
    stage[:, blocks.loss] += setting.shape.num_nextn_predict_layers * (layer + head.total)
    if blocks.head != blocks.loss:
        # the loss waits for the logits; the rank that sends them goes on
        stage[:, blocks.loss] += 2 * logits_B(setting, layouts) / neighbour_B_per_s(setting, layouts)
    return stage
