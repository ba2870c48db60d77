"""Seconds of communication that nothing hides: in a layer, between pipeline stages, once per step."""

from __future__ import annotations

import numpy as np

from suites.training.layouts.layout import Floats, Layouts
from suites.training.layouts.states import expert_copies, layer_parameters
from suites.training.step_time.collectives import all_to_all_s, ring_gather_s
from suites.training.step_time.whole_step.layer import ELEMENT_B
from suites.training.step_time.whole_step.setting import StepSetting

FORWARD_COLLECTIVES, BACKWARD_COLLECTIVES = 4, 6
"""All-gathers and reduce-scatters of a layer with sequence parallelism: one of each around attention and
around the MLP; the backward pass gathers the two inputs again (arXiv 2205.05198, section 4.2.2). Without
sequence parallelism an all-reduce takes as long as both."""

HIDDEN_BY_ATTENTION = 0.8
"""Share of attention's seconds during which keys and values of the next ring step can be sent: set."""


def tensor_exposed_s(setting: StepSetting, layouts: Layouts, again: Floats) -> Floats:
    """Return the exposed seconds of a layer's tensor-parallel collectives."""
    tp = layouts.tp.astype(float)
    size_B = ELEMENT_B * setting.tokens(layouts) * setting.shape.hidden_size
    each = ring_gather_s(size_B, tp, np.ones_like(tp), setting.links)
    count = FORWARD_COLLECTIVES * (1 + again) + BACKWARD_COLLECTIVES
    return (each.bytes_s * setting.own.tp_exposed + each.latency_s) * count


def tensor_network_s(setting: StepSetting, layouts: Layouts, again: Floats) -> Floats:
    """Return what a layer's collectives take more where tensor parallelism spans nodes."""
    nodes = np.maximum(layouts.tp / setting.cluster.node_size, 1.0)
    count = FORWARD_COLLECTIVES * (1 + again) + BACKWARD_COLLECTIVES
    return (nodes - 1) * setting.own.tp_network_s * count


def context_exposed_s(setting: StepSetting, layouts: Layouts, attention_s: Floats) -> Floats:
    """Return the exposed seconds of a layer's keys and values on their way round the context-parallel ranks.

    They pass once forward and, with their gradients, twice backward, while attention is computed.
    """
    cp, links = layouts.cp.astype(float), setting.links
    size_B = ELEMENT_B * setting.tokens(layouts) * setting.shape.key_value_size / layouts.tp
    near = layouts.tp * layouts.cp <= setting.cluster.node_size
    sent_s = 3 * size_B * (cp - 1) / np.where(near, links.node_B_per_s, links.network_B_per_s)
    exposed = np.maximum(sent_s - HIDDEN_BY_ATTENTION * attention_s, 0.1 * sent_s)
    return np.where(cp > 1, exposed + 3 * (cp - 1) * links.collective_s, 0.0)


def expert_exposed_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the exposed seconds in which a layer sends tokens to experts and back, forward and backward.

    A token crosses the network once per node that has some of its experts, not once per expert: DeepEP,
    HybridEP.
    """
    shape, ranks = setting.shape, (layouts.ep * layouts.etp).astype(float)
    token_B = ELEMENT_B * setting.tokens(layouts) * shape.hidden_size / layouts.tp
    nodes = np.maximum(ranks / setting.cluster.node_size, 1.0)
    reached = nodes * (1 - (1 - 1 / nodes) ** shape.experts_per_token)
    one = all_to_all_s(
        token_B * shape.experts_per_token, layouts.ep.astype(float), layouts.etp.astype(float), setting.links
    )
    across_s = token_B * reached * (nodes - 1) / nodes / setting.links.network_B_per_s
    bytes_s = np.where(nodes > 1, np.minimum(across_s, one.bytes_s), one.bytes_s)
    return 4 * (bytes_s * setting.constants["expert_exposed"] + one.latency_s)


def shard_s(setting: StepSetting, layouts: Layouts, moe: bool) -> Floats:
    """Return the seconds in which a layer's shards are gathered twice and its gradients reduced (ZeRO-3)."""
    layer = layer_parameters(setting.shape, layouts)
    shared = layer.moe if moe else layer.dense
    group, inner = layouts.shard_size.astype(float), layouts.tp.astype(float)
    seconds = _gathered_and_reduced_s(setting, shared, group, inner)
    if moe:
        copies = np.minimum(expert_copies(layouts), group)
        stride = (layouts.ep * layouts.etp).astype(float)
        seconds = seconds + _gathered_and_reduced_s(setting, layer.experts, copies, stride)
    return seconds


def _gathered_and_reduced_s(setting: StepSetting, parameters: Floats, group: Floats, inner: Floats) -> Floats:
    gather = ring_gather_s(ELEMENT_B * parameters, group, inner, setting.links)
    reduce = ring_gather_s(setting.facts.reduced_B * parameters, group, inner, setting.links)
    if setting.run.adapters_alone:
        return 2 * (gather.bytes_s + gather.latency_s)
    return 2 * (gather.bytes_s + gather.latency_s) + reduce.bytes_s + reduce.latency_s


def neighbour_B_per_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the rate to the next pipeline rank, which is dp x tp x cp GPUs further."""
    inside = layouts.dp * layouts.tp * layouts.cp < setting.cluster.node_size
    return np.where(inside, setting.links.node_B_per_s, setting.links.network_B_per_s)


def send_exposed_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the exposed seconds in which a rank sends a micro-batch on and its gradient back."""
    spread = np.where(layouts.sequence_parallel > 0, layouts.tp, 1)
    size_B = ELEMENT_B * setting.tokens(layouts) * setting.shape.hidden_size / spread
    each = size_B / neighbour_B_per_s(setting, layouts) * setting.constants["send_exposed"]
    each = (2 * each + setting.links.collective_s) * layouts.virtual_stages
    return np.where(layouts.pp > 1, each, 0.0)


def reduction_exposed_s(setting: StepSetting, layouts: Layouts, micro_batch_s: Floats) -> Floats:
    """Return the exposed seconds of reducing gradients and gathering updated parameters, once per step.

    `micro_batch_s`: of one micro-batch on a rank. The last micro-batch's backward pass can hide the
    reduction, the next step's first forward pass the gathering; with interleaved stages the last and first pp
    of them, since a stage is done with all its micro-batches while others still work.
    """
    facts, nanotron = setting.facts, setting.training.program == "nanotron"
    reduce_s, gather_s = _step_collectives_s(setting, layouts)
    window = np.where(layouts.virtual_stages > 1, np.minimum(layouts.micro_batches, layouts.pp), 1)
    early = facts.reduction_overlaps | (nanotron & (layouts.zero == 0))
    least = setting.constants["reduction_exposed"]
    hidden = micro_batch_s * window
    reduce_s = np.maximum(reduce_s - early * hidden * 2 / 3, least * reduce_s)
    gather_s = np.maximum(gather_s - facts.gather_overlaps * hidden / 3, least * gather_s)
    whole = np.where(layouts.zero == 3, 0.0, reduce_s + gather_s)
    more = np.where(layouts.zero == 2, layouts.micro_batches - 1, 0)  # ZeRO-2 reduces each micro-batch's
    each_s = _step_collectives_s(setting, layouts)[0]
    repeated = more * np.maximum(each_s - early * micro_batch_s * 2 / 3, least * each_s)
    return np.asarray(whole + repeated + replicas_exposed_s(setting, layouts, micro_batch_s))


def replicas_exposed_s(setting: StepSetting, layouts: Layouts, micro_batch_s: Floats) -> Floats:
    """Return the exposed seconds in which hybrid sharding's replicas sum the gradients of their shards.

    After each micro-batch's reduction within a replica, hidden by its backward pass as far as that lasts
    (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, all_reduce_group).
    """
    shared, experts = rank_parameters(setting, layouts)
    shards = np.maximum(layouts.shard_size.astype(float), 1.0)
    replicas = layouts.dp * layouts.cp / shards
    size_B = setting.facts.reduced_B * (shared + experts) / shards
    one = ring_gather_s(size_B, replicas.astype(float), shards * layouts.tp, setting.links)
    seconds = 2 * (one.bytes_s + one.latency_s)
    exposed = np.maximum(seconds - micro_batch_s * 2 / 3, setting.constants["reduction_exposed"] * seconds)
    return np.where((layouts.zero == 3) & (replicas > 1), layouts.micro_batches * exposed, 0.0)


def _step_collectives_s(setting: StepSetting, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return the seconds of reducing a rank's gradients and of gathering its parameters, if nothing hid them.

    nanotron reduces to all ranks with ZeRO-1, too (trainer.py, training_step, reduce_scatter=False), and
    DistributedDataParallel reduces buckets, each of which passes all nodes.
    """
    shared, experts = rank_parameters(setting, layouts)
    if setting.run.adapters_alone:
        return 0.0 * shared, 0.0 * shared
    group, inner = (layouts.dp * layouts.cp).astype(float), layouts.tp.astype(float)
    stride = (layouts.ep * layouts.etp).astype(float)
    whole = (layouts.zero == 0) | (setting.training.program == "nanotron")
    reduce_s, gather_s = np.zeros_like(shared), np.zeros_like(shared)
    for parameters, ranks, apart in ((shared, group, inner), (experts, expert_copies(layouts), stride)):
        buckets = np.where(layouts.zero == 0, parameters / setting.constants["bucket_parameters"], 1.0)
        reduce = ring_gather_s(setting.facts.reduced_B * parameters, ranks, apart, setting.links)
        gather = ring_gather_s(ELEMENT_B * parameters, ranks, apart, setting.links)
        each = reduce.bytes_s + np.maximum(buckets, 1.0) * reduce.latency_s
        reduce_s = reduce_s + np.where(parameters > 0, each * np.where(whole, 2.0, 1.0), 0.0)
        each = np.where(layouts.zero > 0, gather.bytes_s + gather.latency_s, 0.0)
        gather_s = gather_s + np.where(parameters > 0, each, 0.0)
    return reduce_s, gather_s


def rank_parameters(setting: StepSetting, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return a pipeline rank's parameters in the mean, with one embedding: shared ones, and experts'."""
    shape, layer = setting.shape, layer_parameters(setting.shape, layouts)
    moe = sum(shape.layers_are_moe)
    dense = shape.num_hidden_layers - moe
    vocabulary = shape.vocab_size * shape.hidden_size / layouts.tp
    alone = (layouts.pp == 1) & (not shape.tie_word_embeddings)
    shared = (dense * layer.dense + moe * layer.moe) / layouts.pp + vocabulary * np.where(alone, 2, 1)
    return shared, np.asarray(moe * layer.experts / layouts.pp, dtype=float)


def update_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the seconds of the optimizer's update, which is bound by memory."""
    shared, experts = rank_parameters(setting, layouts)
    if setting.run.adapters_alone:
        return 0.0 * shared
    shards = np.where(layouts.zero > 0, layouts.shard_size, 1).astype(float)
    copies = np.where(layouts.zero > 0, np.minimum(expert_copies(layouts), shards), 1.0)
    moved_B = setting.own.update_B * (shared / shards + experts / copies)
    seconds: Floats = moved_B / setting.memory_B_per_s
    return seconds
