"""Seconds of one training step, as arrays over layouts: computation, communication, pipeline bubble.

Tensor parallelism has two dimensions: a matrix is cut into `rows` by `columns` parts. Rows of one are
Megatron's cut.

A published step as the formulas see it, and bandwidths that were given in the wrong unit.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from harness.instruments.transformer import CAUSAL_SCORES_FLOP, FORWARD_FLOP, TransformerShape
from harness.records import Unavailable
from suites.seconds.workload import LimitsWorkload
from suites.training.step_time.collectives import (
    Amount,
    Floats,
    Seconds,
    all_reduce_s,
    all_to_all_s,
    bubble_s,
    gather_s,
    nothing_s,
    overlapped_s,
    roofline_s,
    send_s,
    training_flop,
)
from suites.training.step_time.gpu import device_names, gpu_of

PASSES = 3
"""A matmul's forward and its two backward matmuls."""

ATTENTION_PASSES = 3.5
"""Attention's backward has 2.5 times the FLOP of its forward: arXiv 2307.08691, section 4."""

MATMULS = 4
"""Matmuls of a layer: queries, keys and values; attention's output; the MLP's first and its second."""


class Model(NamedTuple):
    """The sizes that decide a step. Of a run they are real numbers: layers and widths are not rounded."""

    layers: Amount
    hidden: Amount
    qkv: Amount  # outputs of the first matmul
    up: Amount  # outputs of the MLP's first matmul, the gate included
    intermediate: Amount  # inputs of its second
    vocab: float
    seq_len: float
    sparsity: float = 1.0  # experts in all over experts per token
    experts_per_token: float = 1.0

    @classmethod
    def of(cls, shape: TransformerShape, seq_len: int) -> Model:
        """Return the sizes of a dense model whose attention is as wide as its hidden size."""
        return cls(
            layers=shape.num_hidden_layers,
            hidden=shape.hidden_size,
            qkv=shape.query_size + shape.key_value_size,
            up=shape.intermediate_size * (shape.matrices_of_mlp - 1),
            intermediate=shape.intermediate_size,
            vocab=shape.vocab_size,
            seq_len=seq_len,
        )

    @property
    def attention_parameters(self) -> Amount:
        """Return the parameters of a layer's attention."""
        return self.hidden * (self.qkv + self.hidden)

    @property
    def mlp_parameters(self) -> Amount:
        """Return the parameters of a layer's MLP that one token uses."""
        return self.hidden * (self.up + self.intermediate)

    @property
    def matmul_parameters(self) -> Amount:
        """Return the parameters that a token is multiplied by, the language-model head included."""
        return self.layers * (self.attention_parameters + self.mlp_parameters) + self.vocab * self.hidden

    def flop(self, tokens: float) -> float:
        """Return the model FLOP of a step: 6 per parameter and token, and those of causal attention."""
        return float(
            training_flop(self.matmul_parameters, tokens)
            + tokens * CAUSAL_SCORES_FLOP * self.layers * self.seq_len * self.hidden
        )


class ParallelLayout(NamedTuple):
    """How a step is divided, as arrays over layouts. Neighbouring GPUs differ in `columns` first."""

    columns: Floats
    rows: Floats
    cp: Floats
    dp: Floats
    pp: Floats
    ep: Floats  # data-parallel ranks that share the experts
    micro_batches: Floats
    virtual_stages: Floats

    @property
    def tp(self) -> Floats:
        """Return the ranks that share each matrix."""
        return self.columns * self.rows

    @property
    def gpus(self) -> Floats:
        """Return the GPUs."""
        return self.tp * self.cp * self.dp * self.pp

    def only(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> ParallelLayout:
        """Return the chosen layouts."""
        return ParallelLayout(*(one[chosen] for one in self))


class StepTime(NamedTuple):
    """Seconds of a step: its parts as if nothing hid them, and in all."""

    matmul_s: Floats
    attention_s: Floats
    pointwise_s: Floats
    tensor_s: Floats
    context_s: Floats
    expert_s: Floats
    pipeline_s: Floats
    data_s: Floats
    latency_s: Floats
    bubble_s: Floats
    total_s: Floats


class _MicroBatch(NamedTuple):
    """Seconds of one micro-batch on a rank, of the exchange of gradients, and of the step."""

    matmul_s: Floats
    attention_s: Floats
    pointwise_s: Floats
    tensor: Seconds
    context: Seconds
    expert: Seconds
    pipeline: Seconds
    data: Seconds
    bubble_s: Floats
    total_s: Floats

    @property
    def in_turn(self) -> Seconds:
        """Return what is exchanged for each micro-batch."""
        return self.tensor.plus(self.context).plus(self.expert).plus(self.pipeline)


def total_s(given: LimitsWorkload, model: Model, layout: ParallelLayout, tokens: Amount) -> Floats:
    """Return the seconds of a step on `tokens` tokens of all ranks together."""
    return _micro_batch(given, model, layout, tokens).total_s


def step_time(given: LimitsWorkload, model: Model, layout: ParallelLayout, tokens: Amount) -> StepTime:
    """Return the seconds of a step on `tokens` tokens of all ranks together, and of its parts."""
    of, count = _micro_batch(given, model, layout, tokens), layout.micro_batches
    return StepTime(
        of.matmul_s * count,
        of.attention_s * count,
        of.pointwise_s * count,
        of.tensor.bytes_s * count,
        of.context.bytes_s * count,
        of.expert.bytes_s * count,
        of.pipeline.bytes_s * count,
        of.data.bytes_s,
        of.in_turn.latency_s * count + of.data.latency_s,
        of.bubble_s,
        of.total_s,
    )


def _micro_batch(given: LimitsWorkload, model: Model, layout: ParallelLayout, tokens: Amount) -> _MicroBatch:
    """Return the parts of a micro-batch, and the step that it makes."""
    micro = tokens / (layout.dp * layout.cp * layout.micro_batches)  # tokens of a micro-batch on a rank
    layers = model.layers / layout.pp
    matmul_s = _matmul_s(given, model, layout, micro) * layers + _head_s(given, model, layout, micro)
    of_rank = model.hidden * micro * layers / layout.tp
    attention_s = ATTENTION_PASSES * 2 * model.seq_len * of_rank / given.attention_FLOP_per_s
    pointwise_B = given.pointwise_passes * given.kept_B * of_rank
    pointwise_s = pointwise_B / (given.memory_B_per_s * given.efficiency)
    nothing = np.zeros_like(micro)
    parts = _MicroBatch(
        matmul_s,
        attention_s,
        pointwise_s,
        _tensor_s(given, model, layout, micro).times(layers),
        _context_s(given, model, layout, micro).times(layers),
        _expert_s(given, model, layout, micro).times(layers),
        _pipeline_s(given, model, layout, micro),
        _data_s(given, model, layout),
        nothing,
        nothing,
    )
    in_turn, data = parts.in_turn, parts.data
    exposed = 1 - given.overlap
    busy_s = matmul_s + attention_s + pointwise_s
    micro_s = overlapped_s(busy_s, in_turn.bytes_s, exposed) + in_turn.latency_s
    wait_s = bubble_s(layout.pp, layout.virtual_stages, micro_s)
    steady_s = layout.micro_batches * micro_s + wait_s
    step_s = overlapped_s(steady_s, data.bytes_s, exposed) + data.latency_s
    return parts._replace(bubble_s=wait_s, total_s=step_s)


def _matmul_s(given: LimitsWorkload, model: Model, layout: ParallelLayout, micro: Floats) -> Floats:
    """Return the seconds of a layer's matmuls on one micro-batch, forward and backward."""
    active = model.attention_parameters + model.mlp_parameters
    read = model.attention_parameters + model.mlp_parameters * model.sparsity / layout.ep
    # activations that are cut along the rows, and along the columns
    by_rows = (4 * model.hidden) / layout.rows
    by_columns = (model.qkv + model.hidden + model.up + model.intermediate) / layout.columns
    moved_B = read / layout.tp * given.weight_B + micro * (by_rows + by_columns) * given.activation_B
    flop = FORWARD_FLOP * micro * active / layout.tp
    busy_s = roofline_s(flop, given.peak_FLOP_per_s, given.efficiency, moved_B, given.memory_B_per_s)
    return PASSES * np.maximum(busy_s, MATMULS * given.kernel_s)


def _head_s(given: LimitsWorkload, model: Model, layout: ParallelLayout, micro: Floats) -> Floats:
    """Return the seconds of the language-model head on one micro-batch, which the last stage has."""
    if not model.vocab:
        return np.zeros_like(micro)
    flop = FORWARD_FLOP * micro * model.vocab * model.hidden / layout.tp
    busy_s = roofline_s(flop, given.peak_FLOP_per_s, given.efficiency)
    return PASSES * np.maximum(busy_s, given.kernel_s)


def _tensor_s(given: LimitsWorkload, model: Model, layout: ParallelLayout, micro: Floats) -> Seconds:
    """Return the seconds of a layer's sums over tensor-parallel ranks, forward and backward.

    Each matmul's outputs are summed over the ranks that cut its inputs; in the backward it is the other way
    round.
    """
    element_B = micro * given.activation_B
    of_outputs = model.qkv + model.hidden + model.up + model.intermediate
    by_rows = all_reduce_s(element_B * of_outputs / layout.columns, layout.rows, layout.columns, given.links)
    by_columns = all_reduce_s(
        element_B * model.hidden / layout.rows, layout.columns, np.ones_like(micro), given.links
    )
    return Seconds(by_rows.bytes_s, by_rows.latency_s * MATMULS).plus(by_columns.times(MATMULS))


def _context_s(given: LimitsWorkload, model: Model, layout: ParallelLayout, micro: Floats) -> Seconds:
    """Return the seconds of a layer's keys and values: gathered twice, their gradients reduced."""
    if not (layout.cp > 1).any():
        return nothing_s(micro)
    size_B = micro * layout.cp * (model.qkv - model.hidden) / layout.tp * given.activation_B
    return gather_s(size_B, layout.cp, layout.tp, given.links).times(3)


def _expert_s(given: LimitsWorkload, model: Model, layout: ParallelLayout, micro: Floats) -> Seconds:
    """Return the seconds of a layer's dispatch to experts and back, forward and backward."""
    if not (layout.ep > 1).any():
        return nothing_s(micro)
    size_B = micro * model.experts_per_token * model.hidden / layout.tp * given.activation_B
    return all_to_all_s(size_B, layout.ep, layout.tp * layout.cp, given.links).times(4)


def _pipeline_s(given: LimitsWorkload, model: Model, layout: ParallelLayout, micro: Floats) -> Seconds:
    """Return the seconds in which a rank sends a micro-batch on and its gradient back, per virtual stage."""
    size_B = micro * model.hidden / layout.tp * given.activation_B
    return send_s(size_B, given.links).times(np.where(layout.pp > 1, 2 * layout.virtual_stages, 0.0))


def _data_s(given: LimitsWorkload, model: Model, layout: ParallelLayout) -> Seconds:
    """Return the seconds in which gradients are reduced and parameters gathered, once per step."""
    of_rank = model.layers / layout.pp / layout.tp
    shared = model.attention_parameters * of_rank + model.vocab * model.hidden / layout.tp / layout.pp
    experts = model.mlp_parameters * model.sparsity * of_rank / layout.ep
    if model.sparsity == 1:
        shared, experts = shared + experts, np.zeros_like(experts)
    group = layout.dp * layout.cp
    both_B = given.gradient_B + given.gathered_B
    total = gather_s(shared * both_B, group, layout.tp, given.links)
    total = Seconds(total.bytes_s, total.latency_s * 2)
    if model.sparsity == 1:
        return total
    of_experts = gather_s(experts * both_B, group / layout.ep, layout.tp * layout.ep, given.links)
    return total.plus(Seconds(of_experts.bytes_s, of_experts.latency_s * 2))


def model_of(given: LimitsWorkload) -> Model:
    """Return the sizes of the published model."""
    shape = TransformerShape(
        num_hidden_layers=given.num_hidden_layers,
        hidden_size=given.hidden_size,
        num_attention_heads=given.num_attention_heads,
        num_key_value_heads=given.num_key_value_heads,
        head_dim=given.hidden_size // given.num_attention_heads,
        intermediate_size=given.intermediate_size,
        vocab_size=given.vocab_size,
        gated=given.mlp_matrices == 3,
    )
    return Model.of(shape, given.seq_len)


def micro_batches_of(given: LimitsWorkload) -> int:
    """Return the micro-batches of one rank per step; raises `Unavailable` where they do not divide."""
    of_rank = given.sequences // given.dp_size
    if of_rank % given.micro_batch_size:
        raise Unavailable(
            f"micro_batch_size={given.micro_batch_size}: expected a divisor of sequences / dp_size "
            f"({of_rank})"
        )
    chunks = given.pp_size * given.virtual_stages
    if given.pipeline_layers % chunks:
        raise Unavailable(
            f"virtual_stages={given.virtual_stages}: {given.pipeline_layers} pipeline_layers do not divide "
            f"by pp_size * virtual_stages ({chunks})"
        )
    return of_rank // given.micro_batch_size


def layout_of(given: LimitsWorkload) -> ParallelLayout:
    """Return the published layout; raises `Unavailable` where it does not divide."""
    micro_batches = micro_batches_of(given)
    sizes = (given.tp_size, 1, given.cp_size, given.dp_size, given.pp_size, 1)
    return ParallelLayout(*(np.array([float(one)]) for one in (*sizes, micro_batches, given.virtual_stages)))


def tokens_of(given: LimitsWorkload) -> int:
    """Return the tokens of one batch."""
    return given.sequences * given.seq_len


def published_time(given: LimitsWorkload) -> StepTime:
    """Return the calculated seconds of the published step.

    Where embedding and loss take a layer's place each, every rank has as much work as whole layers give it.
    """
    model = model_of(given)
    if given.pipeline_layers > given.num_hidden_layers:
        model = model._replace(layers=given.pipeline_layers, vocab=0)
    return step_time(given, model, layout_of(given), float(tokens_of(given)))


def utilization(given: LimitsWorkload, step_s: float) -> float:
    """Return the model FLOP of the step over those that its GPUs could do in `step_s` seconds."""
    flop = model_of(given).flop(tokens_of(given))
    return flop / (step_s * given.gpus * given.peak_FLOP_per_s)


BINARY_PREFIXES = {"GiB/s for GB/s": 2.0**30 / 1e9, "TiB/s for TB/s": 2.0**40 / 1e12}
"""What a value is too large by where it was given with a binary prefix."""

SAME = 1e-3
"""Relative difference within which a value is taken to be such a multiple: it has four digits."""


PORTS_B_PER_S = (12.5e9, 25e9, 50e9, 100e9)
"""Network ports of 100, 200, 400 and 800 Gbit/s."""


def refuse_binary_units(given: LimitsWorkload) -> None:
    """Raise `Unavailable`, one line that names the input, where a nominal bandwidth has a binary prefix."""
    for gpu in filter(None, map(gpu_of, device_names())):
        if gpu.title == given.device_name:
            _refuse("memory_B_per_s", given.memory_B_per_s, gpu.memory_B_per_s)
            _refuse("node_link_B_per_s", given.node_link_B_per_s, gpu.link_B_per_s)
    _refuse("network_B_per_s", given.network_B_per_s, *PORTS_B_PER_S)


def _refuse(name: str, value: float, *nominal: float) -> None:
    for one in nominal:
        for meant, ratio in BINARY_PREFIXES.items():
            if math.isclose(value, one * ratio, rel_tol=SAME):
                raise Unavailable(
                    f"{name}={value:g}: {ratio:.3f} times the nominal {one:g} B/s; is it in {meant}?"
                )
