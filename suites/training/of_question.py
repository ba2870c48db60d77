"""What the engines of bytes and seconds take from a `Question`: shape, training, devices, layout, setting.

A question is read here and nowhere else. What the engines cannot answer is refused in one line; what they
take for something else is listed by `left_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from harness.instruments.transformer import TransformerShape
from harness.question import DEEPSPEED_BUCKET, Adapters, Question
from harness.records import Unavailable
from suites.training.declared import CHANGED_BY_LIGER
from suites.training.layouts.layout import (
    DEFAULT_MODULES,
    RECOMPUTES,
    AttentionName,
    FrozenBase,
    Layouts,
    OffloadName,
    Training,
)
from suites.training.layouts.search import LayoutGpus, LayoutSubject, divisors, refusal, refusal_of_training
from suites.training.layouts.shape_of_config import shape_of_config, shape_without_type
from suites.training.layouts.states import FSDP
from suites.training.step_time.constants import GpuCluster, StepConstants
from suites.training.step_time.gpu import RatedGpu, known_gpu
from suites.training.step_time.published.typed import MLPERF, meaning
from suites.training.step_time.setting import (
    PLAIN,
    AdapterLoad,
    LayerAdapters,
    RunFacts,
    StepSetting,
    sum_of,
)
from suites.training.workload import Architecture

NARROW_PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "ada": ("fp8",),
    "hopper": ("fp8",),
    "cdna": ("fp8",),
    "blackwell": ("fp8", "mxfp8", "nvfp4"),
}
"""Of matmuls besides bf16, by architecture: NVIDIA's and AMD's datasheets in conf/hardware."""

OPTIMIZERS = ("adamw", "adamw_8bit", "sgd_momentum", "muon")
"""Optimizers whose states the account has."""


def subject_of(
    question: Question, architecture: Architecture | None = None, whole_batch: bool = False
) -> LayoutSubject:
    """Return a question as the account of layouts takes it.

    `architecture`: of devices that differ from what conf/hardware has. `whole_batch`: a batch that follows
    from the steps of gradient accumulation stays as it is; else only a pipeline or a search needs it, and
    larger micro-batches may make it larger. Raises `Unavailable`, in one line, for a model without a shape,
    for what the account does not have, and for what does not divide.
    """
    question, cluster = with_devices(question, architecture)
    refuse_unknown(question, cluster.architecture)
    training, shape = training_of(question, cluster.architecture), shape_of(question.config or {})
    if question.adapters is not None:
        frozen = frozen_base(shape, question.adapters, adapts_experts(question))
        states = question.adapters.dtype if training.program in FSDP else training.states
        training = replace(training, frozen=frozen, states=states)
    if question.etp is not None and not shape.num_experts and question.origin("etp").kind == "command":
        raise Unavailable(f"etp={question.etp}: the model has no experts")
    refuse_imbalance(question, shape)
    if reason := refusal_of_training(shape, training):
        raise Unavailable(reason)
    question, layout = with_layout(question, whole_batch)
    if not question.search and (reason := refusal(shape, layout, training)):
        raise Unavailable(reason)
    return LayoutSubject(question, shape, training, cluster, layout)


def seconds_subject_of(question: Question) -> LayoutSubject:
    """Return a question as the model of seconds takes it, see `subject_of`; raises `Unavailable`."""
    return subject_of(question, whole_batch=True)


def changed(subject: LayoutSubject, **fields: Any) -> LayoutSubject:
    """Return a subject with other fields of its question; raises `Unavailable` as `subject_of` does."""
    return subject_of(msgspec.structs.replace(subject.question, **fields), subject.cluster.architecture)


def shape_of(config: Mapping[str, Any]) -> TransformerShape:
    """Return the shape of a config, which may have sizes alone; raises `Unavailable`."""
    return shape_of_config(config) if "model_type" in config else shape_without_type(config)


def with_devices(question: Question, architecture: Architecture | None) -> tuple[Question, LayoutGpus]:
    """Return the question with its number of devices and their memory, and both with their architecture."""
    gpu = known_gpu(question.device)
    devices = question.devices or checked(question.dp_of) * question.model_ranks
    memory_B = question.memory_B or gpu.usable_memory_B
    kind: Any = architecture or gpu.architecture
    question = msgspec.structs.replace(question, devices=devices, memory_B=memory_B)
    return question, LayoutGpus(devices, question.gpus_per_node, memory_B, kind)


def refuse_unknown(question: Question, architecture: str) -> None:
    """Raise `Unavailable` for what the account does not have."""
    able = ("bf16", *NARROW_PRECISIONS.get(architecture, ()))
    if question.precision == "fp32":
        raise Unavailable(
            f"precision fp32 is not in the account of layouts, which has {', '.join(able)}; give precision="
        )
    if question.precision not in (*able, "fp16"):
        raise Unavailable(
            f"precision={question.precision}: {architecture} GPUs have no such matmuls; allowed: "
            f"{', '.join(able)}"
        )
    if question.optimizer not in OPTIMIZERS:
        raise Unavailable(
            f"optimizer {question.optimizer} is not in the account of layouts, which has "
            f"{', '.join(OPTIMIZERS)}; give optimizer="
        )


def refuse_imbalance(question: Question, shape: TransformerShape) -> None:
    """Raise `Unavailable` for an imbalance of a command that no routing of the model's experts can have."""
    given = question.imbalance
    if given is None or question.origin("imbalance").kind != "command":
        return
    if not shape.num_experts:
        raise Unavailable(f"imbalance={given:g}: the model has no experts")
    most = shape.num_experts / shape.experts_per_token
    if not 1 <= given <= most:
        raise Unavailable(
            f"imbalance={given:g}: expected 1 to {most:g}, where every token goes to the same "
            f"{shape.experts_per_token} of {shape.num_experts} experts"
        )


FLASH_WHERE_DETERMINISTIC = ("ampere", "blackwell")
"""Architectures on which Transformer Engine's fused attention is not deterministic, so that it takes
FlashAttention where that is asked for (pytorch/attention/dot_product_attention/utils.py,
get_attention_backend)."""

IMBALANCE = 1.2
"""Tokens of the rank with the busiest experts over the mean, where nothing bounds them."""


def attention_of(question: Question, architecture: str) -> AttentionName:
    """Return whose kernel attention has; Megatron-LM's is its fused one unless a file names another."""
    if question.attention == "explicit":
        return "unfused"
    if question.program_of() != "megatron" or question.attention == "flash_attention":
        return "flash"
    return "flash" if question.deterministic and architecture in FLASH_WHERE_DETERMINISTIC else "fused"


BASE_B = {"bf16": 2.0, "int8": 1.0, "nf4": 0.5}
MAXIMA_B = {"nf4": 4 / 64}
"""Bytes per frozen weight, and of nf4's fp32 maxima, one per 64 (bitsandbytes): each rank has them."""

JOINED = {
    **dict.fromkeys(("query_key_value", "linear_qkv", "Wqkv", "qkv_proj", "c_attn"), "q_proj k_proj v_proj"),
    **dict.fromkeys(("gate_up_proj", "linear_fc1", "dense_h_to_4h"), "gate_proj up_proj"),
    **dict.fromkeys(("linear_proj", "dense", "out_proj"), "o_proj"),
    **dict.fromkeys(("linear_fc2", "dense_4h_to_h"), "down_proj"),
}
"""Other names of linear layers, and the layers that each joins."""

LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def mixer_linears(shape: TransformerShape) -> tuple[dict[str, AdapterLoad], dict[str, AdapterLoad]]:
    """Return the linear layers of attention, and those of Mamba or linear attention, its result too."""
    hidden, keys, mixer = shape.hidden_size, shape.num_key_value_heads * shape.head_dim, shape.mixer
    attention = {
        "q_proj": AdapterLoad(1, hidden, shape.query_size),
        "k_proj": AdapterLoad(1, hidden, keys),
        "v_proj": AdapterLoad(1, hidden, keys),
        "o_proj": AdapterLoad(1, shape.attention_size, hidden),
    }
    linear = {"in_proj": AdapterLoad(2, hidden + mixer.inner, mixer.projected + hidden)} if mixer else {}
    return attention, linear


OF_MLP = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
"""Names of an MLP's matrices, in Qwen's models and in Mixtral's."""

LINEAR_EXPERTS = ("litgpt", "torchtune")
"""Formats whose own experts get adapters: litgpt/lora.py, LLaMAMoE; torchtune/modules/moe/experts.py."""


def adapts_experts(question: Question) -> bool:
    """Return whether experts have adapters: not in transformers 5, whose experts are no linear layers.

    PEFT's all-linear and ms-swift's find_all_linears take modules of nn.Linear; before, and in
    Megatron-Core's grouped linear layers, each expert has its own. Where an MLP's matrices are named, PEFT
    0.19 adapts the experts' tensors (convert_peft_config_for_transformers).
    """
    adapters = question.adapters
    linear = adapters is not None and (adapters.experts == "linear" or bool(OF_MLP & {*adapters.targets}))
    return linear or question.program_of() == "megatron" or question.format in LINEAR_EXPERTS


def adapter_sizes(shape: TransformerShape, experts: bool = True) -> dict[str, int]:
    """Return for each linear layer how many parameters its adapters have per rank, in all layers.

    A matrix of m × n has adapters of rank × (m + n), with `experts` an expert's as well.
    """
    moe = sum(shape.layers_are_moe)
    widths = (
        (shape.intermediate_size, sum(shape.layers_have_mlp) - moe),
        (shape.moe_intermediate_size, moe * shape.num_experts * experts),
        (shape.shared_intermediate_size, moe),
    )
    inner = sum(count * (shape.hidden_size + width) for width, count in widths if width)
    layers = sum(shape.layers_have_attention), sum(shape.layers_are_linear)
    sizes = {
        name: count * (one.inputs + one.outputs)
        for linears, count in zip(mixer_linears(shape), layers, strict=True)
        for name, one in linears.items()
    }
    sizes |= {"gate_proj": inner if shape.gated else 0, "up_proj": inner, "down_proj": inner}
    return sizes | {other: sum(sizes[one] for one in names.split()) for other, names in JOINED.items()}


def frozen_base(shape: TransformerShape, adapters: Adapters, experts: bool = True) -> FrozenBase:
    """Return the frozen weights and how large the adapters next to them are; `experts` have some, too.

    Where a name of a layer is not known, every linear layer of the layers has adapters.
    """
    sizes = adapter_sizes(shape, experts)
    names = adapters.targets if adapters.targets and set(adapters.targets) <= sizes.keys() else LINEAR
    if names is LINEAR and shape.mixer:
        names = (*LINEAR, "in_proj")
    every = shape.parameters_in_layers()
    share = adapters.rank * sum(sizes[name] for name in names) / every
    return FrozenBase(BASE_B[adapters.base], MAXIMA_B.get(adapters.base, 0.0), share, adapters.ends)


def adapter_load(shape: TransformerShape, adapters: Adapters, experts: bool = True) -> LayerAdapters:
    """Return the adapters of a layer's parts; of `experts`, where they have some, those that a token passes.

    Where no name of a layer is known, every linear layer of the layers has adapters.
    """
    attention, linear = mixer_linears(shape)
    hidden = shape.hidden_size

    def inner(width: int) -> dict[str, AdapterLoad]:
        up = AdapterLoad(1, hidden, width)
        return {"gate_proj": up, "up_proj": up, "down_proj": AdapterLoad(1, width, hidden)}

    width = shape.shared_intermediate_size + shape.experts_per_token * shape.moe_intermediate_size * experts
    parts = (attention, linear, inner(shape.intermediate_size), inner(width) if width else {})
    known = {name for sizes in parts for name in sizes}
    named = [name for name in adapters.targets if known & set(JOINED.get(name, name).split())] or sorted(
        known
    )

    def load(name: str, sizes: dict[str, AdapterLoad]) -> AdapterLoad:
        own = sum_of(sizes[one] for one in JOINED.get(name, name).split() if one in sizes)
        return own._replace(linears=min(own.linears, 1)) if name in JOINED else own

    return LayerAdapters(*(sum_of(load(name, sizes) for name in named) for sizes in parts))


def imbalance_of(question: Question) -> float:
    """Return the tokens of the rank with the busiest experts over the mean, which a capacity bounds."""
    if question.imbalance is not None:
        return question.imbalance
    return min(question.capacity_factor or IMBALANCE, IMBALANCE)


def training_of(question: Question, architecture: str = "") -> Training:
    """Return what all layouts of a question have in common; raises `Unavailable` without tokens."""
    if question.seq_len is None:
        raise Unavailable("seq_len: missing; give the tokens of a sequence")
    program = question.program_of()
    precision: Any = "bf16" if question.precision == "fp16" else question.precision
    optimizer: Any = question.optimizer
    return Training(
        seq_len=question.seq_len,
        program=program,
        precision=precision,
        gradients=question.gradients,
        master_remainders=question.master_remainders,
        fp8_parameters=question.fp8_parameters,
        optimizer=optimizer,
        attention=attention_of(question, architecture),
        deterministic=question.deterministic,
        expandable_segments=question.expandable_segments,
        deferred_head_gradients=question.deferred_head_gradients,
        micro_batch_group=question.micro_batch_group or 0,
        bucket=question.bucket_elements() or DEEPSPEED_BUCKET,
        offload=offload_of(question),
        activations_on_host="activations" in on_host_of(question),
        recompute_modules=question.recompute_modules or DEFAULT_MODULES,
        dispatcher=question.dispatcher,
        layers_of_stages=question.layers_of_stages,
        grouped_experts=question.grouped_experts,
        replicated_experts=question.replicated_experts,
        states=question.states if program in FSDP else "fp32",
        fused_loss=question.fused_loss or question.loss_chunks > 1,
        linear_loss=question.fused_loss and question.loss_chunks == 1 and program != "megatron",
        compiled_loss=question.compile and program == "torchtitan",
        fused_layers=fuses_layers(question),
        imbalance=imbalance_of(question),
    )


def fuses_layers(question: Question) -> bool:
    """Return whether Liger changes the layers: not those of Megatron-LM and nanotron, fused already."""
    kind = (question.config or {}).get("model_type")
    known = kind is None or kind in CHANGED_BY_LIGER.split()
    return question.fused_layers and known and question.program_of() not in ("megatron", "nanotron")


def on_host_of(question: Question) -> set[str]:
    """Return what is on the host, without the places."""
    return {name.partition(":")[0] for name in question.offload}


def offload_of(question: Question) -> OffloadName:
    """Return which states are on the host."""
    on_host = on_host_of(question)
    return "parameters" if "parameters" in on_host else "optimizer" if "optimizer" in on_host else "none"


def with_layout(question: Question, whole_batch: bool) -> tuple[Question, Layouts]:
    """Return the question with its batch, and its layout; raises `Unavailable` for what does not divide."""
    devices = question.devices or 1
    dp = data_parallel_ranks(question, devices)
    sequences, batch = dp * question.micro_batch_size, question.global_batch_size
    steps = question.gradient_accumulation_steps
    if steps is not None and (whole_batch or question.pp > 1 or question.search):
        batch = sequences * steps
        question = msgspec.structs.replace(
            question, global_batch_size=batch, gradient_accumulation_steps=None
        )
    if batch is not None and batch % sequences and not question.search:
        raise Unavailable(
            f"global_batch_size={batch} is no multiple of dp × micro_batch_size = {dp} × "
            f"{question.micro_batch_size} = {sequences}"
        )
    without = steps or (4 * question.pp if question.pp > 1 else 1)
    count = without if batch is None or question.search else batch // sequences
    row = layout_row(question, dp, count)
    return msgspec.structs.replace(question, dp=None), Layouts.of([row])


def layout_row(question: Question, dp: int, micro_batches: int) -> dict[str, int]:
    """Return a question's layout as a row of `Layouts.of`."""
    row: dict[str, int] = {name: getattr(question, name) for name in ("tp", "pp", "cp", "ep", "zero")}
    return row | {
        "dp": dp,
        "etp": question.etp or question.expert_tensor_ranks,
        "virtual_stages": checked(question.stages_per_rank),
        "shard_size": shard_size_of(question, dp),
        "micro_batch_size": question.micro_batch_size,
        "micro_batches": micro_batches,
        "recompute": RECOMPUTES.index(question.recompute),
        "sequence_parallel": int(question.sequence_parallel and question.tp > 1),
    }


def data_parallel_ranks(question: Question, devices: int) -> int:
    """Return the data-parallel ranks; raises `Unavailable` where the others do not divide the devices."""
    ranks = question.model_ranks
    if devices % ranks:
        raise Unavailable(
            f"tp × pp × cp = {question.tp} × {question.pp} × {question.cp} = {ranks} does not divide the "
            f"{devices} GPUs; its divisors do: {', '.join(map(str, divisors(devices)[:12]))}"
        )
    return devices // ranks if question.search else checked(question.dp_of)


def shard_size_of(question: Question, dp: int) -> int:
    """Return over how many ranks states are sharded, 0 for all; raises `Unavailable`."""
    ranks = dp * question.cp
    if question.shard_size is not None or question.replicas == 1:
        return question.shard_size or 0
    if ranks % question.replicas:
        raise Unavailable(f"{ranks} ranks (dp × cp) are no multiple of {question.replicas} replicas")
    return ranks // question.replicas


def checked(of_question: Callable[[], int]) -> int:
    """Return what a method of a question does; raises `Unavailable` in place of its ValueError."""
    try:
        return of_question()
    except ValueError as error:
        raise Unavailable(str(error)) from None


def setting_of(subject: LayoutSubject, run: RunFacts = PLAIN) -> StepSetting:
    """Return the setting of the model of seconds; raises `Unavailable` for a device that it does not know."""
    question, gpu = subject.question, known_gpu(subject.question.device)
    if not gpu.memory_B_per_s or not gpu.link_B_per_s or not {"bf16", "fp16"} & gpu.matmul_FLOP_per_s.keys():
        raise Unavailable(
            f"device={question.device}: seconds need its rates of 16-bit matmuls, memory and links, which "
            "conf/hardware does not have"
        )
    run, constants = facts_of(question, subject.shape, run), StepConstants.read()
    gpu, training = replace(gpu, usable_memory_B=subject.cluster.usable_B), subject.training
    if question.shorter:
        training = replace(training, seq_len=max(1, round(training.seq_len * constants["shorter_share"])))
    return setting(question, subject.shape, training, gpu, run, constants)


def facts_of(question: Question, shape: TransformerShape, run: RunFacts) -> RunFacts:
    """Return what a question says of its program's kernels, adapters and second models."""
    text = f"{question.format} {question.framework}"
    eager = meaning("eager", text, question.adapters is not None)
    eager = eager and question.program_of() != "megatron" and not question.compile
    run = run._replace(eager=run.eager or bool(eager))
    run = run._replace(
        synchronous_experts=question.program_of() == "megatron" or "megatron" in text.lower(),
        imbalance=question.imbalance,
        dispatcher=question.dispatcher,
        rollout=question.rollout,
        forward_passes=question.forward_passes,
    )
    if question.framework.startswith(MLPERF):
        run = run._replace(tuned=True)
    if run.eager:
        run = run._replace(
            fused=question.fused_loss or question.fused_layers, torch_attention=question.cp > 1
        )
    if (adapters := question.adapters) is None:
        return run
    gptq = adapters.base == "nf4" and question.precision == "fp16"  # whose kernels are of fp16 alone
    base = "gptq" if gptq else adapters.base if adapters.base != "bf16" else ""
    load = adapter_load(shape, adapters, adapts_experts(question)) if run.eager else LayerAdapters()
    return run._replace(adapters_alone=True, base=base, adapters=load)


def setting(
    question: Question,
    shape: TransformerShape,
    training: Training,
    gpu: RatedGpu,
    run: RunFacts,
    constants: StepConstants,
) -> StepSetting:
    """Return a question's setting of the model of seconds."""
    cluster = GpuCluster(gpu, question.gpus_per_node, question.network_B_per_s, question.network)
    return StepSetting(shape, training, cluster, constants, compiled=question.compile, run=run)


def left_out(question: Question) -> tuple[str, ...]:
    """Return what the account takes for something else, in words."""
    program = question.program_of()
    places = [name.partition(":")[2] for name in question.offload if ":" in name]
    of_file = question.format and question.program is None and question.format != program
    some = question.recompute == "full" and question.recompute_every > 1
    scheduled = question.pp > 1 and question.schedule not in ("1f1b", "interleaved1f1b")
    words = {
        f"{question.format}'s {question.sharing}, taken as {program}'s": of_file,
        "fp16, taken as bf16, which has the same bytes": question.precision == "fp16",
        "states in bf16, taken as fp32's, so that the memory given is too much": question.states == "bf16"
        and program not in FSDP,
        f"every {question.recompute_every}nd or later layer alone is recomputed; all of them are taken": some,
        f"schedule {question.schedule}, taken as 1F1B": scheduled,
        f"offload to {''.join(places[:1])}, taken as the host's memory": places,
        "what frozen weights save of activations": question.adapters is not None,
        "what the adapters' dropout keeps": question.adapters is not None and question.adapters.dropout > 0,
        "what torch.compile saves of memory": question.compile,
        "the optimizer in the backward pass": question.optimizer_in_backward,
    }
    return tuple(one for one, true in words.items() if true)


def seconds_left_out(question: Question) -> Iterator[str]:
    """Yield what only bytes are answered for, in words."""
    if question.shorter:
        share = StepConstants.read()["shorter_share"]
        yield f"the data's lengths: a sequence is taken to have {share:.0%} of seq_len, as Alpaca's have"
    if question.rollout == "vllm":
        yield "what an engine takes to generate beyond reading weights and caches, or its FLOP"
    if question.objective == "ppo":
        yield "a critic's passes and a reward model's"
    if unknown := set(question.recompute_modules) - {"core_attn", "moe"}:
        modules = ",".join(sorted(unknown))
        yield f"recompute_modules [{modules}], of which seconds are not modelled"
    if question.precision == "bf16" and "bf16" not in known_gpu(question.device).matmul_FLOP_per_s:
        yield f"bf16, which {question.device} emulates: its seconds are those of fp16"
    if question.deterministic:
        yield "deterministic kernels, of which seconds are not modelled"
    if question.dispatcher == "allgather":
        yield "dispatcher allgather, whose seconds are taken as those of an all-to-all by nodes"
