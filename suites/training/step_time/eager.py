"""What fine-tuning adds to a step: layers run kernel by kernel, adapters, quantized weights, generation.

transformers' layers run one kernel per operator unless something fuses or compiles them, so that norms in
fp32, rotations and activations read and write memory many times, and the host launches each kernel. Adapters
of PEFT add kernels and passes over memory to every linear layer that has them. A quantized base is turned
into 16 bits in each pass. Bytes are counted in the code that each constant names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.kept import kept_of_layer
from suites.training.layouts.layout import Floats, Layouts
from suites.training.layouts.states import layer_parameters
from suites.training.step_time.setting import LayerKind, StepSetting


class PassBytes(NamedTuple):
    """Bytes per element that operators of one kind move, forward and backward."""

    forward: float
    backward: float


RMS_NORM_B = PassBytes(36.0, 66.0)
"""Of LlamaRMSNorm (transformers, models/llama/modeling_llama.py): a cast to fp32, square, mean, product with
the root, a cast back and the weight, each of which reads and writes; their gradients likewise."""

LAYER_NORM_B = PassBytes(4.0, 8.0)
"""Of torch's layer norm, which is one kernel."""

RESIDUAL_B = PassBytes(6.0, 6.0)
"""Of an addition of 16-bit tensors."""

ROTATION_B = PassBytes(20.0, 24.0)
"""Of apply_rotary_pos_emb: half is negated and joined, two products, a sum."""

GATED_B = PassBytes(10.0, 18.0)
"""Per element of the MLP's width: SiLU and a product, each in a kernel of its own."""

ACTIVATION_B = PassBytes(4.0, 6.0)
"""The same without a gate, or of a rotation in one kernel."""

FUSED_GATED_B = PassBytes(6.0, 10.0)
"""The same with a gate, in one kernel."""

ADAPTER_INPUT_B, ADAPTER_OUTPUT_B = PassBytes(8.0, 13.0), PassBytes(12.0, 8.0)
"""Per element of an adapted layer's input and output (peft, tuners/lora/layer.py, Linear.forward): dropout
and the first product read the input; the second product, its scaling and the sum pass over the output."""


def eager_pointwise_B(setting: StepSetting, kind: LayerKind) -> PassBytes:
    """Return the bytes per token that the operators between matmuls of a layer of one kind move.

    Each part of a layer, its attention or mixer and its MLP or experts, has a norm and an addition.
    """
    shape, gated = setting.shape, setting.shape.matrices_of_mlp == 3
    norm, turn, act = RMS_NORM_B, ROTATION_B, GATED_B
    if setting.run.fused:
        norm, turn, act = LAYER_NORM_B, ACTIVATION_B, FUSED_GATED_B
    if not gated:
        norm, act = LAYER_NORM_B, ACTIVATION_B
    rotated = (shape.query_size + shape.key_value_size / 2) * gated * kind.attention
    parts, width = (kind.attention or kind.linear) + kind.mlp, activated_width(shape, kind)
    return PassBytes(
        *(
            parts * (n + r) * shape.hidden_size + t * rotated + a * width
            for n, r, t, a in zip(norm, RESIDUAL_B, turn, act, strict=True)
        )
    )


def mlp_width(shape: TransformerShape, kind: LayerKind) -> int:
    """Return the width of a layer's MLP that every token passes."""
    return (shape.shared_intermediate_size if kind.moe else shape.intermediate_size) * kind.mlp


def activated_width(shape: TransformerShape, kind: LayerKind) -> int:
    """Return the width of a layer's MLP and of the experts that a token passes."""
    return mlp_width(shape, kind) + shape.experts_per_token * shape.moe_intermediate_size * kind.moe


def adapters_B(setting: StepSetting, kind: LayerKind) -> PassBytes:
    """Return the bytes per token that the adapters of a layer of one kind move."""
    load = setting.run.adapters.of(kind)
    return PassBytes(
        *(load.inputs * i + load.outputs * o for i, o in zip(ADAPTER_INPUT_B, ADAPTER_OUTPUT_B, strict=True))
    )


def dequantized_s(setting: StepSetting, layouts: Layouts, moe: bool) -> Floats:
    """Return the seconds to turn a layer's quantized weights into 16 bits once."""
    if not setting.run.base:
        return np.zeros(len(layouts.tp))
    layer = layer_parameters(setting.shape, layouts)
    parameters = layer.moe + layer.experts if moe else layer.dense
    moved_B = setting.constants[f"dequantized_B.{setting.run.base}"] * parameters
    return np.asarray(moved_B / setting.memory_B_per_s, dtype=float)


def launched_s(setting: StepSetting, layouts: Layouts, kind: LayerKind) -> Floats:
    """Return the host's seconds to launch a layer forward and backward, with its adapters and hooks.

    Experts run one after another in a loop. DeepSpeed's ZeRO-3 gathers each module's weights from a hook.
    """
    cal, run = setting.constants, setting.run
    seconds = cal["eager.layer_launch_s"] + run.adapters.of(kind).linears * cal["eager.adapter_launch_s"]
    if kind.moe:
        seconds += setting.shape.num_experts * cal["eager.expert_launch_s"]
    hooked = (layouts.zero == 3) & (setting.training.program == "deepspeed")
    return seconds + np.where(hooked, cal["eager.zero3_launch_s"], 0.0)


def hooks_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the seconds per layer in which FSDP's hooks keep the GPU waiting, forward and backward."""
    hooked = setting.run.eager & (layouts.zero == 3) & (setting.training.program != "deepspeed")
    return np.where(hooked, setting.constants["eager.fsdp_hooks_s"], 0.0)


def host_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the seconds per step that states on the host add.

    Gradients go to the host and updated parameters come back, 16 bits each; the CPUs of a node update their
    part (arXiv 2101.06840, figure 2). Parameters that live there come to the GPU once per pass, a shard each.
    """
    cal, offload = setting.constants, setting.training.offload
    if offload == "none":
        return np.zeros(len(layouts.tp))
    ranks = layouts.tp * layouts.pp * np.where(layouts.zero > 0, layouts.dp * layouts.cp, 1)
    held = setting.shape.parameters / ranks
    known = f"host.update_per_s.{setting.gpu.architecture}" in cal
    architecture = setting.gpu.architecture if known else "ampere"
    rate, updates_per_s = (cal[f"host.{name}.{architecture}"] for name in ("link_B_per_s", "update_per_s"))
    frozen = setting.training.frozen
    trained = held * (frozen.adapters if frozen else 1.0)
    per_node = np.minimum(setting.cluster.node_size, layouts.gpus)
    seconds = 4.0 * trained / rate + trained * per_node / updates_per_s
    if offload == "parameters":
        weight_B = frozen.weight_B if frozen else 2.0
        passes = 2 + (layouts.recompute == 2)
        seconds = seconds + layouts.micro_batches * passes * weight_B * held / rate
    return np.asarray(seconds, dtype=float)


def activations_on_host_s(
    setting: StepSetting, layouts: Layouts, kind: LayerKind, forward_s: Floats, backward_s: Floats
) -> Floats:
    """Return the seconds in which a layer waits for activations that go to the host and come back.

    One layer's travel while the next is computed, on a stream of their own, in page-locked copies
    (Transformer Engine, pytorch/cpu_offload.py; torchtune, training/_activation_offloading.py).
    """
    if not setting.training.activations_on_host:
        return np.zeros(len(layouts.tp))
    architecture: Any = setting.gpu.architecture
    kept = kept_of_layer(setting.shape, layouts, setting.training, architecture)
    mixer = kept.attention * kind.attention + kept.linear * kind.linear
    rest = kept.experts if kind.moe else kept.mlp * kind.mlp
    known = f"host.link_B_per_s.{architecture}"
    sent_s = (mixer + rest) / setting.constants.get(known, setting.constants["host.link_B_per_s.ampere"])
    return np.asarray(np.maximum(sent_s - forward_s, 0.0) + np.maximum(sent_s - backward_s, 0.0))


def rollout_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the seconds in which a step's answers are generated, token by token.

    All answers of a step at once. Each token takes a pass over the layers, which is bound by launches or by
    reading all weights (and by turning them into 16 bits); prompts are few next to answers. An engine that
    serves launches nothing, see `served_s`.
    """
    if setting.run.rollout == "none":
        return np.zeros(len(layouts.tp))
    if setting.run.rollout == "vllm":
        return served_s(setting, layouts)
    shape, gpu = setting.shape, setting.gpu
    weights_B = 2.0 * shape.parameters / layouts.tp
    quantized_s = sum(dequantized_s(setting, layouts, moe) for moe in shape.layers_are_moe)  # of all layers
    read_s = weights_B / (gpu.memory_B_per_s * setting.constants["memory_share"]) + quantized_s
    launch_s = shape.num_hidden_layers * setting.constants["rollout.layer_launch_s"]
    return np.asarray(setting.training.seq_len * np.maximum(read_s, launch_s), dtype=float)


SERVED_SHARE = 0.5
"""Of a GPU's memory, what an engine next to the training has: verl's rollout.gpu_memory_utilization."""


def served_s(setting: StepSetting, layouts: Layouts) -> Floats:
    """Return the seconds in which an engine like vLLM generates a step's answers: a lower bound.

    As many engines as GPUs have them at the fewest GPUs each that hold the weights in 16 bits. A token of all
    answers takes as long as reading the weights once and the keys and values of half the sequence, or as its
    FLOP. Answers whose keys and values do not fit wait for the others (PagedAttention, arXiv 2309.06180).
    Scheduling, uneven lengths and loading of new weights are left out; no constant is fitted.
    """
    shape, gpu, seq_len = setting.shape, setting.gpu, setting.training.seq_len
    weights_B, room_B = 2.0 * shape.parameters, SERVED_SHARE * gpu.usable_memory_B
    gpus = np.maximum(layouts.tp, 2.0 ** np.ceil(np.log2(max(weights_B / room_B, 1.0))))
    answers = layouts.dp * layouts.micro_batch_size * layouts.micro_batches * gpus / layouts.gpus
    token_B = 2 * 2.0 * shape.num_key_value_heads * shape.head_dim * sum(shape.layers_have_attention)
    cached_B = answers * token_B * seq_len / 2
    rounds = np.maximum(np.ceil(cached_B / np.maximum(gpus * room_B - weights_B, room_B / 10)), 1.0)
    read_s = (rounds * weights_B + cached_B) / gpus / setting.memory_B_per_s
    flop_s = 2.0 * shape.active_parameters * answers / gpus / gpu.peak_FLOP_per_s("bf16")
    return np.asarray(seq_len * np.maximum(read_s, flop_s), dtype=float)
