"""The techniques that a training step can have: their settings, and what each excludes and needs.

The parent reads them before any cell runs, so this module needs no torch. A technique's code is the module of
its name in suites/training/techniques. What it does not combine with follows from `role` and
`excludes` of either, and from what `applies_to` and `apply` of its module refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Literal, TypeVar

from harness.bounds import Bounds
from harness.config.validation import DeclaredTechnique, Role

Configured = TypeVar("Configured")


class Level(IntEnum):
    """The order in which techniques are applied, whatever the order of listing."""

    WORKLOAD = 0  # the batch, the optimizer
    MODEL = 1  # the attention kernel, types
    ACTIVATIONS = 2  # what happens to activations between forward and backward pass
    COMPILER = 3
    TENSOR_PARALLELISM = 4  # how ranks share each layer
    EXPERT_PARALLELISM = 5  # how ranks share each layer's experts
    CONTEXT_PARALLELISM = 6  # how ranks share each sequence
    PIPELINE_PARALLELISM = 7  # how ranks share the layers among them
    PARALLELISM = 8  # how ranks share the model
    COMMUNICATION = 9  # how the parallelism's messages are changed
    UPDATE = 10  # when parameters are updated


TECHNIQUES: dict[str, DeclaredTechnique] = {}
"""By name."""


def technique(
    name: str,
    level: Level,
    *,
    role: Role | None = None,
    excludes: Mapping[str, str] | None = None,
    needs: tuple[str, ...] = (),
    no_dry_run: str = "",
) -> Callable[[type[Configured]], type[Configured]]:
    """Declare that a frozen dataclass has the settings of a technique; raises ValueError for a second of its
    name.

    `excludes`: other techniques with the reason; `needs`: those without which it means nothing; `no_dry_run`:
    why fake tensors cannot show it.
    """

    def declare(settings: type[Configured]) -> type[Configured]:
        if name in TECHNIQUES:
            raise ValueError(f"two techniques are called {name}")
        TECHNIQUES[name] = DeclaredTechnique(level, settings, role, excludes or {}, needs, no_dry_run)
        return settings

    return declare


OF_ALL_RANKS = ("ddp", "fsdp1", "zero", "host_update", "local_sgd")
"""Techniques for which all ranks are alike."""

HOST_UPDATE_HAS_NO_DRY_RUN = (
    "a dry run counts all memory as the device's, and host_update keeps states on the host; "
    "fsdp2: {cpu_offload: true} keeps them there, too, and can be dry-run"
)


@technique("gradient_accumulation", Level.WORKLOAD)
@dataclass(frozen=True, slots=True)
class GradientAccumulationSettings:
    """Gradient accumulation: several micro-batches per update, whose gradients are summed before it.

    `steps`: micro-batches per update for each micro-batch of the workload.
    `split`: whether they share the workload's sequences, so that the update stays the same; else each is an
    additional batch, and there are fewer updates per token.
    """

    steps: Annotated[int, Bounds(at_least=1)] = 2
    split: bool = True


@technique("optimizer", Level.WORKLOAD)
@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """Another optimizer, or another implementation of the same one.

    `impl`: torch's implementation; None: the workload's.
    `name`: the optimizer; None: the workload's. "adamw_8bit" has 8-bit moments (arXiv 2110.02861), "muon" is
    torch's Muon for the layers' matrices and AdamW for all else.
    `learning_rate`: its learning rate; None: with `name` that optimizer's default, else the workload's.
    """

    impl: Literal["default", "for_loop", "foreach", "fused"] | None = None
    name: Literal["adamw", "sgd_momentum", "adafactor", "adamw_8bit", "muon", "paged_adamw_8bit"] | None = (
        None
    )
    learning_rate: Annotated[float, Bounds(above=0)] | None = None


@technique(
    "optimizer_in_backward",
    Level.UPDATE,
    excludes={"ddp": "DDP reduces buckets after the hooks, which would update from one rank's gradients"},
)
@dataclass(frozen=True, slots=True)
class OptimizerInBackwardSettings:
    """The optimizer in the backward pass: each parameter is updated as soon as its gradient exists
    (torchtune).

    Set nothing: the optimizer is the workload's.
    """


@technique("host_update", Level.PARALLELISM, role=Role.PARALLELISM, no_dry_run=HOST_UPDATE_HAS_NO_DRY_RUN)
@dataclass(frozen=True, slots=True)
class HostUpdateSettings:
    """ZeRO-Offload's partition in plain PyTorch: parameters and computation on the device, all else on the
    host.

    `delay`: whether updates use gradients that are one step old.
    `delay_after`: the number of ordinary steps before updates are delayed.
    """

    delay: bool = False
    delay_after: Annotated[int, Bounds(at_least=0)] = 0


@technique("attention", Level.MODEL)
@dataclass(frozen=True, slots=True)
class AttentionSettings:
    """Flash attention (arXiv 2205.14135): torch's fused scaled_dot_product_attention, without a score matrix.

    `kernel`: "flash", torch's fused kernel for this device and type; "explicit", with scores as a tensor.
    """

    kernel: Literal["flash", "explicit"] = "flash"


@technique(
    "loss",
    Level.ACTIVATIONS,
    excludes={"tensor_parallel": "it has a loss of its own, over logits that are sharded by vocabulary"},
)
@dataclass(frozen=True, slots=True)
class LossSettings:
    """How the output layer and the loss are computed: how many logits exist at once, in which type, for how
    long.

    `chunks`: the number of parts of a sequence that are taken one after the other.
    `chunked`: what is taken in chunks: "loss" widens and reduces full logits in chunks, as torchtitan's
    chunked_cross_entropy_loss; "output" also computes them in chunks, as torchtune's CEWithChunkedOutputLoss;
    "recompute" computes each chunk's logits again in the backward pass, so that one chunk exists at a time;
    "in_place" takes nothing in chunks: gradients take the place of widened logits (Unsloth's cross-entropy).
    `dtype`: the type in which the loss is computed; None widens logits to fp32.
    `keep_logits`: keep logits through the backward pass and the update, as a script does that has them in a
    variable: "model", as the output layer makes them; "fp32", widened; None keeps none.
    `fused`: one operation for output layer and loss, with gradients in the forward pass: Liger's fused linear
    cross-entropy, or without a GPU the same algorithm in plain PyTorch. Of a model that scales its logits it
    is "in_place", Liger's default there.
    `compiled`: torch.compile generates each chunk's loss, as torchtune and torchtitan have it: widened logits
    and their log-softmax are never stored.
    """

    chunks: Annotated[int, Bounds(at_least=1)] = 1
    chunked: Literal["loss", "output", "recompute", "in_place"] = "output"
    dtype: Literal["bf16"] | None = None
    keep_logits: Literal["model", "fp32"] | None = None
    fused: bool = False
    compiled: bool = False


CHANGED_BY_LIGER = """
deepseek_v2 deepseek_v3 deepseek_v4 exaone4 falcon_h1 gemma gemma2 gemma3 gemma3_text gemma4 gemma4_text
glm4 glm4v glm4v_moe gpt_oss granite hunyuan_v1_dense hunyuan_v1_moe internvl llama llama4 llama4_text
llava ministral mistral mixtral mllama mllama_text_model muse_glimmer nemotron olmo2 olmo3 paligemma phi3
pixtral qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen3 qwen3_moe qwen3_next qwen3_5
qwen3_5_text qwen3_5_moe qwen3_5_moe_text qwen3_vl qwen3_vl_text qwen3_vl_moe qwen3_vl_moe_text smollm3
smolvlm
"""
"""Model types that Liger-Kernel 0.8.5 knows (transformers/monkey_patch.py); of others it changes nothing."""


@technique(
    "fused_layers",
    Level.ACTIVATIONS,
    excludes={
        "compile": "torch.compile fuses norms and activations itself",
        "tensor_parallel": "its norms and MLPs work on shards",
    },
)
@dataclass(frozen=True, slots=True)
class FusedLayersSettings:
    """Norms and gated activations that keep their inputs alone, with gradients in place (Liger-Kernel).

    Set nothing: on a GPU they are Liger's kernels, elsewhere the layers' own code, a part of the tokens at a
    time.
    """


@technique("compile", Level.COMPILER)
@dataclass(frozen=True, slots=True)
class CompileSettings:
    """torch.compile (ASPLOS 2024, doi 10.1145/3620665.3640366): both passes as generated kernels.

    `mode`: torch.compile's mode.
    `scope`: "model" compiles all of it as one graph; "blocks" compiles each layer alone, as FSDP2 needs it.
    """

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    scope: Literal["model", "blocks"] = "model"


@technique("mixed_precision", Level.MODEL)
@dataclass(frozen=True, slots=True)
class MixedPrecisionSettings:
    """Mixed precision (arXiv 1710.03740): bf16 compute over fp32 master states, in its three conventions.

    `gradients`: None stores all in fp32, and torch.autocast rounds what it multiplies; "bf16" stores
    parameters and gradients in bf16, with fp32 master weights (16 bytes per parameter with AdamW); "fp32"
    stores parameters in bf16 and sums gradients in fp32, with fp32 master weights (18 bytes per parameter).
    """

    gradients: Literal["bf16", "fp32"] | None = None


@technique(
    "bf16_states",
    Level.MODEL,
    excludes={
        "mixed_precision": "mixed precision has fp32 states, and bf16_states has none",
        "zero": "deepspeed's engine keeps fp32 states next to bf16 parameters",
        "host_update": "it keeps fp32 parameters and states on the host",
    },
)
@dataclass(frozen=True, slots=True)
class BF16StatesSettings:
    """Everything in bf16: parameters, gradients and optimizer states, as torchtune's full fine-tuning in
    bf16.

    Set nothing: all of the step is in bf16.
    """


@technique(
    "float8",
    Level.MODEL,
    excludes={
        "lora": "a frozen layer's product has an adapter; use lora: {base: int8} for a smaller base",
        "tensor_parallel": "its weights are distributed tensors, which the float8 product does not take",
        "zero": "deepspeed's stage 3 hands out weights to torch's own linear function alone",
    },
)
@dataclass(frozen=True, slots=True)
class Float8Settings:
    """Linear layers' products in float8 with dynamic tensorwise scaling, as torchtitan's default with
    torchao.

    Set nothing: scaling is dynamic and by tensor.
    """


@technique("activation_checkpointing", Level.ACTIVATIONS, role=Role.ACTIVATIONS)
@dataclass(frozen=True, slots=True)
class ActivationCheckpointingSettings:
    """Activation checkpointing (arXiv 1604.06174): keep less in the forward pass, recompute the rest later.

    `mode`: "full" recomputes everything but each layer's input; "selective" also keeps the results of linear
    layers; "per_op" keeps those of fused attention, of reduce-scatters and of every second linear layer.
    `every`: checkpoint every so many-th layer alone, and keep everything in the others.
    `on_host`: put what is kept on the host until the layer's backward pass.
    `inputs_stay`: layers' inputs and their gradients stay until the backward pass ends, as those of frozen
    layers do under FSDP1 with torch's re-entrant checkpoint.
    """

    mode: Literal["full", "selective", "per_op"] = "full"
    every: Annotated[int, Bounds(at_least=1)] = 1
    on_host: bool = False
    inputs_stay: bool = False


@technique(
    "activation_offload",
    Level.ACTIVATIONS,
    role=Role.ACTIVATIONS,
    excludes={"compile": "hooks on saved tensors do not see what compiled code saves"},
)
@dataclass(frozen=True, slots=True)
class ActivationOffloadSettings:
    """Activation offload (torch's `save_on_cpu`): tensors saved for the backward pass are kept on the host.

    `prefetch`: copy alongside the computation, one block behind it and one ahead; else computation waits.
    """

    prefetch: bool = False


@technique(
    "lora",
    Level.MODEL,
    excludes={
        "tensor_parallel": "it shards plain linear layers by name, and adapters are others",
        "host_update": "it copies the gradient of every parameter to the host, and frozen ones have none",
    },
)
@dataclass(frozen=True, slots=True)
class LoRASettings:
    """Low-rank adapters (LoRA, arXiv 2106.09685): the model is frozen, and small matrices next to it are
    trained.

    `rank`: the rows of A and the columns of B.
    `alpha`: adapters' results are multiplied by alpha / rank.
    `dropout`: the share of an adapter's inputs that are dropped in training.
    `targets`: names of linear layers (query, value, ...; another model's own, such as q_proj), or "layers":
    every linear layer of the model's layers.
    `base`: how frozen weights are stored: "bf16"; "nf4" or "int8": the linear layers of the model's layers in
    4 or 8 bits and all else in bf16; None: in the step's type.
    `double_quantization`: under "nf4", whether the blocks' maxima are quantized too.
    `adapter_dtype`: the type of the adapters; None: that of the rest of the model.
    `dora`: whether a magnitude per output is trained, too (DoRA).
    `ends`: whether copies of the token embedding and the output layer are trained, too (peft's
    modules_to_save).
    `experts`: of a base in 4 or 8 bits, how transformers' experts are stored: "bf16", "fp32"; "linear", as
    linear layers in the base's bits (transformers 4); "tensor", all of a layer as one, widened at once.
    `rest`: the type of what a base in 4 or 8 bits leaves as it is: "fp32" after peft's
    prepare_model_for_kbit_training.
    `lightning`: quantize the output layer too, and keep each product's input until the next forward pass has
    ended, as litgpt does by Lightning's plugin with bitsandbytes 0.41 and 0.42.
    """

    rank: Annotated[int, Bounds(at_least=1)] = 8
    alpha: Annotated[float, Bounds(above=0)] = 16.0
    dropout: Annotated[float, Bounds(at_least=0, below=1)] = 0.0
    targets: Sequence[str] | str = "layers"
    base: Literal["bf16", "nf4", "int8"] | None = None
    double_quantization: bool = True
    adapter_dtype: Literal["fp32", "bf16"] | None = None
    dora: bool = False
    ends: bool = False
    experts: Literal["bf16", "fp32", "linear", "tensor"] = "bf16"
    rest: Literal["bf16", "fp32"] = "bf16"
    lightning: bool = False


@technique(
    "llama_adapter",
    Level.MODEL,
    excludes={
        "lora": "each of them trains its own adapters alone",
        "tensor_parallel": "it shards plain linear layers by name, and prompts have all heads",
        "host_update": "it copies the gradient of every parameter to the host, and frozen ones have none",
        "fsdp1": "its flat parameters of frozen and trained parameters are not checked; use fsdp2",
        "float8": "version 2's scales and biases next to float8 products are not checked",
        "pipeline": "adapters over stages are not checked",
    },
)
@dataclass(frozen=True, slots=True)
class LlamaAdapterSettings:
    """LLaMA-Adapter (arXiv 2303.16199) and its version 2 (arXiv 2304.15010): learned prompts in a frozen
    model.

    `version`: 1: prompts alone; 2: also the norms, and scales and biases of linear layers.
    `prompt_length`: prompts per layer.
    `start_layer`: the first layer with prompts, from 0.
    `base`: how frozen weights are stored: "bf16"; "nf4" or "int8": the linear layers of the model's layers in
    4 or 8 bits and all else in bf16; None: in the step's type.
    `double_quantization`: under "nf4", whether the blocks' maxima are quantized too.
    `lightning`: see `lora`.
    """

    version: Literal[1, 2] = 1
    prompt_length: Annotated[int, Bounds(at_least=1)] = 10
    start_layer: Annotated[int, Bounds(at_least=0)] = 2
    base: Literal["bf16", "nf4", "int8"] | None = None
    double_quantization: bool = True
    lightning: bool = False


@technique("ddp", Level.PARALLELISM, role=Role.PARALLELISM)
@dataclass(frozen=True, slots=True)
class DDPSettings:
    """DistributedDataParallel (arXiv 2006.15704): every rank has the full model; gradients are averaged.

    `buckets`: the number of buckets of equal size; None: torch's, of 25 MiB each.
    `reduce_dtype`: the type in which gradients are sent, "fp32", or "bf16" by torch's bf16_compress_hook.
    `gradient_as_bucket_view`: gradients are views of the buckets; else each gradient is stored twice.
    """

    buckets: Annotated[int, Bounds(at_least=1)] | None = None
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    gradient_as_bucket_view: bool = False


@technique(
    "fsdp1",
    Level.PARALLELISM,
    role=Role.PARALLELISM,
    excludes={
        "compile": "its flat parameters and hooks break a graph; use fsdp2 with compile: {scope: blocks}",
    },
)
@dataclass(frozen=True, slots=True)
class FSDP1Settings:
    """torch's first FSDP (arXiv 2304.11277), `FullyShardedDataParallel`: flat parameters, one per layer.

    `strategy`: torch's ShardingStrategy: "full_shard" reshards each unit after its forward pass;
    "shard_grad_op" keeps units gathered until the backward pass.
    `reduce_dtype`: the type in which gradients are sent under mixed_precision.
    `reduce_every_micro_batch`: torch's default; else unreduced gradients are accumulated and reduced with an
    update's last micro-batch.
    """

    strategy: Literal["full_shard", "shard_grad_op"] = "full_shard"
    reduce_dtype: Literal["fp32", "bf16"] = "fp32"
    reduce_every_micro_batch: bool = True


@technique("fsdp2", Level.PARALLELISM, role=Role.PARALLELISM)
@dataclass(frozen=True, slots=True)
class FSDP2Settings:
    """Fully sharded data parallelism (arXiv 2304.11277), torch's FSDP2: each rank has a shard of everything.

    `reduce_dtype`: the type in which gradients are sent; None: fp32 under mixed_precision, else their own.
    `shard_within`: shard within groups of so many neighbouring ranks and average gradients between groups
    (hybrid sharding); None: over all ranks.
    `forward_prefetch`: gather a block while the one before it computes; on CUDA torch always does.
    `reduce_every_micro_batch`: torch's default; else, and in any pipeline, gradients are reduced with an
    update's last micro-batch.
    `cpu_offload`: keep shards, their gradients and states on the host.
    `reshard_after_forward`: True reshards the rest of the model too; False keeps all gathered until the
    backward pass; a number reshards blocks to groups of so many ranks; None: torch's default, blocks alone,
    and False in a pipeline, as in torchtitan.
    `keep_last_block`: the last block stays gathered, as in torchtitan until July 2025.
    `head`: "together" gathers embedding, last norm and output layer as one group; "apart" gathers the
    embedding alone, and last norm and output layer as a second group, which stays gathered, as torchtitan
    since then.
    """

    reduce_dtype: Literal["fp32", "bf16"] | None = None
    shard_within: Annotated[int, Bounds(at_least=1)] | None = None
    forward_prefetch: bool = False
    reduce_every_micro_batch: bool = True
    cpu_offload: bool = False
    reshard_after_forward: bool | int | None = None
    keep_last_block: bool = False
    head: Literal["together", "apart"] = "together"


@technique(
    "zero",
    Level.PARALLELISM,
    role=Role.PARALLELISM,
    excludes={"compile": "deepspeed's engine hooks into every module, which breaks the graph"},
)
@dataclass(frozen=True, slots=True)
class ZeROSettings:
    """ZeRO (arXiv 1910.02054) by deepspeed's engine: it shards optimizer states, gradients and parameters.

    `stage`: 1 shards optimizer states; 2 gradients too; 3 parameters too.
    `optimizer`: where fp32 states are stored and updated.
    `parameters`: where parameters are stored; other than on the device with stage 3 alone.
    `ratio`: the share of the states that is not on the device (stage 3's Twin-Flow).
    `buckets`: the elements that are sent at once: "model", all up to deepspeed's default; "block", those of a
    block or of the largest parameter, and a block is prefetched. deepspeed's defaults are made for a model of
    billions of parameters, of which they are a small part.
    `reduce_bucket`: the elements of the bucket of gradients; None: as `buckets` has them. Up to deepspeed's
    default there are at most as many as `buckets` has; more are allocated whole, whatever the model.
    """

    stage: Literal[1, 2, 3] = 3
    optimizer: Literal["device", "host", "disk"] = "device"
    parameters: Literal["device", "host", "disk"] = "device"
    ratio: Annotated[float, Bounds(at_least=0, at_most=1)] = 1.0
    buckets: Literal["model", "block"] = "model"
    reduce_bucket: Annotated[int, Bounds(at_least=1)] | None = None


@technique("local_sgd", Level.PARALLELISM, role=Role.PARALLELISM)
@dataclass(frozen=True, slots=True)
class LocalSGDSettings:
    """Local steps with an outer one, as in DiLoCo (arXiv 2311.08105).

    `inner_steps`: the number of updates between two outer steps.
    `outer_learning_rate`: the learning rate of the outer step.
    """

    inner_steps: Annotated[int, Bounds(at_least=1)] = 4
    outer_learning_rate: Annotated[float, Bounds(above=0)] = 0.7


@technique("powersgd", Level.COMMUNICATION, needs=("ddp",))
@dataclass(frozen=True, slots=True)
class PowerSGDSettings:
    """PowerSGD (arXiv 1905.13727): gradients as products of low-rank matrices, with error feedback.

    `rank`: the number of columns of the low-rank matrices.
    `warmup_steps`: the number of updates with full gradients before it starts.
    """

    rank: Annotated[int, Bounds(at_least=1)] = 2
    warmup_steps: Annotated[int, Bounds(at_least=2)] = 2


@technique(
    "tensor_parallel",
    Level.TENSOR_PARALLELISM,
    role=Role.TENSOR_PARALLELISM,
    excludes={
        **dict.fromkeys(OF_ALL_RANKS, "ranks form a mesh with fsdp2 alone"),
        "compile": "its loss is a DTensor sharded by vocabulary, which torch.compile does not trace",
        "activation_offload": "saved DTensors have no storage of their own to copy",
    },
)
@dataclass(frozen=True, slots=True)
class TensorParallelSettings:
    """Tensor parallelism as in Megatron-LM (arXiv 1909.08053), by torch's DTensor: each layer is sharded.

    Choose what is sharded; the workload's `tp_size` is the number of ranks that share each layer.

    `sequence_parallel`: shard the activations between matrices, norms' and residuals, by sequence.
    """

    sequence_parallel: bool = False


@technique(
    "expert_parallel",
    Level.EXPERT_PARALLELISM,
    role=Role.EXPERT_PARALLELISM,
    excludes={
        **dict.fromkeys(OF_ALL_RANKS, "ranks that share experts form a mesh with fsdp2 alone"),
        "activation_offload": "saved distributed tensors have no storage of their own to copy",
        "lora": "adapters next to experts of other ranks are not checked",
        "llama_adapter": "adapters next to experts of other ranks are not checked",
    },
)
@dataclass(frozen=True, slots=True)
class ExpertParallelSettings:
    """Expert parallelism (arXiv 2006.16668): ranks with different data share the experts of each layer.

    The workload's `ep_size` is the number of ranks that share each layer's experts.

    `expert_tensor_parallel`: with `tensor_parallel`, its ranks share each expert: Megatron-LM's
    `expert_tensor_parallel_size` is tp_size, its default; False: it is 1.
    """

    expert_tensor_parallel: bool = True


@technique(
    "context_parallel",
    Level.CONTEXT_PARALLELISM,
    role=Role.CONTEXT_PARALLELISM,
    excludes={
        **dict.fromkeys(OF_ALL_RANKS, "ranks that share each sequence form a mesh with fsdp2 alone"),
        "compile": "attention has collectives that torch.compile would have to break its graph for",
    },
)
@dataclass(frozen=True, slots=True)
class ContextParallelSettings:
    """Context parallelism as in Llama 3 (arXiv 2407.21783, section 3.3.2): ranks share each sequence.

    Set nothing: the workload's `cp_size` is the number of ranks that share each sequence.
    """


@technique(
    "pipeline",
    Level.PIPELINE_PARALLELISM,
    role=Role.PIPELINE_PARALLELISM,
    excludes={
        **dict.fromkeys(OF_ALL_RANKS, "ranks form a mesh with fsdp2 alone"),
        "compile": "stages run parts of the model, which one graph of the model does not have",
        "activation_offload": "it expects a micro-batch's backward pass before the next one's forward pass",
        "lora": "adapters over stages are not checked",
    },
)
@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Pipeline parallelism (arXiv 1806.03377): `pp_size` ranks share the layers, by torch's pipelining.

    Choose the schedule; the workload's `pp_size` is the number of ranks that share the layers.

    `stages_per_rank`: stages of each rank; 1 is 1F1B, more are interleaved 1F1B.
    """

    stages_per_rank: Annotated[int, Bounds(at_least=1)] = 1
