"""Seconds of one layer and of the output layer on one micro-batch: matmuls, attention, what moves memory."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suites.training.layouts.layout import Floats, Layouts
from suites.training.layouts.states import layer_parameters
from suites.training.step_time.rates.kernels import attention_flop, matmul_s
from suites.training.step_time.whole_step.setting import StepSetting, scores_s

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


class LayerKind(NamedTuple):
    """How layers of one model differ."""

    moe: bool
    windowed: bool


MatmulSizes = list[tuple[Floats, Floats]]
"""Inner dimension and outputs of matmuls, per rank."""


def kinds_of_layers(setting: StepSetting) -> dict[LayerKind, int]:
    """Return how many layers there are of each kind."""
    counts: dict[LayerKind, int] = {}
    for pair in zip(setting.shape.layers_are_moe, setting.shape.layers_are_windowed, strict=True):
        kind = LayerKind(*pair)
        counts[kind] = counts.get(kind, 0) + 1
    return counts


def layer_s(setting: StepSetting, layouts: Layouts, kind: LayerKind) -> KernelSeconds:
    """Return the seconds of one layer's kernels on one micro-batch."""
    tokens, sizes = setting.tokens(layouts), dense_sizes(setting, layouts, kind.moe)
    matmul = dense_s(setting, tokens, sizes, setting.precision)
    if kind.moe:
        matmul = matmul.plus(experts_s(setting, layouts, tokens))
    return KernelSeconds(
        matmul,
        attention_s(setting, layouts, kind.windowed),
        pointwise_s(setting, layouts, kind.moe, sizes),
    )


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


def dense_sizes(setting: StepSetting, layouts: Layouts, moe: bool) -> MatmulSizes:
    """Return the matmuls that every token passes: attention's, and an MLP's or the shared experts'."""
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
        sizes += [(hidden, (shape.query_size + shape.key_value_size) / tp)]
    sizes += [(shape.attention_size / tp, hidden)]
    width = mlp_width(setting, moe)
    if width:
        sizes += [(hidden, (shape.matrices_of_mlp - 1) * width / tp), (width / tp, hidden)]
    return sizes


def mlp_width(setting: StepSetting, moe: bool) -> int:
    """Return the width of the MLP that every token passes."""
    return setting.shape.shared_intermediate_size if moe else setting.shape.intermediate_size


def experts_s(setting: StepSetting, layouts: Layouts, tokens: Floats) -> PassSeconds:
    """Return the seconds of a rank's experts, which the tokens of all ranks of their group reach."""
    shape, cal, etp = setting.shape, setting.constants, layouts.etp.astype(float)
    imbalance = cal["expert_imbalance" if setting.run.routing_forced else "expert_imbalance_trained"]
    # ep x etp ranks share the experts, and each brings its own part of the sequences
    routed = tokens / layouts.tp * shape.experts_per_token * layouts.ep * etp
    rows = np.maximum(routed / shape.num_experts * imbalance, 1.0)
    hidden = shape.hidden_size * np.ones_like(etp)
    width = shape.moe_intermediate_size / etp
    sizes = [(hidden, (shape.matrices_of_mlp - 1) * width), (width, hidden)]
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


def pointwise_s(setting: StepSetting, layouts: Layouts, moe: bool, sizes: MatmulSizes) -> PassSeconds:
    """Return the seconds of norms, additions, rotations, activations, quantisation and accumulation.

    Elements that fused kernels move per token, forward: two norms and two additions, 4 and 6 of the hidden
    size; queries and keys twice; the MLP's outputs once and its inputs once. Backward: 6 and 4, the same, 1.7
    times (three reads and two writes for the forward pass's two and one).
    """
    shape, own, tp = setting.shape, setting.own, layouts.tp
    tokens, rate = setting.tokens(layouts), setting.memory_B_per_s
    spread = np.where(layouts.sequence_parallel > 0, tp, 1)
    width = mlp_width(setting, moe) + shape.experts_per_token * shape.moe_intermediate_size * moe
    activated = shape.matrices_of_mlp * width / tp
    rotated = 2 * (shape.query_size + shape.key_value_size / 2) / tp
    permuted = 4 * shape.experts_per_token * shape.hidden_size / tp * moe
    norms = 10 * shape.hidden_size / spread
    moved_B = ELEMENT_B * tokens * own.pointwise_factor
    forward = moved_B * (norms + rotated + activated + permuted) / rate
    backward = moved_B * (norms + rotated + 1.7 * activated + permuted) / rate
    quantised = quantised_s(setting, layouts, moe, sizes)
    added = accumulated_s(setting, layouts, moe)
    return PassSeconds(forward + 0.5 * quantised, backward + quantised + added)


def quantised_s(setting: StepSetting, layouts: Layouts, moe: bool, sizes: MatmulSizes) -> Floats:
    """Return the seconds in which operands of a layer's matmuls are quantised, were it done once."""
    shape = setting.shape
    elements = sum((inner + outputs for inner, outputs in sizes), start=np.zeros(len(layouts.tp)))
    if moe:
        expert = 2 * shape.hidden_size + shape.matrices_of_mlp * shape.moe_intermediate_size
        elements = elements + shape.experts_per_token * expert / layouts.tp
    if setting.precision == "bf16":
        return 0.0 * elements
    each_B = setting.constants[f"quantised_B.{setting.precision}"] * setting.own.quantised_factor
    return each_B * elements * setting.tokens(layouts) / setting.memory_B_per_s


def accumulated_s(setting: StepSetting, layouts: Layouts, moe: bool) -> Floats:
    """Return the seconds in which a layer's gradients are added to those of earlier micro-batches."""
    if setting.run.adapters_alone:
        return np.zeros(len(layouts.tp))
    layer = layer_parameters(setting.shape, layouts)
    parameters = layer.moe + layer.experts if moe else layer.dense
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
