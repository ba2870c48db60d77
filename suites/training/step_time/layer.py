"""Seconds of one layer and of the output layer on one micro-batch: matmuls, attention, what moves memory.

And seconds of communication that nothing hides: in a layer, between pipeline stages, once per step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suites.training.layouts.layout import Floats, Layouts
from suites.training.layouts.states import expert_copies, layer_parameters
from suites.training.step_time.collectives import all_to_all_s, ring_gather_s
from suites.training.step_time.eager import (
    activated_width,
    adapters_B,
    dequantized_s,
    eager_pointwise_B,
    mlp_width,
)
from suites.training.step_time.gpu import attention_flop, matmul_s
from suites.training.step_time.mixer import mixer_context_s, mixer_s
from suites.training.step_time.setting import LayerKind, StepSetting, scores_s

BACKWARD_ATTENTION = 2.5
"""FLOP of attention's backward pass over those of its forward: arXiv 2307.08691, section 4."""

ELEMENT_B = 2.0
"""Bytes of an activation: bf16."""


class PassSeconds(NamedTuple):
    """Seconds of the forward and of the backward pass."""

    forward: Floats
    backward: Floats

    def plus(self, other: PassSeconds) -> PassSeconds:
        """Return the seconds of both in turn."""
        return PassSeconds(self.forward + other.forward, self.backward + other.backward)

    def all(self, again: Floats | float = 0.0) -> Floats:
        """Return both; `again`: the share of the forward pass that the backward pass repeats."""
        seconds: Floats = self.forward * (1 + again) + self.backward
        return seconds


class KernelSeconds(NamedTuple):
    """Seconds of the kernels of a layer."""

    matmul: PassSeconds
    attention: PassSeconds
    pointwise: PassSeconds


MatmulSizes = list[tuple[Floats, Floats]]
"""Inner dimension and outputs of matmuls, per rank."""


def kinds_of_layers(setting: StepSetting) -> dict[LayerKind, int]:
    """Return how many layers there are of each kind."""
    counts: dict[LayerKind, int] = {}
    shape = setting.shape
    parts = shape.layers_have_attention, shape.layers_are_linear, shape.layers_have_mlp
    for each in zip(shape.layers_are_moe, shape.layers_are_windowed, *parts, strict=True):
        kind = LayerKind(*each)
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def layer_s(setting: StepSetting, layouts: Layouts, kind: LayerKind) -> KernelSeconds:
    """Return the seconds of one layer's kernels on one micro-batch."""
    tokens, sizes = setting.tokens(layouts), sizes_of_layer(setting, layouts, kind)
    matmul = dense_s(setting, tokens, sizes, setting.precision)
    if kind.moe:
        matmul = matmul.plus(experts_s(setting, layouts, tokens))
    none = PassSeconds(0.0 * tokens, 0.0 * tokens)
    attention = attention_s(setting, layouts, kind.windowed) if kind.attention else none
    if kind.linear:
        attention = PassSeconds(*mixer_s(setting, layouts))
    return KernelSeconds(matmul, attention, pointwise_s(setting, layouts, kind, sizes))


def dense_s(setting: StepSetting, rows: Floats, sizes: MatmulSizes, precision: str) -> PassSeconds:
    """Return the seconds of matmuls of [rows, inner] and [inner, outputs].

    The backward pass multiplies twice, for the gradients of inputs and of weights, which frozen weights lack.
    """
    gpu, rates = setting.gpu, setting.matmul_rates(precision)
    forward = np.zeros_like(rows)
    backward = np.zeros_like(rows)
    for inner, outputs in sizes:
        forward = forward + matmul_s(rows, outputs, inner, gpu, rates, precision)
        backward = backward + matmul_s(rows, inner, outputs, gpu, rates, precision)
        if not setting.run.adapters_alone:
            backward = backward + matmul_s(inner, outputs, rows, gpu, rates, precision)
    return PassSeconds(forward, backward)


def sizes_of_layer(setting: StepSetting, layouts: Layouts, kind: LayerKind) -> MatmulSizes:
    """Return the matmuls that every token passes: the mixer's, and an MLP's or the shared experts'."""
    shape, tp = setting.shape, layouts.tp.astype(float)
    hidden = shape.hidden_size * np.ones_like(tp)
    sizes = attention_sizes(setting, layouts) if kind.attention else []
    if kind.linear and shape.mixer:
        sizes += [(hidden, shape.mixer.projected / tp), (shape.mixer.inner / tp, hidden)]
    width = mlp_width(shape, kind)
    if width:
        sizes += [(hidden, (shape.matrices_of_mlp - 1) * width / tp), (width / tp, hidden)]
    if kind.moe and shape.moe_latent_size:
        latent = shape.moe_latent_size * np.ones_like(tp)
        sizes += [(hidden, latent), (latent, hidden)]
    return sizes


def attention_sizes(setting: StepSetting, layouts: Layouts) -> MatmulSizes:
    """Return the matmuls of attention."""
    shape, tp = setting.shape, layouts.tp.astype(float)
    hidden = shape.hidden_size * np.ones_like(tp)
    sizes: MatmulSizes = []
    if shape.kv_lora_rank:
        query = shape.query_size / tp
        rank = shape.q_lora_rank * np.ones_like(tp)
        sizes += [(hidden, rank), (rank, query)] if shape.q_lora_rank else [(hidden, query)]
        rank = shape.kv_lora_rank * np.ones_like(tp)
        unrotated = shape.head_dim - shape.qk_rope_head_dim
        keys = shape.num_attention_heads * (unrotated + shape.value_dim) / tp
        sizes += [(hidden, rank + shape.qk_rope_head_dim), (rank, keys)]
    else:
        gate = shape.attention_size if shape.attention_gate else 0
        sizes += [(hidden, (shape.query_size + shape.key_value_size + gate) / tp)]
    return [*sizes, (shape.attention_size / tp, hidden)]


def imbalance_of(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the tokens of the rank with the busiest experts over the mean.

    Megatron-Core's routers are trained to be balanced. Others are fine-tuned as they are: the fewer experts a
    rank has, the further the busiest rank is from the mean.
    """
    cal, run = setting.constants, setting.run
    alike = np.ones(len(layouts.ep))
    if run.imbalance is not None or run.routing_forced:
        return alike * (run.imbalance or cal["expert_imbalance"])
    if setting.training.program == "megatron":
        return alike * cal["expert_imbalance_trained"]
    return np.asarray(1 + cal["expert_imbalance_doubling"] * np.log2(layouts.ep), dtype=float)


def experts_s(setting: StepSetting, layouts: Layouts, tokens: Floats) -> PassSeconds:
    """Return the seconds of a rank's experts, which the tokens of all ranks of their group reach."""
    shape, cal, etp = setting.shape, setting.constants, layouts.etp.astype(float)
    imbalance = imbalance_of(setting, layouts)
    # ep x etp ranks share the experts, and each brings its own part of the sequences
    routed = tokens / layouts.tp * shape.experts_per_token * layouts.ep * etp
    rows = np.maximum(routed / shape.num_experts * imbalance, 1.0)
    inputs = shape.expert_input_size * np.ones_like(etp)
    width = shape.moe_intermediate_size / etp
    sizes = [(inputs, (shape.matrices_of_mlp - 1) * width), (width, inputs)]
    each = dense_s(setting, rows, sizes, setting.precision)
    count = shape.num_experts / layouts.ep * cal["grouped_factor"]
    return PassSeconds(each.forward * count, each.backward * count)


def attention_s(setting: StepSetting, layouts: Layouts, windowed: bool) -> PassSeconds:
    """Return the seconds of causal attention, of which half is masked, or of explicit attention."""
    if setting.training.attention == "unfused":
        return PassSeconds(*scores_s(setting, layouts))
    shape, tp = setting.shape, layouts.tp
    seen = positions_seen(setting.training.seq_len, shape.sliding_window if windowed else 0)
    sizes = shape.query_size / tp, shape.attention_size / tp
    flop = attention_flop(setting.tokens(layouts), seen, *sizes)
    forward, backward = setting.constants.attention_FLOP_per_s(
        setting.gpu, setting.facts.attention, shape.head_dim, setting.training.seq_len
    )
    slow = setting.constants["attention.triton_factor"] if setting.run.triton_attention else 1.0
    return PassSeconds(
        np.asarray(flop / forward * slow), np.asarray(BACKWARD_ATTENTION * flop / backward * slow)
    )


def positions_seen(seq_len: int, window: int) -> float:
    """Return how many positions a token sees in the mean, itself not counted."""
    if 0 < window < seq_len:
        return window - window * window / (2 * seq_len)
    return seq_len / 2


def pointwise_s(setting: StepSetting, layouts: Layouts, kind: LayerKind, sizes: MatmulSizes) -> PassSeconds:
    """Return the seconds of norms, additions, rotations, activations, quantisation and accumulation.

    Elements that fused kernels move per token, forward: two norms and two additions, 4 and 6 of the hidden
    size; queries and keys twice; the MLP's outputs once and its inputs once. Backward: 6 and 4, the same, 1.7
    times (three reads and two writes for the forward pass's two and one).
    """
    shape, own, tp = setting.shape, setting.own, layouts.tp
    tokens, rate = setting.tokens(layouts), setting.memory_B_per_s
    spread = np.where(layouts.sequence_parallel > 0, tp, 1)
    moe = kind.moe
    activated = shape.matrices_of_mlp * activated_width(shape, kind) / tp
    rotated = 2 * (shape.query_size + shape.key_value_size / 2) / tp * kind.attention
    permuted = 4 * shape.experts_per_token * shape.expert_input_size / tp * moe
    norms = (5 if shape.mlp_layers else 10) * shape.hidden_size / spread
    moved_B = ELEMENT_B * tokens * own.pointwise_factor
    forward = moved_B * (norms + rotated + activated + permuted) / rate
    backward = moved_B * (norms + rotated + 1.7 * activated + permuted) / rate
    if setting.run.eager:
        each_B, adapted_B = eager_pointwise_B(setting, kind), adapters_B(setting, kind)
        more = ELEMENT_B * tokens * own.pointwise_factor * permuted
        forward = ((each_B.forward + adapted_B.forward) * tokens / tp + more) / rate
        backward = ((each_B.backward + adapted_B.backward) * tokens / tp + more) / rate
    unpacked = dequantized_s(setting, layouts, moe)
    forward, backward = forward + unpacked, backward + unpacked
    quantised = quantised_s(setting, layouts, moe, sizes)
    added = accumulated_s(setting, layouts, moe)
    return PassSeconds(forward + 0.5 * quantised, backward + quantised + added)


def quantised_s(setting: StepSetting, layouts: Layouts, moe: bool, sizes: MatmulSizes) -> Floats:
    """Return the seconds in which operands of a layer's matmuls are quantised, were it done once."""
    shape = setting.shape
    elements = sum((inner + outputs for inner, outputs in sizes), start=np.zeros(len(layouts.tp)))
    if moe:
        expert = 2 * shape.expert_input_size + shape.matrices_of_mlp * shape.moe_intermediate_size
        elements = elements + shape.experts_per_token * expert / layouts.tp
    if setting.precision == "bf16":
        return 0.0 * elements
    each_B = setting.constants[f"quantised_B.{setting.precision}"] * setting.own.quantised_factor
    return each_B * elements * setting.tokens(layouts) / setting.memory_B_per_s


def accumulated_s(setting: StepSetting, layouts: Layouts, moe: bool) -> Floats:
    """Return the seconds in which a layer's gradients are added to those of earlier micro-batches."""
    if setting.run.adapters_alone:
        return np.zeros(len(layouts.tp))
    shared, experts = parameters_of_layer(setting, layouts, moe)
    parameters = shared + experts
    moved_B = np.where(layouts.micro_batches > 1, setting.own.accumulate_B, 0.0) * parameters
    return moved_B / setting.memory_B_per_s


class HeadSeconds(NamedTuple):
    """Seconds of the output layer, and of the loss on its logits, on one micro-batch."""

    matmul: PassSeconds
    added: Floats  # its gradient to earlier ones
    loss: Floats

    @property
    def total(self) -> Floats:
        """Return all of them."""
        return self.matmul.all() + self.added + self.loss

    def only(self, chosen: NDArray[np.bool_]) -> HeadSeconds:
        """Return those of the chosen layouts."""
        matmul = PassSeconds(self.matmul.forward[chosen], self.matmul.backward[chosen])
        return HeadSeconds(matmul, self.added[chosen], self.loss[chosen])


def head_s(setting: StepSetting, layouts: Layouts) -> HeadSeconds:
    """Return the seconds of the output layer, which is not quantised, and of the loss."""
    shape, tp = setting.shape, layouts.tp.astype(float)
    hidden = shape.hidden_size * np.ones_like(tp)
    matmul = dense_s(setting, setting.tokens(layouts), [(hidden, shape.vocab_size / tp)], "bf16")
    added_B = np.where(layouts.micro_batches > 1, setting.own.accumulate_B, 0.0)
    added_B = added_B * (0.0 if setting.run.adapters_alone else shape.vocab_size * hidden / tp)
    loss_B = logits_B(setting, layouts) / ELEMENT_B * setting.own.logit_B
    return HeadSeconds(matmul, added_B / setting.memory_B_per_s, loss_B / setting.memory_B_per_s)


def logits_B(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the bytes of a micro-batch's logits on one rank in 16 bits."""
    logits: Floats = ELEMENT_B * setting.tokens(layouts) * setting.shape.vocab_size / layouts.tp
    return logits


FORWARD_COLLECTIVES, BACKWARD_COLLECTIVES = 4, 6
"""All-gathers and reduce-scatters of a layer with sequence parallelism: one of each around attention and
around the MLP; the backward pass gathers the two inputs again (arXiv 2205.05198, section 4.2.2). Without
sequence parallelism an all-reduce takes as long as both."""

HIDDEN_BY_ATTENTION = 0.8
"""Share of attention's seconds during which keys and values of the next ring step can be sent: set."""


def tensor_exposed_s(setting: StepSetting, layouts: Layouts, kind: LayerKind, again: Floats) -> Floats:
    """Return the exposed seconds of a layer's tensor-parallel collectives; of hybrids' single parts, half."""
    tp = layouts.tp.astype(float)
    size_B = ELEMENT_B * setting.tokens(layouts) * setting.shape.hidden_size
    each = ring_gather_s(size_B, tp, np.ones_like(tp), setting.links)
    count = FORWARD_COLLECTIVES * (1 + again) + BACKWARD_COLLECTIVES
    parts = ((kind.attention or kind.linear) + kind.mlp) / 2
    return (each.bytes_s * setting.own.tp_exposed + each.latency_s) * count * parts


def tensor_network_s(setting: StepSetting, layouts: Layouts, again: Floats) -> Floats:
    """Return what a layer's collectives take more where tensor parallelism spans nodes."""
    nodes = np.maximum(layouts.tp / setting.cluster.node_size, 1.0)
    count = FORWARD_COLLECTIVES * (1 + again) + BACKWARD_COLLECTIVES
    return (nodes - 1) * setting.own.tp_network_s * count


def context_exposed_s(setting: StepSetting, layouts: Layouts, kind: LayerKind, attention_s: Floats) -> Floats:
    """Return the exposed seconds of a layer's keys and values on their way round the context-parallel ranks.

    They pass once forward and, with their gradients, twice backward, while attention is computed.
    """
    if kind.linear:
        return mixer_context_s(setting, layouts)
    if not kind.attention:
        return np.zeros(len(layouts.cp))
    cp, links = layouts.cp.astype(float), setting.links
    size_B = ELEMENT_B * setting.tokens(layouts) * setting.shape.key_value_size / layouts.tp
    near = layouts.tp * layouts.cp <= setting.cluster.node_size
    sent_s = 3 * size_B * (cp - 1) / np.where(near, links.node_B_per_s, links.network_B_per_s)
    exposed = np.maximum(sent_s - HIDDEN_BY_ATTENTION * attention_s, 0.1 * sent_s)
    return np.where(cp > 1, exposed + 3 * (cp - 1) * links.collective_s, 0.0)


def expert_exposed_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the exposed seconds in which a layer sends tokens to experts and back, forward and backward.

    A token crosses the network once per node that has some of its experts, not once per expert: DeepEP,
    HybridEP. NCCL's all-to-all sends it once per expert, and so does DeepEP on EFA, through a
    proxy on the host, since no GPU starts EFA's sends.
    """
    shape, ranks = setting.shape, (layouts.ep * layouts.etp).astype(float)
    token_B = ELEMENT_B * setting.tokens(layouts) * shape.expert_input_size / layouts.tp
    nodes = np.maximum(ranks / setting.cluster.node_size, 1.0)
    reached = nodes * (1 - (1 - 1 / nodes) ** shape.experts_per_token)
    one = all_to_all_s(
        token_B * shape.experts_per_token, layouts.ep.astype(float), layouts.etp.astype(float), setting.links
    )
    across_s = token_B * reached * (nodes - 1) / nodes / setting.links.network_B_per_s
    cal, direct = setting.constants, setting.run.dispatcher != "alltoall"
    efa = setting.cluster.network == "efa"
    bytes_s = np.where((nodes > 1) & direct & (not efa), np.minimum(across_s, one.bytes_s), one.bytes_s)
    if efa and setting.run.dispatcher == "deepep":
        bytes_s = bytes_s * np.where(nodes > 1, cal["expert_proxy_factor"], 1.0)
    exposed = np.full(len(nodes), cal["expert_exposed"])
    if setting.run.synchronous_experts:
        exposed = np.where(nodes > 1, 1.0, cal["expert_exposed_node"])
    return np.asarray(4 * (bytes_s * exposed + one.latency_s), dtype=float)


def shard_s(setting: StepSetting, layouts: Layouts, moe: bool) -> Floats:
    """Return the seconds in which a layer's shards are gathered twice and its gradients reduced (ZeRO-3)."""
    shared, experts = parameters_of_layer(setting, layouts, moe)
    group, inner = layouts.shard_size.astype(float), layouts.tp.astype(float)
    seconds = _gathered_and_reduced_s(setting, shared, group, inner)
    if experts.any():
        copies = np.minimum(expert_copies(layouts), group)
        stride = (layouts.ep * layouts.etp).astype(float)
        seconds = seconds + _gathered_and_reduced_s(setting, experts, copies, stride)
    return seconds


def parameters_of_layer(setting: StepSetting, layouts: Layouts, moe: bool) -> tuple[Floats, Floats]:
    """Return a layer's parameters on one rank, shared and experts'; of hybrids those of the mean layer."""
    shape, layer = setting.shape, layer_parameters(setting.shape, layouts)
    if shape.mixer:
        shared, experts = parameters_in_layers(setting, layouts)
        return shared / shape.num_hidden_layers, experts / shape.num_hidden_layers
    return (layer.moe, layer.experts) if moe else (layer.dense, np.zeros_like(layer.experts))


def parameters_in_layers(setting: StepSetting, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return the parameters of all layers, were they on one pipeline rank: shared ones and experts'."""
    shape, layer = setting.shape, layer_parameters(setting.shape, layouts)
    moe = sum(shape.layers_are_moe)
    mixers = sum(shape.layers_have_attention) * layer.attention + sum(shape.layers_are_linear) * layer.linear
    shared = mixers + (sum(shape.layers_have_mlp) - moe) * layer.mlp + moe * layer.shared
    return shared, moe * layer.experts


def _gathered_and_reduced_s(setting: StepSetting, parameters: Floats, group: Floats, inner: Floats) -> Floats:
    frozen = setting.training.frozen
    weights_B = (frozen.weight_B if frozen else ELEMENT_B) * parameters
    gather = ring_gather_s(weights_B, group, inner, setting.links)
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
    flat = (layouts.zero > 0) & (setting.training.program == "nanotron")
    share = np.where(flat, setting.constants["nanotron.flat_share"], 1.0)
    return share * reduce_s, share * gather_s


def rank_parameters(setting: StepSetting, layouts: Layouts) -> tuple[Floats, Floats]:
    """Return a pipeline rank's parameters in the mean, with one embedding: shared ones, and experts'."""
    shape = setting.shape
    in_layers, experts = parameters_in_layers(setting, layouts)
    vocabulary = shape.vocab_size * shape.hidden_size / layouts.tp
    alone = (layouts.pp == 1) & (not shape.tie_word_embeddings)
    shared = in_layers / layouts.pp + vocabulary * np.where(alone, 2, 1)
    return shared, np.asarray(experts / layouts.pp, dtype=float)


def update_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the seconds of the optimizer's update, which is bound by memory; on the host: `eager.host_s`."""
    shared, experts = rank_parameters(setting, layouts)
    if setting.run.adapters_alone or setting.training.offload != "none":
        return 0.0 * shared
    shards = np.where(layouts.zero > 0, layouts.shard_size, 1).astype(float)
    copies = np.where(layouts.zero > 0, np.minimum(expert_copies(layouts), shards), 1.0)
    moved_B = setting.own.update_B * (shared / shards + experts / copies)
    seconds: Floats = moved_B / setting.memory_B_per_s
    return seconds
